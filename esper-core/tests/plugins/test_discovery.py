"""Discovery: which plugins may be imported, decided from metadata; one-file plugins."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from esper_core.plugins import load_plugins
from esper_core.plugins.discovery import discover, is_name, read_local, safe_mode_from_environment

NEVER = "raise AssertionError('its code was run')"


def test_disabled_plugin_is_not_imported_and_not_a_problem(load, workshop) -> None:
    found = load(workshop.package(NEVER), disable=["extra"])
    assert [(record.status, record.load_ms) for record in found.records] == [("disabled", None)]
    assert found.problems == ()


def test_plugin_id_declared_by_two_packages_rejects_both(load, told, workshop) -> None:
    rivals = [workshop.package(NEVER, name="esper-extra"), workshop.package(NEVER, name="other-extra", version="1.0")]
    assert [record.status for record in load(*rivals).records] == ["rejected", "rejected"]
    assert told(*rivals) == (
        'E211 2 packages declare plugin "extra": esper-extra 0.2.0 and other-extra 1.0; neither is loaded\n'
        "  Keep one of them:\n"
        "    pip uninstall esper-extra\n"
        "    pip uninstall other-extra"
    )


def test_duplicate_of_a_first_party_plugin_is_the_one_to_uninstall(told, workshop) -> None:
    ours = workshop.package(NEVER, plugin="blueprints", version="0.1.0")
    rival = workshop.package(NEVER, plugin="blueprints", name="evil", version="6.6.6")
    assert told(ours, rival) == (
        'E211 2 packages declare plugin "blueprints": esper-blueprints 0.1.0 and evil 6.6.6; neither is loaded\n'
        "  Keep one of them:  pip uninstall evil"
    )


def test_plugin_id_declared_twice_by_one_package_is_rejected(told, workshop) -> None:
    package = workshop.package(NEVER)
    twice = replace(package, entry_points=(*package.entry_points, EntryPoint("extra", "elsewhere", "esper.plugins")))
    assert told(twice) == (
        'E211 package esper-extra 0.2.0 declares plugin "extra" twice, as elsewhere and esper_extra;'
        " neither is loaded\n"
        "  Tell the author of esper-extra."
    )


def test_disabling_a_duplicate_id_is_no_problem(load, workshop) -> None:
    rivals = [workshop.package(NEVER, name="esper-extra"), workshop.package(NEVER, name="other-extra")]
    found = load(*rivals, disable=["extra"])
    assert ([record.status for record in found.records], found.problems) == (["disabled"] * 2, ())


def test_package_found_twice_on_the_path_counts_once(load, workshop) -> None:
    package = workshop.blueprints("tiny")
    found = load(package, replace(package, name="Esper_Extra", version="0.1.0"))
    assert [(record.version, record.status) for record in found.records] == [("0.2.0", "active")]


def test_plugin_for_another_core_version_is_not_imported(load, told, workshop) -> None:
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
def test_requirement_that_is_met_or_does_not_apply_is_accepted(load, workshop, requires) -> None:
    assert [record.status for record in load(workshop.blueprints("tiny", requires=requires)).records] == ["active"]


def test_all_requirements_on_the_core_are_checked(load, workshop) -> None:
    package = workshop.package(NEVER, requires=["esper-core>=0.1", "esper-core<0.1"])
    assert [record.status for record in load(package).records] == ["rejected"]


def test_invalid_requirement_is_reported(told, workshop) -> None:
    text = told(workshop.package(NEVER, requires=["esper-core>=0.1,<oops"]))
    assert text.startswith(
        'E212 plugin "extra" (esper-extra 0.2.0) has an invalid requirement, "esper-core>=0.1,<oops": '
    )
    assert text.endswith("; its code was not run\n  Tell the author of esper-extra.")


@pytest.mark.parametrize("name", ["Extra", "", "a b", "evil/team", "-a", "a--b", "a" * 49, "\x1b[31m"])
def test_invalid_plugin_id_is_rejected(load, workshop, name: str) -> None:
    package = workshop.package(NEVER)
    found = load(replace(package, entry_points=(EntryPoint(name, "esper_extra", "esper.plugins"),)))
    assert [record.status for record in found.records] == ["rejected"]
    assert [str(problem) for problem in found.problems] == [
        f'E216 package esper-extra 0.2.0 declares a plugin with an invalid id: "{name}"\n'
        "  Lower case letters and digits, joined by single - or _, at most 48 characters."
        " Tell the author of esper-extra."
    ]


@pytest.mark.parametrize("name", ["a", "tiny-conv", "conv_light", "conv3x3", "a" * 48])
def test_valid_names_are_accepted(name: str) -> None:
    assert is_name(name)


def test_safe_mode_loads_first_party_plugins_only(load, workshop, monkeypatch) -> None:
    ours, theirs = workshop.blueprints("tiny", plugin="blueprints"), workshop.package(NEVER)
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    found = load(ours, theirs)
    assert [(record.id, record.status) for record in found.records] == [
        ("blueprints", "active"),
        ("extra", "not-listed"),
    ]
    assert found.problems == ()
    assert [record.status for record in load(workshop.blueprints("tiny"), safe_mode=False).records] == ["active"]


def test_safe_mode_ignores_duplicates_of_first_party_ids(load, workshop) -> None:
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


def test_unknown_id_in_disable_is_reported_with_a_suggestion(told, workshop) -> None:
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


def test_discover_returns_the_requested_group_only(workshop) -> None:
    package = workshop.package("")
    assert discover("esper.commands", [package]) == ((), ())
    ((announcement,), _) = discover("esper.plugins", [package])
    assert (announcement.name, announcement.package, announcement.version) == ("extra", "esper-extra", "0.2.0")


def test_extras_are_not_part_of_an_entry_point_target(workshop) -> None:
    package = workshop.package("", target="esper_extra [all]")
    ((announcement,), _) = discover("esper.plugins", [package])
    assert announcement.target == "esper_extra"


PLUGIN = "from esper_core import hookimpl\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A one-file plugin that is in order."""
    path = tmp_path / "going_away.py"
    path.write_text(PLUGIN)
    return path


