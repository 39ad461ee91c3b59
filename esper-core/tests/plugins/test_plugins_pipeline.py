"""Loading as a whole: from real metadata on the path to a view that nothing can change."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError

import pytest

from esper_core import plugins
from esper_core.plugins import load_plugins
from esper_core.plugins.discovery import discover

SOURCE = """
from esper_core import BlueprintSpec, hookimpl
@hookimpl
def esper_register_blueprints(registry):
    registry.add("tiny-conv", "my_package.blocks:TinyConv", BlueprintSpec(accepts="image", params="9*c*c"))
"""


def install(workshop, name: str, entry_points: str | bytes, *, version: str | None = "1.2", requires: str = "") -> None:
    """What pip leaves behind: a folder of metadata beside the modules."""
    folder = workshop.folder / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    if version is not None:
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        folder.joinpath("METADATA").write_text(text, encoding="utf-8")
    data = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
    folder.joinpath("entry_points.txt").write_bytes(data)


def test_an_installed_package_is_found_through_its_metadata(workshop) -> None:
    workshop.write("my_package", SOURCE)
    install(workshop, "blueprints-Extra", "[console_scripts]\nx = y\n[esper.plugins]\nblueprints-extra = my_package\n")
    found = load_plugins()
    (record,) = [record for record in found.records if record.id == "blueprints-extra"]
    assert (record.package, record.version, record.origin) == ("blueprints-Extra", "1.2", "my_package")
    assert (record.status, record.components) == ("active", ("blueprints-extra/tiny-conv",))
    assert found.registry.find("blueprint", "tiny-conv").package == "blueprints-Extra"


def test_an_installed_package_that_needs_another_core_is_not_run(workshop) -> None:
    workshop.write("my_package", "raise AssertionError('its code was run')")
    install(workshop, "extra", "[esper.plugins]\nextra = my_package\n", requires="Requires-Dist: esper-core<0.1\n")
    (record,) = [record for record in load_plugins().records if record.id == "extra"]
    assert [problem.code for problem in record.problems] == ["E212"]


@pytest.mark.members
@pytest.mark.parametrize(
    ("entry_points", "version"),
    [
        (b"[esper.plugins]\nextra = \xff\xfe", "1.0"),
        ("[esper.plugins]\nnonsense\n", "1.0"),
        ("[esper.plugins]\na=b", None),
    ],
)
def test_damaged_metadata_of_one_package_does_not_stop_the_others(workshop, entry_points, version) -> None:
    install(workshop, "damaged", entry_points, version=version)
    found = load_plugins()
    assert "blueprints" in [record.id for record in found.records]
    (problem,) = found.problems
    assert problem.code == "E223"
    assert " cannot be read: " in problem.message


@pytest.mark.members
def test_the_members_bring_what_they_should_and_nothing_is_wrong() -> None:
    found = load_plugins()
    assert found.problems == ()
    assert {record.id for record in found.records} >= {"blueprints", "policies", "rewards", "tasks"}
    assert {component.id for component in found.registry.components()} >= {
        "blueprints/conv_light",
        "policies/schedule",
        "rewards/team",
        "tasks/mnist1d",
        "tasks/pointwise-mlp",
    }


def test_every_component_of_the_members_loads() -> None:
    for component in load_plugins().registry.components():
        assert callable(component.load())
        component.settings_model()


def test_whatever_is_broken_what_is_whole_is_loaded(load, workshop) -> None:
    found = load(
        workshop.package("import not_there", plugin="a"),
        workshop.package("from esper_core import hookimpl\n@hookimpl\ndef esper_nope(): pass", plugin="b"),
        workshop.package(requires=["esper-core>9"], plugin="c"),
        workshop.package("", plugin="d", name="d-one"),
        workshop.package("", plugin="d", name="d-two"),
        workshop.blueprints("Bad", plugin="e"),
        workshop.blueprints("tiny", plugin="f"),
    )
    assert [(record.id, record.status) for record in found.records] == [
        ("a", "broken"),
        ("b", "broken"),
        ("c", "rejected"),
        ("d", "rejected"),
        ("d", "rejected"),
        ("e", "broken"),
        ("f", "active"),
    ]
    assert [problem.code for problem in found.problems] == ["E210", "E213", "E212", "E211", "E216"]
    assert [component.id for component in found.registry.components()] == ["f/tiny"]


def test_nothing_is_printed_while_loading(load, workshop, capfd) -> None:
    load(workshop.package("import not_there"), workshop.blueprints("Bad", plugin="bad"))
    assert capfd.readouterr() == ("", "")


def test_the_order_of_installation_changes_nothing(load, workshop) -> None:
    packages = [workshop.blueprints("a", plugin="one"), workshop.blueprints("b", plugin="two")]
    forwards, backwards = load(*packages), load(*reversed(packages))
    assert [record.id for record in forwards.records] == [record.id for record in backwards.records]
    assert forwards.registry.components() == backwards.registry.components()


def test_only_active_plugins_are_left_with_pluggy(load, workshop) -> None:
    found = load(
        workshop.blueprints("tiny"), workshop.blueprints("Bad", plugin="bad"), workshop.package("1/0", plugin="c")
    )
    assert [name for name, _ in found.manager.list_name_plugin()] == ["extra"]


def test_what_is_found_cannot_be_changed(load, workshop) -> None:
    found = load(workshop.blueprints("tiny"))
    with pytest.raises(FrozenInstanceError):
        found.records[0].status = "broken"
    with pytest.raises(FrozenInstanceError):
        found.registry.components()[0].id = "x"
    assert isinstance(found.registry.components(), tuple)


def test_a_record_is_plain_json(load, workshop) -> None:
    (record,) = load(workshop.package("1 / 0")).records
    told = json.loads(json.dumps(record.as_json()))
    assert list(told) == [
        "id",
        "package",
        "version",
        "origin",
        "api",
        "hooks",
        "components",
        "status",
        "problems",
        "load_ms",
        "sha256",
    ]
    assert told["problems"][0]["code"] == "E210"


def test_only_the_group_that_is_asked_for_is_found(workshop) -> None:
    package = workshop.package("")
    assert discover("esper.commands", [package]) == ((), ())
    ((announcement,), _) = discover("esper.plugins", [package])
    assert (announcement.name, announcement.package, announcement.version) == ("extra", "esper-extra", "0.2.0")


def test_the_extras_of_an_entry_point_are_no_part_of_its_target(workshop) -> None:
    package = workshop.package("", target="esper_extra [all]")
    ((announcement,), _) = discover("esper.plugins", [package])
    assert announcement.target == "esper_extra"


def test_fifty_packages_are_loaded_in_a_blink(load, workshop) -> None:
    """Without what the packages themselves take; a generous bound, for machines that are busy."""
    packages = [workshop.blueprints("a", "b", "c", plugin=f"p{number}") for number in range(50)]
    load(*packages)
    started = time.perf_counter()
    found = load(*packages)
    assert time.perf_counter() - started < 0.5
    assert len(found.registry.components()) == 150


def test_the_public_names_are_sorted_and_there() -> None:
    assert plugins.__all__ == sorted(plugins.__all__) == sorted(plugins._HOME)
    assert [name for name in plugins.__all__ if not hasattr(plugins, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        plugins.nope  # noqa: B018


@pytest.mark.members
def test_loading_plugins_imports_no_torch() -> None:
    program = (
        "import sys; from esper_core.plugins import load_plugins; f = load_plugins(); "
        "print('torch' in sys.modules, 'rich' in sys.modules, len(f.records) > 3)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False False True\n"
