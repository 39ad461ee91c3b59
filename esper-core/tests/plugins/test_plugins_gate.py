"""Which plugins may be imported: told from metadata, before any of their code has run."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from esper_core.plugins.discovery import is_name, safe_mode_from_environment

NEVER = "raise AssertionError('its code was run')"


def test_a_disabled_plugin_is_not_imported_and_is_no_problem(load, workshop) -> None:
    found = load(workshop.package(NEVER), disable=["extra"])
    assert [(record.status, record.load_ms) for record in found.records] == [("disabled", None)]
    assert found.problems == ()


def test_two_packages_with_one_plugin_id_are_both_left_out(load, told, workshop) -> None:
    rivals = [workshop.package(NEVER, name="esper-extra"), workshop.package(NEVER, name="other-extra", version="1.0")]
    assert [record.status for record in load(*rivals).records] == ["rejected", "rejected"]
    assert told(*rivals) == (
        'E211 2 packages declare plugin "extra": esper-extra 0.2.0 and other-extra 1.0; neither is loaded\n'
        "  Keep one of them:\n"
        "    pip uninstall esper-extra\n"
        "    pip uninstall other-extra"
    )


def test_a_rival_of_a_first_party_plugin_is_the_one_to_remove(told, workshop) -> None:
    ours = workshop.package(NEVER, plugin="blueprints", version="0.1.0")
    rival = workshop.package(NEVER, plugin="blueprints", name="evil", version="6.6.6")
    assert told(ours, rival) == (
        'E211 2 packages declare plugin "blueprints": esper-blueprints 0.1.0 and evil 6.6.6; neither is loaded\n'
        "  Keep one of them:  pip uninstall evil"
    )


def test_a_package_that_announces_one_id_twice_is_left_out(told, workshop) -> None:
    package = workshop.package(NEVER)
    twice = replace(package, entry_points=(*package.entry_points, EntryPoint("extra", "elsewhere", "esper.plugins")))
    assert told(twice) == (
        'E211 package esper-extra 0.2.0 declares plugin "extra" twice, as elsewhere and esper_extra;'
        " neither is loaded\n"
        "  Tell the author of esper-extra."
    )


def test_disabling_an_id_settles_who_has_it(load, workshop) -> None:
    rivals = [workshop.package(NEVER, name="esper-extra"), workshop.package(NEVER, name="other-extra")]
    found = load(*rivals, disable=["extra"])
    assert ([record.status for record in found.records], found.problems) == (["disabled"] * 2, ())


def test_a_package_that_stands_on_the_path_twice_is_one(load, workshop) -> None:
    package = workshop.blueprints("tiny")
    found = load(package, replace(package, name="Esper_Extra", version="0.1.0"))
    assert [(record.version, record.status) for record in found.records] == [("0.2.0", "active")]


def test_a_plugin_that_needs_another_core_is_not_run(load, told, workshop) -> None:
    package = workshop.package(NEVER, requires=["torch", "esper-core>=9,<10"])
    assert [(record.status, record.load_ms) for record in load(package).records] == [("rejected", None)]
    assert told(package) == (
        'E212 plugin "extra" (esper-extra 0.2.0) needs esper-core <10,>=9, and this is 0.1.0; its code was not run\n'
        "  Bring them together:  pip install --upgrade esper-core esper-extra"
    )


@pytest.mark.parametrize(
    "requires",
    [
        None,
        [],
        ["torch>=99"],
        ["esper_core>=0.1"],
        ["Esper.Core (>=0.1)"],
        ["esper-core"],
        ["esper-core @ file:///somewhere"],
        ['esper-core>=9; python_version < "3"'],
        ['esper-core>=9; extra == "test"'],
        ["esper-core-extra>=9"],
    ],
)
def test_a_requirement_that_is_met_or_does_not_apply_is_no_obstacle(load, workshop, requires) -> None:
    assert [record.status for record in load(workshop.blueprints("tiny", requires=requires)).records] == ["active"]


def test_every_requirement_on_the_core_counts(load, workshop) -> None:
    package = workshop.package(NEVER, requires=["esper-core>=0.1", "esper-core<0.1"])
    assert [record.status for record in load(package).records] == ["rejected"]


def test_a_requirement_that_cannot_be_read_is_told(told, workshop) -> None:
    text = told(workshop.package(NEVER, requires=["esper-core>=0.1,<oops"]))
    assert text.startswith(
        'E212 plugin "extra" (esper-extra 0.2.0) has an invalid requirement, "esper-core>=0.1,<oops": '
    )
    assert text.endswith("; its code was not run\n  Tell the author of esper-extra.")


@pytest.mark.parametrize("name", ["Extra", "", "a b", "evil/team", "-a", "a--b", "a" * 49, "\x1b[31m"])
def test_an_id_that_cannot_stand_in_a_name_is_refused(load, workshop, name: str) -> None:
    package = workshop.package(NEVER)
    found = load(replace(package, entry_points=(EntryPoint(name, "esper_extra", "esper.plugins"),)))
    assert [record.status for record in found.records] == ["rejected"]
    assert [str(problem) for problem in found.problems] == [
        f'E216 package esper-extra 0.2.0 declares a plugin with an invalid id: "{name}"\n'
        "  Lower case letters and digits, joined by single - or _, at most 48 characters."
        " Tell the author of esper-extra."
    ]


@pytest.mark.parametrize("name", ["a", "tiny-conv", "conv_light", "conv3x3", "a" * 48])
def test_a_name_in_lower_case_is_fine(name: str) -> None:
    assert is_name(name)


def test_safe_mode_loads_first_party_only(load, workshop, monkeypatch) -> None:
    ours, theirs = workshop.blueprints("tiny", plugin="blueprints"), workshop.package(NEVER)
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    found = load(ours, theirs)
    assert [(record.id, record.status) for record in found.records] == [
        ("blueprints", "active"),
        ("extra", "not-listed"),
    ]
    assert found.problems == ()
    assert [record.status for record in load(workshop.blueprints("tiny"), safe_mode=False).records] == ["active"]


def test_safe_mode_settles_who_has_a_first_party_id(load, workshop) -> None:
    ours = workshop.blueprints("tiny", plugin="blueprints")
    rival = workshop.package(NEVER, plugin="blueprints", name="evil")
    found = load(ours, rival, safe_mode=True)
    assert [(record.package, record.status) for record in found.records] == [
        ("esper-blueprints", "active"),
        ("evil", "not-listed"),
    ]


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False), ("No", False)])
def test_safe_mode_is_read_from_the_environment(monkeypatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("ESPER_SAFE_MODE", value)
    assert safe_mode_from_environment() is expected


def test_an_unknown_id_in_disable_is_told(told, workshop) -> None:
    assert told(workshop.blueprints("tiny"), disable=["extr", "watch", "zzz"]) == (
        'E208 unknown plugin "extr"\n'
        "  plugins.disable[0]\n"
        '  Did you mean "extra" (esper-extra 0.2.0)?\n'
        "  All plugins:  esper plugins list\n"
        'E208 unknown plugin "watch"\n'
        "  plugins.disable[1]\n"
        "  Install it:  pip install esper-watch\n"
        "  All plugins:  esper plugins list\n"
        'E208 unknown plugin "zzz"\n'
        "  plugins.disable[2]\n"
        "  All plugins:  esper plugins list"
    )
