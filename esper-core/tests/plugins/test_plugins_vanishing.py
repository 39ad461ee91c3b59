"""A one-file plugin that goes away while it is looked at: the designed error, and never the system's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from esper_core.plugins import load_plugins
from esper_core.plugins.discovery import read_local

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
def test_a_file_that_goes_away_between_the_look_and_the_reading_is_told(
    change, message: str, hint: str, file: Path, after_the_look
) -> None:
    after_the_look(change)
    found, problems = read_local([file])
    assert found == ()
    assert [(one.code, one.message, one.path, one.hint) for one in problems] == [
        ("E227", message.format(file, file), "plugins.local[0]", hint)
    ]


def test_a_file_that_must_not_be_read_is_told(file: Path, monkeypatch) -> None:
    def refuse(self: Path, *more: object, **others: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    (problem,) = read_local([file])[1]
    assert problem.message == f"the plugin file \"{file}\" cannot be read: [Errno 13] Permission denied: '{file}'"


def test_what_becomes_of_the_file_once_it_was_read_makes_no_difference(file: Path, monkeypatch) -> None:
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


def test_a_file_that_is_too_large_is_refused_by_what_was_read_of_it(file: Path) -> None:
    file.write_text("#" * (1 << 20))
    assert read_local([file])[1] == []
    file.write_text("#" * ((1 << 20) + 1))
    (problem,) = read_local([file])[1]
    assert problem.message == f'the plugin file "{file}" is larger than 1,048,576 bytes'
