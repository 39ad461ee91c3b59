"""Checkpoints: whole or not there, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from esper_core.leyline import RunFolderError, State
from esper_core.runs import checkpoints
from esper_core.runs.checkpoints import Checkpoints
from esper_core.runs.directory import run_lock
from esper_core.telemetry import EventFile


def state(number: int) -> State:
    return State.of({"inner": State({"n": number}, {"w": torch.full((3,), float(number))})}, number=number)


def newest(run: Path) -> tuple[int, float]:
    found = Checkpoints(run).newest()
    assert found is not None
    number, read, _ = found
    assert read.plain["number"] == read.part("inner").plain["n"]
    return number, read.part("inner").tensors["w"][0].item()


def test_run_13_the_newest_comes_back_and_the_oldest_go(tmp_path):
    store = Checkpoints(tmp_path, kept=2)
    assert store.newest() is None
    for number in (1, 2, 3):
        store.write(number, state(number))
    assert newest(tmp_path) == (3, 3.0)
    assert sorted(one.name for one in (tmp_path / "checkpoints").iterdir()) == ["000002", "000003"]
    assert (tmp_path / "latest").read_text() == "000003\n"
    files = {one.suffix for one in (tmp_path / "checkpoints" / "000003").iterdir()}
    assert files == {".safetensors", ".json", ""}, "nothing is pickled"


class Died(BaseException):
    """The process is gone."""


CALLS = ("fsync", "rename", "replace", "mkdir", "rmtree")


def test_run_13_whenever_the_process_dies_while_it_writes_there_is_a_whole_one(tmp_path, monkeypatch):
    """It dies at each call to the system in turn, before it or after it."""
    import shutil

    def dying(at: int) -> bool:
        seen = 0

        def watched(call):
            def wrapper(*args, **named):
                nonlocal seen
                seen += 1
                if seen == at:
                    raise Died
                result = call(*args, **named)
                seen += 1
                if seen == at:
                    raise Died
                return result

            return wrapper

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", watched(os.fsync))
            for name in ("rename", "replace", "mkdir"):
                patch.setattr(Path, name, watched(getattr(Path, name)))
            patch.setattr(shutil, "rmtree", watched(shutil.rmtree))
            try:
                Checkpoints(tmp_path, kept=1).write(2, state(2))
            except Died:
                return True
        return False

    at = 1
    while True:
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        Checkpoints(tmp_path, kept=1).write(1, state(1))
        died = dying(at)
        number, value = newest(tmp_path)
        assert value == number
        assert number in (1, 2)
        Checkpoints(tmp_path, kept=1).write(2, state(2))  # it goes on, over whatever is left
        assert newest(tmp_path) == (2, 2.0)
        if not died:
            break
        at += 1
    assert at > 20


def test_a_checkpoint_is_renamed_into_place_only_after_its_files_were_synced(tmp_path, monkeypatch):
    """A power cut must not leave a complete folder name with empty files in it."""
    synced: dict[int, int] = {}
    renamed: dict[str, set[str]] = {}
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        about = os.fstat(descriptor)
        synced[about.st_ino] = about.st_size

    def is_synced(path: Path) -> bool:
        """Whether the last sync saw the path as it is now."""
        return synced.get(path.stat().st_ino) == path.stat().st_size

    def rename(source: Path, target: Path) -> Path:
        assert is_synced(source), "the folder that is renamed lists its files"
        renamed[target.name] = {file.name for file in source.iterdir() if is_synced(file)}
        synced.pop(target.parent.stat().st_ino, None)  # whatever was synced of it, this rename was not
        return real_rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "rename", rename)
        Checkpoints(tmp_path).write(1, state(1))
    assert renamed == {"000001": {"tensors.safetensors", "state.json", "COMPLETE"}}
    assert is_synced(tmp_path / "checkpoints"), "the rename itself is on disk"


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "FORMAT", checkpoints.FORMAT + 1)
        Checkpoints(tmp_path).write(1, state(1))
    with pytest.raises(RunFolderError, match="000001: it has format 2; this esper-core reads format 1") as caught:
        Checkpoints(tmp_path).newest()
    assert caught.value.problems[0].code == "E413"


def test_newest_passes_over_checkpoints_that_the_caller_cannot_use(tmp_path):
    store = Checkpoints(tmp_path, kept=3)
    for number in (1, 2, 3):
        store.write(number, state(number))
    (tmp_path / "checkpoints" / "000003" / "COMPLETE").write_bytes(b"")
    found = store.newest(lambda state: "too new" if state.plain["number"] > 1 else None)
    assert found is not None
    assert (found.number, found.skipped[1]) == (1, "000002: too new")
    assert found.skipped[0].startswith("000003: JSONDecodeError")
    with pytest.raises(RunFolderError, match="000001: unsuitable"):
        store.newest(lambda state: "unsuitable")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_run_13_a_disk_that_takes_no_more_is_told_and_the_last_one_is_intact(tmp_path, monkeypatch, code):
    store = Checkpoints(tmp_path)
    store.write(1, state(1))

    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match=os.strerror(code)) as caught:
            store.write(2, state(2))
    assert caught.value.problems[0].code == "E410"
    assert newest(tmp_path) == (1, 1.0)
    assert [one.name for one in (tmp_path / "checkpoints").iterdir()] == ["000001"], "nothing half is left"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tensors.safetensors", lambda data: data[:-1]),
        ("tensors.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        ("state.json", lambda data: data.replace(b'"n": 2', b'"n": 3')),
        ("state.json", lambda data: b""),
        ("COMPLETE", lambda data: data[:10]),
        ("COMPLETE", lambda data: b"[]"),
    ],
)
def test_a_damaged_one_is_passed_over_and_with_none_left_it_is_told(tmp_path, file, damage):
    store = Checkpoints(tmp_path)
    store.write(1, state(1))
    store.write(2, state(2))
    broken = tmp_path / "checkpoints" / "000002" / file
    broken.write_bytes(damage(broken.read_bytes()))
    assert newest(tmp_path) == (1, 1.0)

    (tmp_path / "checkpoints" / "000001" / "COMPLETE").unlink()
    with pytest.raises(RunFolderError, match="can be used") as caught:
        store.newest()
    assert caught.value.problems[0].code == "E413"


@pytest.mark.parametrize("file", ["COMPLETE", "state.json", "tensors.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "nested"])
def test_a_checkpoint_with_something_in_the_place_of_a_file_is_passed_over(tmp_path, file, kind):
    store = Checkpoints(tmp_path)
    store.write(1, state(1))
    store.write(2, state(2))
    place = tmp_path / "checkpoints" / "000002" / file
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.write_text("[" * 100_000)
    assert newest(tmp_path) == (1, 1.0)


def test_latest_is_written_in_the_place_of_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "latest")
    Checkpoints(tmp_path).write(1, state(1))
    assert (tmp_path / "latest").read_text() == "000001\n"


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_one_that_was_just_written_stays_whatever_damaged_ones_stand_behind_it(tmp_path, kept):
    for number in (4, 8, 9, 10):
        Checkpoints(tmp_path, kept=4).write(number, state(number))
    for number in (8, 9, 10):
        (tmp_path / "checkpoints" / f"{number:06}" / "COMPLETE").write_bytes(b"")
    Checkpoints(tmp_path, kept=kept).write(5, state(5))
    assert newest(tmp_path) == (5, 5.0)
    left = [one.name for one in (tmp_path / "checkpoints").iterdir()]
    assert sorted(left) == ["000004", "000005"][-kept:]


def test_checkpoints_that_cannot_be_seen_are_not_taken_for_none(tmp_path):
    """Without this a run would begin anew, and what it told be cut off."""
    (tmp_path / "checkpoints").write_text("a file in place of the folder")
    with pytest.raises(RunFolderError, match="cannot be read: Not a directory") as caught:
        Checkpoints(tmp_path).newest()
    assert caught.value.problems[0].code == "E413"


def test_a_state_that_json_cannot_hold_is_a_fault_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Checkpoints(tmp_path).write(1, State({"loss": float("nan")}))
    assert Checkpoints(tmp_path).newest() is None


@pytest.mark.parametrize("name", [".lock", "events.jsonl"])
def test_a_link_in_a_run_directory_is_refused_and_its_target_unchanged(tmp_path, name):
    """A run directory of somebody else may have a link to a file of the user's."""
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    opened = {".lock": lambda: run_lock(tmp_path).__enter__(), "events.jsonl": lambda: EventFile(tmp_path / name)}
    with pytest.raises(RunFolderError, match="it is a link") as caught:
        opened[name]()
    assert caught.value.problems[0].code == "E410"
    assert precious.read_text() == "mine"


HOLD = """
import sys
from pathlib import Path
from esper_core.runs.directory import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_process_is_refused_until_the_first_has_ended_or_was_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(RunFolderError, match="in use by another process") as caught,
            run_lock(tmp_path),
        ):
            pytest.fail("it was let in")
        assert caught.value.problems[0].code == "E412"
        first.kill()
    with run_lock(tmp_path):
        pass