def remove(path: Path) -> None:
    path.unlink()


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.fixture
def after_the_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """``after_the_look(remove)``: as soon as the file was found to be there, this happens to it."""

    def arrange(change: Callable[[Path], None]) -> None:
        look = Path.stat

        def and_then(self: Path, **more: bool) -> os.stat_result:
            found = look(self, **more)
            if self.name == "going_away.py" and stat.S_ISREG(found.st_mode):
                monkeypatch.setattr(Path, "stat", look)
                change(self)
            return found

        monkeypatch.setattr(Path, "stat", and_then)

    return arrange


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (remove, 'there is no plugin file "{}"', "The path is relative to the configuration's folder."),
        (
            become_a_folder,
            "the plugin file \"{}\" cannot be read: [Errno 21] Is a directory: '{}'",
            "Check the path and the permissions.",
        ),
    ],
)
def test_file_that_disappears_while_it_is_read_is_reported(
    change, message: str, hint: str, file: Path, after_the_look
) -> None:
    after_the_look(change)
    found, problems = read_local([file])
    assert found == ()
    assert [(one.code, one.message, one.path, one.hint) for one in problems] == [
        ("E227", message.format(file, file), "plugins.local[0]", hint)
    ]


def test_unreadable_file_is_reported(file: Path, monkeypatch) -> None:
    def refuse(self: Path, *more: object, **others: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    (problem,) = read_local([file])[1]
    assert problem.message == f"the plugin file \"{file}\" cannot be read: [Errno 13] Permission denied: '{file}'"


def test_file_deleted_after_reading_still_loads(file: Path, monkeypatch) -> None:
    from esper_core.plugins import discovery as local

    look = local.find_spec

    def and_then(name: str) -> object:
        file.unlink(missing_ok=True)
        return look(name)

    monkeypatch.setattr(local, "find_spec", and_then)
    loaded = load_plugins(distributions=(), local=[file])
    assert not file.exists()
    assert [(record.id, record.status) for record in loaded.records] == [("going-away", "active")]
    assert loaded.files[0].source == PLUGIN.encode()


def test_file_that_is_too_large_is_refused(file: Path) -> None:
    file.write_text("#" * (1 << 20))
    assert read_local([file])[1] == []
    file.write_text("#" * ((1 << 20) + 1))
    (problem,) = read_local([file])[1]
    assert problem.message == f'the plugin file "{file}" is larger than 1,048,576 bytes'
