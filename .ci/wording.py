"""Check what ruff cannot: docstrings that ask questions, modules named by gerunds, vague names, long commit subjects.

    python .ci/wording.py

Commit subjects are checked from the commit that added this script on, and only where there is a history.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("esper-*/src", "esper-*/tests", "examples", "tests", "benchmarks", "docs")

GERUNDS: Final = {
    "checkpointing",
    "encoding",
    "grafting",
    "learning",
    "loading",
    "logging",
    "rebuilding",
    "scaling",
    "testing",
    "timing",
    "training",
    "tuning",
}
"""Gerunds that are usual names in the field."""

NOUNS: Final = {"lightning", "setting", "settings", "string", "strings", "thing", "things", "warning", "warnings"}
VAGUE: Final = {
    *("both", "data2", "each", "found", "given", "item", "known", "one", "own", "that", "there", "these", "thing"),
    *("this", "those", "told"),
}
"""Names that do not say what they hold."""

SUBJECT: Final = 72
"""Most characters of a commit subject."""


def main() -> int:
    """Print every finding, and return 1 if there is one."""
    files = [file.relative_to(ROOT) for file in python_files()]
    findings = [finding for file in files for finding in questions(file)]
    findings += gerunds(file for file in files if "tests" not in file.parts)
    findings += [finding for file in files for finding in vague_names(file)]
    findings += long_subjects()
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def python_files() -> list[Path]:
    """Return the project's Python files."""
    folders = [folder for pattern in FOLDERS for folder in ROOT.glob(pattern)]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def questions(file: Path) -> Iterator[str]:
    """Yield the docstrings that ask a question in their first paragraph, except inside quotes and backquotes."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        summary = (ast.get_docstring(node) or "").partition("\n\n")[0]
        outside = summary.replace('"', "`").split("`")[::2]
        if any("?" in part for part in outside):
            line = getattr(node, "lineno", 1)
            yield f"{file}:{line}: the docstring asks a question: {summary.splitlines()[0]}"


def vague_names(file: Path) -> Iterator[str]:
    """Yield the variables, parameters and attributes whose names do not say what they hold."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and "tests" not in file.parts:
            name = node.attr  # tests name modules of their networks as they like
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            name = node.name or ""
        if name.strip("_") in VAGUE:
            yield f'{file}:{getattr(node, "lineno", 1)}: "{name}" does not say what it holds'


def gerunds(files: Iterable[Path]) -> Iterator[str]:
    """Yield the modules whose names end with a gerund that is not usual."""
    for file in files:
        word = file.stem.lower().rpartition("_")[2]
        if word.endswith("ing") and word not in GERUNDS | NOUNS:
            yield f"{file}: the module's name is a gerund; use a noun"


def long_subjects() -> Iterator[str]:
    """Yield the commits with a too long subject since the one that added this script."""
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(Path(__file__).resolve().relative_to(ROOT))).split()
    if not added:
        return
    for line in git("log", "--no-merges", "--format=%h %s", f"{added[-1]}..").splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT:
            yield f"commit {commit}: the subject has {len(subject)} characters, more than {SUBJECT}: {subject}"


def git(*arguments: str) -> str:
    """Return the output of a git command; it is empty without git or a repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
