"""Wheels are complete, and each member can be imported whole with what it requires and nothing else."""

import json
import tomllib
import zipfile
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.conftest import wheel_metadata

ROOT = Path(__file__).parents[2]
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in sorted(ROOT.glob("esper-*/pyproject.toml"))
}

IMPORT_WHOLE = """
import importlib, json, pkgutil
import {package} as whole
lacking = []
for module in pkgutil.walk_packages(whole.__path__, "{package}."):
    if not module.name.endswith(".__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            lacking.append(module.name.removeprefix("{package}."))
print(json.dumps(sorted(lacking)))
"""

NEEDS_EXTRA = {"esper-grow": ["integrations.lightning", "integrations.transformers"]}
"""Modules that import a library of an extra, by member."""

LOAD_PLUGINS = """
import json
from esper_core.plugins import load_plugins
print(json.dumps([(plugin.id, plugin.status) for plugin in load_plugins().records]))
"""

pytestmark = pytest.mark.install


def entry_points(wheel: Path) -> dict[str, dict[str, str]]:
    """The entry points that a wheel declares, by group."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        text = archive.read(names[0]).decode() if names else ""
    parser = ConfigParser(delimiters=("=",))
    parser.optionxform = str
    parser.read_string(text)
    return {group: dict(parser[group]) for group in parser.sections()}


@pytest.mark.parametrize("member", PROJECTS)
def test_a_wheel_carries_its_types_and_its_package_and_nothing_else(wheels: dict[str, Path], member: str) -> None:
    package = member.replace("-", "_")
    source = ROOT / member / "src" / package
    with zipfile.ZipFile(wheels[member]) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    source_files = {f"{package}/{path.relative_to(source).as_posix()}" for path in source.rglob("*") if path.is_file()}
    assert f"{package}/py.typed" in packed
    assert packed == {name for name in source_files if "__pycache__" not in name}


@pytest.mark.parametrize("member", PROJECTS)
def test_a_wheel_says_what_it_is_and_carries_its_entry_points(wheels: dict[str, Path], member: str) -> None:
    project = PROJECTS[member]
    declared = dict(project.get("entry-points", {}))
    if scripts := project.get("scripts"):
        declared["console_scripts"] = scripts
    assert entry_points(wheels[member]) == declared
    metadata = wheel_metadata(wheels[member])
    with zipfile.ZipFile(wheels[member]) as archive:
        (license_file,) = (name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert archive.read(license_file) == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert all(metadata[key] for key in ("Author", "Keywords", "Summary"))
    urls = {url.partition(",")[0] for url in metadata.get_all("Project-URL")}
    assert urls == {"Documentation", "Source", "Changelog"}
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload(), "the README is not in it"


@pytest.mark.parametrize("member", PROJECTS)
def test_a_member_can_be_imported_whole_with_what_it_requires(installed_product: Callable, member: str) -> None:
    environment = installed_product(member)
    lacking = json.loads(environment.evaluate(IMPORT_WHOLE.format(package=member.replace("-", "_"))))
    assert lacking == NEEDS_EXTRA.get(member, [])
    environment.evaluate(f"import {member.replace('-', '_')} as whole; [getattr(whole, name) for name in dir(whole)]")
    environment.evaluate(f"import importlib.metadata as m; [p.load() for p in m.distribution('{member}').entry_points]")
    plugins = PROJECTS[member].get("entry-points", {}).get("esper.plugins", {})
    listed = dict(json.loads(environment.evaluate(LOAD_PLUGINS)))
    assert set(listed.values()) <= {"active"}
    assert listed.keys() >= plugins.keys()


def test_an_environment_has_nothing_but_what_was_installed(installed_product: Callable) -> None:
    names = "import importlib.metadata as m; print({d.name for d in m.distributions() if d.name.startswith('esper')})"
    assert installed_product("esper-core").evaluate(names) == "{'esper-core'}"
