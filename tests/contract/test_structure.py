"""The structure of the packages: no import circles, a map in each package, one class for one public name."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.contract.conftest import imports, tree

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("esper-*/src"))
CORE = ROOT / "esper-core" / "src" / "esper_core"

ALIKE = {"Grow"}
"""Classes with the same name on purpose: the callback for each library in ``esper_core.integrations``."""


def modules() -> dict[str, Path]:
    """Every module of every member by its dotted name."""
    found = {}
    for source in SOURCES:
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, known: set[str]) -> set[str]:
    """The modules that a file imports, under TYPE_CHECKING and inside functions too."""
    return {full if (full := f"{module}.{name}") in known else module for module, name in imports(path)} & known


def first_circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of an import circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_circles_even_for_types() -> None:
    known = modules()
    lazy = {name for name, path in known.items() if path.name == "__init__.py"}
    graph = {name: imports_of(path, set(known)) - {name} for name, path in known.items()}
    inside = {
        name: {other for other in found if other not in lazy} for name, found in graph.items() if name not in lazy
    }
    assert first_circle(inside) == []


@pytest.mark.parametrize("package", sorted(path.parent.name for path in CORE.glob("*/__init__.py")))
def test_a_package_of_the_core_begins_with_a_map_of_its_modules(package: str) -> None:
    text = ast.get_docstring(tree(CORE / package / "__init__.py")) or ""
    own = {path.stem for path in (CORE / package).glob("*.py")} - {"__init__"}
    assert sorted(name for name in own if name not in text) == []


def test_no_two_public_classes_of_the_core_have_one_name() -> None:
    names = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1 and name not in ALIKE] == []
