"""Modules, classes and functions stay below their size limits."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.contract.conftest import tree

ROOT = Path(__file__).parents[2]
MODULES = sorted(ROOT.glob("esper-*/src/**/*.py"))

LINES_OF_A_MODULE = 500
ARGUMENTS = 10
LINES = {ast.ClassDef: 300, ast.FunctionDef: 60, ast.AsyncFunctionDef: 60}


def sizes(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the module, its classes and its functions, each with its lines and its limit."""
    place = path.relative_to(ROOT).as_posix()
    yield place, len(path.read_text(encoding="utf-8").splitlines()), LINES_OF_A_MODULE
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{place}::{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1, LINES[type(node)]


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many arguments a function has, with ``*args`` and ``**kwargs``, but without ``self``."""
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, signature.vararg, signature.kwarg]
    return sum(argument is not None and argument.arg not in ("self", "cls") for argument in named)


def test_functions_have_at_most_ten_arguments() -> None:
    over = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and arguments(node) > ARGUMENTS
    ]
    assert over == [], "group what belongs together in a class"


def test_modules_classes_and_functions_are_below_their_limits() -> None:
    assert MODULES
    over = [size for path in MODULES for size in sizes(path) if size[1] > size[2]]
    assert over == [], "each with its lines, and how many it may have"
