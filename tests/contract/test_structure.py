"""The structure of the core: a map in each package, and one class for one public name."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.contract.conftest import tree

CORE = Path(__file__).parents[2] / "esper-core" / "src" / "esper_core"

ALIKE = {"Grow"}
"""Classes with the same name on purpose: the callback for each library in ``esper_grow.integrations``."""


@pytest.mark.parametrize("package", sorted(path.parent.name for path in CORE.glob("*/__init__.py")))
def test_a_package_of_the_core_begins_with_a_map_of_its_modules(package: str) -> None:
    text = ast.get_docstring(tree(CORE / package / "__init__.py")) or ""
    modules = {path.stem for path in (CORE / package).glob("*.py")} - {"__init__"}
    assert sorted(name for name in modules if name not in text) == []


def test_no_two_public_classes_of_the_core_have_one_name() -> None:
    names = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1 and name not in ALIKE] == []
