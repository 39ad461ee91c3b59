"""Wheels are complete, and each member works beside the core alone."""

from __future__ import annotations

import json
import tomllib
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in sorted(ROOT.glob("esper-*/pyproject.toml"))
}
BESIDE = [name for name in PROJECTS if name != "esper-core"]

pytestmark = [pytest.mark.install, pytest.mark.slow]


def entry_points(wheel: Path) -> dict[str, dict[str, str]]:
    """The entry points that a wheel declares, by group."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        text = archive.read(names[0]).decode() if names else ""
    parser = ConfigParser(delimiters=("=",))
    parser.optionxform = str
    parser.read_string(text)
    return {group: dict(parser[group]) for group in parser.sections()}


def test_every_member_has_a_wheel(wheels: dict[str, Path]) -> None:
    assert sorted(wheels) == sorted(PROJECTS)


@pytest.mark.parametrize("member", PROJECTS)
def test_a_wheel_carries_its_types_and_its_package_and_nothing_else(wheels: dict[str, Path], member: str) -> None:
    package = member.replace("-", "_")
    source = ROOT / member / "src" / package
    with zipfile.ZipFile(wheels[member]) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = {f"{package}/{path.relative_to(source).as_posix()}" for path in source.rglob("*") if path.is_file()}
    assert f"{package}/py.typed" in packed
    assert packed == {name for name in there if "__pycache__" not in name}


@pytest.mark.parametrize("member", PROJECTS)
def test_a_wheel_carries_its_entry_points(wheels: dict[str, Path], member: str) -> None:
    project = PROJECTS[member]
    declared = dict(project.get("entry-points", {}))
    if scripts := project.get("scripts"):
        declared["console_scripts"] = scripts
    assert entry_points(wheels[member]) == declared


@pytest.mark.parametrize("member", PROJECTS)
def test_a_wheel_says_what_it_is(wheels: dict[str, Path], member: str) -> None:
    with zipfile.ZipFile(wheels[member]) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        license_text = archive.read(name.replace("METADATA", "licenses/LICENSE"))
    assert license_text == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert metadata["Keywords"]
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL")} == {
        "Documentation",
        "Source",
        "Changelog",
    }
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert metadata.get_payload(), "the README is not in it"


@pytest.fixture(scope="module")
def core_alone(new_environment: Callable):
    return new_environment("esper-core")


def test_the_core_alone_answers(core_alone) -> None:
    assert "Usage: esper" in core_alone.run("esper", "--help").stdout
    assert json.loads(core_alone.run("esper", "plugins", "list", "--json").stdout) == []


def test_the_core_alone_can_be_imported_whole(core_alone) -> None:
    core_alone.evaluate("""
import importlib, pkgutil
import esper_core
for name in esper_core.__all__:
    getattr(esper_core, name)
for module in pkgutil.walk_packages(esper_core.__path__, "esper_core."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
""")


def test_a_clean_environment_holds_none_of_the_members_that_it_was_not_given(core_alone) -> None:
    found = core_alone.evaluate("""
import importlib.metadata as metadata
print(*sorted({d.name for d in metadata.distributions() if d.name.startswith("esper")}))
""")
    assert found == "esper-core"


@pytest.mark.parametrize("member", BESIDE)
def test_a_member_lives_beside_the_core_alone(new_environment: Callable, member: str) -> None:
    environment = new_environment("esper-core", member)
    package = member.replace("-", "_")
    environment.evaluate(f"""
import importlib, pkgutil
import {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from importlib.metadata import distribution
for point in distribution("{member}").entry_points:
    point.load()
""")
    listed = json.loads(environment.run("esper", "plugins", "list", "--json").stdout)
    plugins = PROJECTS[member].get("entry-points", {}).get("esper.plugins", {})
    assert [(plugin["id"], plugin["status"]) for plugin in listed] == [(name, "active") for name in plugins]
