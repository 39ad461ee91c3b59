"""Discovery: which plugins may be imported, decided from metadata; one-file plugins; records and a registry."""

import os
import sys
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from esper_core import __version__
from esper_core.plugins import load_plugins
from esper_core.plugins.discovery import is_name, read_local

NEVER = "raise AssertionError('its code was run')"


def test_disabled_plugin_is_not_imported_and_not_a_problem(load, workshop) -> None:
    plugins = load(workshop.package(NEVER), disable=["extra"])
    assert [record.status for record in plugins.records] == ["disabled"]
    assert plugins.problems == ()


def test_plugin_id_declared_more_than_once_is_rejected(load, report, workshop) -> None:
    """Neither is loaded; beside a first-party plugin, the other package is the one to uninstall."""
    rivals = [workshop.package(NEVER), workshop.package(NEVER, name="other-extra", version="1.0")]
    first_party = workshop.package(NEVER, plugin="blueprints", version=__version__)
    evil = workshop.package(NEVER, plugin="blueprints", name="evil", version="6.6.6")
    twice = replace(rivals[0], entry_points=(*rivals[0].entry_points, EntryPoint("extra", "other", "esper.plugins")))
    assert [record.status for record in load(*rivals).records] == ["rejected", "rejected"]
    keep, extra = "Keep one of them:  pip uninstall ", "esper-extra 0.2.0 (esper_extra)"
    blueprints = f"esper-blueprints {__version__} (esper_blueprints)"
    for packages, id_, first, second, hint in (
        (rivals, "extra", extra, "other-extra 1.0 (other_extra)", f"{keep}esper-extra or other-extra"),
        ([first_party, evil], "blueprints", blueprints, "evil 6.6.6 (evil)", f"{keep}evil"),
        ([twice], "extra", extra, "esper-extra 0.2.0 (other)", "Tell the author of esper-extra."),
    ):
        message = f'E211 plugin "{id_}" is declared more than once, and not loaded: by {first} and by {second}'
        assert report(*packages) == f"{message}\n  {hint}"


def test_plugin_for_another_core_version_is_not_imported(load, report, workshop) -> None:
    package = workshop.package(NEVER, requires=["esper-core>=0.1", "esper-core>=9,<10"])
    assert [record.status for record in load(package).records] == ["rejected"]
    assert report(package) == (
        'E212 plugin "extra" (esper-extra 0.2.0) needs esper-core <10,>=9, '
        f"and this is {__version__}; its code was not run\n"
        "  Bring them together:  pip install --upgrade esper-core esper-extra"
    )


@pytest.mark.parametrize(
    "requires",
    [
        *(None, ["torch>=99"], ["Esper.Core (>=0.1)"], ["esper-core-extra>=9"]),
        ["esper-core @ file:///somewhere"],
        ['esper-core>=9; python_version < "3"', 'esper-core>=9; extra == "test"'],
    ],
)
def test_requirement_that_is_met_or_does_not_apply_is_accepted(load, workshop, requires) -> None:
    assert [record.status for record in load(workshop.blueprints("tiny", requires=requires)).records] == ["active"]


@pytest.mark.parametrize("name", ["Extra", "", "evil/team", "a--b", "a" * 49, "\x1b[31m"])
def test_invalid_plugin_id_is_rejected(load, workshop, name: str) -> None:
    package = workshop.package(NEVER)
    plugins = load(replace(package, entry_points=(EntryPoint(name, "esper_extra", "esper.plugins"),)))
    assert [record.status for record in plugins.records] == ["rejected"]
    (problem,) = plugins.problems
    assert problem.message == f'package esper-extra 0.2.0 declares a plugin with an invalid id: "{name}"'
    assert problem.hint.endswith("at most 48 characters. Tell the author of esper-extra.")
    assert all(map(is_name, ("a", "tiny-conv", "conv_light", "conv3x3", "a" * 48)))


def test_safe_mode_loads_first_party_plugins_only(load, workshop, monkeypatch) -> None:
    first_party, third_party = workshop.blueprints("tiny", plugin="blueprints"), workshop.package(NEVER)
    rival = workshop.package(NEVER, plugin="blueprints", name="evil")
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    plugins = load(first_party, third_party, rival)
    status = {record.package: record.status for record in plugins.records}
    assert status == {"esper-blueprints": "active", "esper-extra": "not-listed", "evil": "not-listed"}
    assert plugins.problems == ()
    assert [record.status for record in load(workshop.blueprints("tiny"), safe_mode=False).records] == ["active"]


PLUGIN = "from esper_core import hookimpl\n"


@pytest.mark.parametrize("name", ["my-plugin.py", "class.py", "Extra.py", "notes.txt"])
def test_file_whose_name_no_plugin_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(PLUGIN)
    files, (problem,) = read_local([tmp_path / name])
    assert files == ()
    assert name in problem.message


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "endless.py"
    os.mkfifo(pipe)
    (problem,) = read_local([pipe])[1]
    assert problem.message.startswith(f'the plugin file "{pipe}" cannot be read: ')
    assert "expected a regular file, received a pipe" in problem.message


def test_file_is_run_as_it_was_read(tmp_path: Path, monkeypatch) -> None:
    """The manifest has the hash of the code that ran, and no bytecode is written beside the file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "going_away.py"
    file.write_text(PLUGIN)
    loaded = load_plugins(distributions=(), local=[file])
    (record,) = loaded.records
    assert (record.id, record.status, record.origin) == ("going-away", "active", str(file))
    assert loaded.files[0].source == PLUGIN.encode()
    assert record.sha256 == sha256(PLUGIN.encode()).hexdigest()
    assert list(file.parent.iterdir()) == [file]


SOURCE = """
from esper_core import BlueprintSpec, hookimpl
@hookimpl
def esper_register_blueprints(registry):
    registry.add("tiny-conv", "my_package.blocks:TinyConv", BlueprintSpec("image"))
"""


def test_installed_package_is_found_through_its_metadata(workshop, install) -> None:
    workshop.write("my_package", SOURCE)
    install.metadata("blueprints-Extra", "[console_scripts]\nx = y\n[esper.plugins]\nblueprints-extra = my_package\n")
    plugins = load_plugins()
    (record,) = [record for record in plugins.records if record.id == "blueprints-extra"]
    assert (record.package, record.version, record.origin) == ("blueprints-Extra", "1.0", "my_package")
    assert (record.status, record.components) == ("active", ("blueprints-extra/tiny-conv",))
    assert plugins.registry.find("blueprint", "tiny-conv").package == "blueprints-Extra"


@pytest.mark.members
@pytest.mark.parametrize(
    ("entry_points", "version"),
    [
        (b"[esper.plugins]\nextra = \xff\xfe", "1.0"),
        ("[esper.plugins]\nnonsense\n", "1.0"),
        ("[esper.plugins]\na=b", None),
    ],
)
def test_damaged_metadata_is_reported_and_the_others_load(install, entry_points, version) -> None:
    install.metadata("damaged", entry_points, version=version)
    plugins = load_plugins()
    assert "blueprints" in [record.id for record in plugins.records]
    (problem,) = plugins.problems
    assert problem.code == "E223"
    assert " cannot be read: " in problem.message
