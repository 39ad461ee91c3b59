"""Modules, classes and functions stay below their size limits."""

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
