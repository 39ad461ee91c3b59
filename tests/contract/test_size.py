"""Modules, classes and functions stay below their size limits."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.contract.conftest import tree

ROOT = Path(__file__).parents[2]
MODULES = sorted(ROOT.glob("esper-*/src/**/*.py"))

LINES_OF_A_MODULE = 500
LINES_OF_A_CLASS = 300
LINES_OF_A_FUNCTION = 60


def too_large(path: Path) -> dict[str, str]:
    """Return what in ``path`` is over its limit: its place, with its lines."""
    text = path.read_text(encoding="utf-8")
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    found = {}
    if (lines := len(text.splitlines())) > LINES_OF_A_MODULE:
        found[place] = f"{lines} lines, {LINES_OF_A_MODULE} at most"
    for node in ast.walk(tree(path) if path in MODULES else ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            limit = LINES_OF_A_CLASS
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            limit = LINES_OF_A_FUNCTION
        else:
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > limit:
            found[f"{place}::{node.name}"] = f"{lines} lines, {limit} at most"
    return found


def test_modules_classes_and_functions_are_below_their_limits() -> None:
    assert MODULES
    over = {place: why for path in MODULES for place, why in too_large(path).items()}
    assert over == {}


def test_one_line_too_many_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    heads = {"": (LINES_OF_A_MODULE, "m.py"), "class C:\n ": (LINES_OF_A_CLASS - 1, "m.py::C")}
    heads |= {f"{word} f():\n ": (LINES_OF_A_FUNCTION - 1, "m.py::f") for word in ("def", "async def")}
    for head, (most, place) in heads.items():
        for lines, over in ((most, []), (most + 1, [place])):
            path.write_text(head + f"x = 1\n{' ' if head else ''}" * lines, encoding="utf-8")
            assert list(too_large(path)) == over, head
