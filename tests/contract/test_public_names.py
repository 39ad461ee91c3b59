"""The public names exist, are documented, and are the only ones that ``dir()`` shows."""

from __future__ import annotations

import ast
import importlib
from importlib import resources
from pathlib import Path

import pytest

import esper_core
import esper_core.leyline

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(path.name.replace("-", "_") for path in ROOT.glob("esper-*") if (path / "pyproject.toml").is_file())


def test_there_are_eight_members() -> None:
    assert len(MEMBERS) == 8


def test_the_public_names_are_sorted_and_each_once() -> None:
    assert list(esper_core.__all__) == sorted(set(esper_core.__all__))


@pytest.mark.parametrize("package", [esper_core, esper_core.leyline], ids=lambda package: package.__name__)
def test_dir_shows_the_public_names_only(package) -> None:
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("package", [esper_core, esper_core.leyline], ids=lambda package: package.__name__)
def test_a_public_name_is_the_one_that_its_module_has(package) -> None:
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{package.__name__}.{node.module}" for node in imports for alias in node.names}
    assert set(homes) == set(package.__all__)
    for name, home in homes.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="grft"):
        esper_core.grft  # noqa: B018


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_carries_its_types(member: str) -> None:
    assert resources.files(member).joinpath("py.typed").is_file()


@pytest.mark.parametrize("member", MEMBERS)
def test_what_a_member_lists_it_has(member: str) -> None:
    package = importlib.import_module(member)
    names = getattr(package, "__all__", [])
    assert list(names) == sorted(set(names))
    assert [name for name in names if not hasattr(package, name)] == []
