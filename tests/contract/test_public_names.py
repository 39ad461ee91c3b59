"""The public names exist, are documented, and are the only ones that ``dir()`` shows."""

import ast
import importlib
from importlib import resources
from pathlib import Path

import pytest

import esper_core
import esper_core.leyline
from tests.conftest import MEMBERS


@pytest.mark.parametrize("package", [esper_core, esper_core.leyline], ids=lambda package: package.__name__)
def test_public_names_are_those_of_their_modules_and_the_only_ones_shown(package) -> None:
    assert list(package.__all__) == dir(package) == sorted(set(package.__all__))
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{package.__name__}.{node.module}" for node in imports for alias in node.names}
    assert set(homes) == set(package.__all__)
    for name, home in homes.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_has_types_and_the_names_that_it_lists(member: str) -> None:
    package = importlib.import_module(member.replace("-", "_"))
    assert resources.files(package).joinpath("py.typed").is_file()
    names = getattr(package, "__all__", [])
    assert list(names) == sorted(set(names))
    assert [name for name in names if not hasattr(package, name)] == []
