"""The structure of the packages: a complete map in each, one class for one public name, and limits of sizes."""

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import ROOT, SOURCES, tree
from tests.docs.test_answers import script

CORE = ROOT / "esper-core" / "src" / "esper_core"
PACKAGES = sorted(path.parent for path in ROOT.glob("esper-*/src/**/__init__.py"))

ALIKE = {"Grow"}
"""Classes with the same name on purpose: the callback for each library in ``esper_grow.integrations``."""

MODULES_OF_A_PACKAGE = 18
MODULES_OF_THE_CORE = 75

TOKENS_OF_THE_CORE = 87_700 + 550 + 800 + 700 + 2_060 + 200 + 500 + 2_320 + 14_000 + 1_400 + 2_200 + 1_250 + 280 - 2_650
"""The budget, and what was added since: sight of the state that modules keep, a governor that does no harm, checks of
returned values, averaged weights, with which networks may end, slots that belong to the modules where they act, gates
for gains that last at relative prices, equal networks as one program, sets of seeds that share a branch, for which
2,000 were, passes that are recorded once and made again, over numbers that stay in blocks for a step, passes that are
captured on a GPU, and products whose bits do not depend on where a network lies, which trials compare; less what
leaves seeds out, which is above the core."""
TOKENS_OF_LEYLINE = 7_060
"""What leyline has: contracts move, and do not grow."""

NAMES_OF_THE_CORE = 62
"""How many names of the core, beside those of leyline, the packages above it use."""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT).parts[-1])
def test_a_package_begins_with_a_complete_map_of_its_modules(package: Path) -> None:
    text = ast.get_docstring(tree(package / "__init__.py")) or ""
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    named = {name for name in modules if not name.startswith("_")}
    assert sorted(name for name in named if name not in text) == []


def test_no_package_has_too_many_modules() -> None:
    counts = {package.name: len(list(package.glob("*.py"))) - 1 for package in PACKAGES if package != CORE}
    over = {name: count for name, count in counts.items() if count > MODULES_OF_A_PACKAGE}
    # One blueprint is one file, and a view of a run is one, too: these two packages are lists of such files.
    assert over.keys() <= {"esper_blueprints", "esper_watch", "growth"}


def test_no_two_public_classes_of_the_core_have_one_name() -> None:
    names = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1 and name not in ALIKE] == []


def test_the_core_stays_within_its_budgets() -> None:
    """Dense lines and missing words do not help, since tokens without comments and docstrings are counted."""
    tokens = script(ROOT / ".ci" / "tokens.py")
    counts = {path: tokens.count(path) for path in CORE.rglob("*.py")}
    assert len(counts) <= MODULES_OF_THE_CORE
    assert sum(counts.values()) <= TOKENS_OF_THE_CORE
    leyline = sum(count for path, count in counts.items() if "leyline" in path.parts)
    assert leyline <= TOKENS_OF_LEYLINE


def test_upper_floors_use_few_names_of_the_core_and_only_public_ones() -> None:
    names: set[tuple[str, str]] = set()
    for path in SOURCES:
        if CORE in path.parents:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "esper_core":
                names |= {(str(node.module), alias.name) for alias in node.names}
    leyline = set(public("esper_core.leyline"))
    used = {(module, name) for module, name in names if module.split(".")[:2] != ["esper_core", "leyline"]}
    used = {(module, name) for module, name in used if module != "esper_core" or name not in leyline}
    assert sorted(f"{module}.{name}" for module, name in used if name not in public(module)) == []
    assert len({name for _, name in used}) <= NAMES_OF_THE_CORE


def public(module: str) -> list[str]:
    """Return the names that a module makes public, and its version."""
    imported = importlib.import_module(module)
    return [*getattr(imported, "__all__", dir(imported)), "__version__"]


def test_every_package_has_a_floor_and_every_module_of_the_three_floors_a_layer() -> None:
    members = script(ROOT / ".ci" / "layers.py").members()
    assert {member.package for member in members} == {path.name for path in ROOT.glob("esper-*/src/*")}
    assert {member.package for member in members if member.layers} == {
        "esper_core", "esper_run", "esper_grow", "esper_scale",
    }  # fmt: skip


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
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and arguments(node) > ARGUMENTS
    ]
    assert over == [], "group what belongs together in a class"


def test_modules_classes_and_functions_are_below_their_limits() -> None:
    assert SOURCES
    over = [size for path in SOURCES for size in sizes(path) if size[1] > size[2]]
    assert over == [], "each with its lines, and how many it may have"
