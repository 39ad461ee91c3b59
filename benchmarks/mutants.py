"""Count the mutants of the core that its tests do not notice.

    python -m benchmarks.mutants [--count 120] [--seed 0] [--packages growth governor trainer plugins]

Draws mutants (one changed comparison, operator, constant or condition, or one dropped statement) evenly from the
packages, and runs each package's own fast tests on each of its mutants, in a copy of the working tree. Prints the
survivors and their number. The same seed draws the same mutants from the same code. Set up the project first: make test
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("growth", "governor", "trainer", "plugins")
CORE = Path("esper-core/src/esper_core")
SECONDS = 900
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the file, the number of the node in ``ast.walk`` order, and the line for people."""

    file: Path
    node: int
    line: int

    def apply(self, root: Path) -> str:
        """Write the changed file below ``root`` and return the changed line."""
        tree = ast.parse((root / self.file).read_text(encoding="utf-8"))
        node = list(ast.walk(tree))[self.node]
        before = ast.unparse(node).splitlines()[0]
        change(node)
        (root / self.file).write_text(ast.unparse(tree) + "\n", encoding="utf-8")
        return f"{before}  ->  {ast.unparse(node).splitlines()[0]}"


def can_change(node: ast.AST) -> bool:
    """Return whether ``change`` knows how to mutate a node."""
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in COMPARISONS
    if isinstance(node, ast.BinOp):
        return type(node.op) in OPERATORS
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.BoolOp | ast.If | ast.IfExp)


def change(node: ast.AST) -> None:
    """Mutate a node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Expr):
        node.value = ast.Constant(None)


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file, without those in annotations, decorators and TYPE_CHECKING blocks."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            skipped |= {id(child) for child in ast.walk(part)} if part is not None else set()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= {id(child) for child in ast.walk(node)}
    for number, node in enumerate(ast.walk(tree)):
        if can_change(node) and id(node) not in skipped:
            yield Mutant(file, number, node.lineno)  # type: ignore[attr-defined]


def copy_tree(root: Path) -> None:
    """Copy the files of the working tree that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and Path(name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, root / name)


def passes(package: str, root: Path, python: Path) -> bool:
    """Return whether a package's fast tests pass in a tree; a run that hangs does not."""
    sources = os.pathsep.join(str(path) for path in sorted(root.glob("esper-*/src")))
    tests = f"esper-core/tests/{package}"
    command = [str(python), "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", tests]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            capture_output=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Draw mutants, test each, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    options = parser.parse_args()
    draw, survivors, drawn = random.Random(options.seed), 0, options.count // len(options.packages)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "tree")
        copy_tree(root)
        python = Path(".venv/bin/python").absolute()
        for package in options.packages:
            if not passes(package, root, python):
                print(f"the tests of {package} fail without a mutant")
                return 1
            every = [mutant for file in sorted((CORE / package).glob("*.py")) for mutant in mutants_of(file)]
            for mutant in draw.sample(every, drawn):
                text = (root / mutant.file).read_text(encoding="utf-8")
                changed = mutant.apply(root)
                alive = passes(package, root, python)
                (root / mutant.file).write_text(text, encoding="utf-8")
                survivors += alive
                if alive:
                    print(f"survived  {mutant.file}:{mutant.line}  {changed}", flush=True)
    print(f"{survivors} of {drawn * len(options.packages)} mutants survived (seed {options.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
