"""Checkpoints: complete or absent, whatever happens while they are written; and the lock of a run."""

import errno
import os
import shutil
import subprocess
import sys
from functools import partial
from itertools import count, product
from pathlib import Path

import pytest
import torch

from esper_core.leyline import RunFolderError, State
from esper_core.telemetry import EventFile
from esper_run.runs import checkpoint_files as checkpoints
from esper_run.runs.checkpoint_files import Checkpoints
from esper_run.runs.directory import run_lock
from tests.support.special_files import put


def state(number: int) -> State:
    return State.of({"inner": State({"n": number}, {"w": torch.full((3,), float(number))})}, number=number)


def stored(run: Path, *numbers: int, kept: int = 3) -> Checkpoints:
    """Return the checkpoints of a run after these were written."""
    store = Checkpoints(run, kept=kept)
    for number in numbers:
        store.write(number, state(number))
    return store


def newest(run: Path) -> tuple[int, float]:
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    number, read, _ = checkpoint
    assert read.plain["number"] == read.part("inner").plain["n"]
    return number, read.part("inner").tensors["w"][0].item()


def test_run_13_the_newest_checkpoint_is_read_and_the_oldest_are_deleted(tmp_path):
    assert Checkpoints(tmp_path).newest() is None
    os.mkfifo(tmp_path / "latest")
    stored(tmp_path, 1, 2, 3, kept=2)
    assert newest(tmp_path) == (3, 3.0)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000002", "000003"]
    assert (tmp_path / "latest").read_text() == "000003\n"
    files = {path.suffix for path in (tmp_path / "checkpoints" / "000003").iterdir()}
    assert files == {".safetensors", ".json", ""}, "nothing is pickled"


class Died(BaseException):
    """Stands for the death of the process."""


def test_run_13_a_complete_checkpoint_is_left_wherever_a_write_is_killed(tmp_path, monkeypatch):
    """The process dies before or after each system call in turn."""

    def write_until(at: int) -> bool:
        """Write a checkpoint, and return whether the process died at the given point."""
        points = iter(range(1, 1000))

        def watched(call):
            def wrapper(*args, **named):
                if next(points) == at:
                    raise Died
                result = call(*args, **named)
                if next(points) == at:
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

    for at in count(1):
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        stored(tmp_path, 1, kept=1)
        died = write_until(at)
        number, value = newest(tmp_path)
        assert value == number
        assert number in (1, 2)
        stored(tmp_path, 2, kept=1)  # over the remains
        assert newest(tmp_path) == (2, 2.0)
        if not died:
            break
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
        """Return whether the path has not changed since it was synced."""
        return synced.get(path.stat().st_ino) == path.stat().st_size

    def rename(source: Path, target: Path) -> Path:
        assert is_synced(source), "the folder that is renamed lists its files"
        renamed[target.name] = {file.name for file in source.iterdir() if is_synced(file)}
        synced.pop(target.parent.stat().st_ino, None)  # the rename itself has not been synced
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
    formats = f"it has format {checkpoints.FORMAT + 1}; this esper-run reads format {checkpoints.FORMAT}"
    with pytest.raises(RunFolderError, match=rf"E413 (.|\n)*000001: {formats}"):
        Checkpoints(tmp_path).newest()


def test_checkpoints_that_the_caller_cannot_use_are_skipped(tmp_path):
    store = stored(tmp_path, 1, 2, 3)
    (tmp_path / "checkpoints" / "000003" / "COMPLETE").write_bytes(b"")
    checkpoint = store.newest(lambda state: "too new" if state.plain["number"] > 1 else None)
    assert checkpoint is not None
    assert (checkpoint.number, checkpoint.skipped[1]) == (1, "000002: too new")
    assert checkpoint.skipped[0].startswith("000003: JSONDecodeError")
    with pytest.raises(RunFolderError, match="000001: unsuitable"):
        store.newest(lambda state: "unsuitable")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_run_13_an_error_of_the_disk_is_reported_and_leaves_the_last_checkpoint(code, tmp_path, monkeypatch):
    store = stored(tmp_path, 1)

    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match=f"E410 .*{os.strerror(code)}"):
            store.write(2, state(2))
    assert newest(tmp_path) == (1, 1.0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000001"]


def replaced(change):
    """Damage: the content of a file is changed."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


SPECIAL = [partial(put, kind) for kind in ("pipe", "folder", "sparse", "nested")]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tensors.safetensors", replaced(lambda data: data[:-1])),
        ("tensors.safetensors", replaced(lambda data: data[:-1] + bytes([data[-1] ^ 1]))),
        ("state.json", replaced(lambda data: data.replace(b'"n": 2', b'"n": 3'))),
        ("state.json", replaced(lambda data: b"")),
        ("COMPLETE", replaced(lambda data: data[:10])),
        ("COMPLETE", replaced(lambda data: b"[]")),
        *product(("COMPLETE", "state.json", "tensors.safetensors"), SPECIAL),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_with_none_left_it_is_an_error(file, damage, tmp_path):
    store = stored(tmp_path, 1, 2)
    damage(tmp_path / "checkpoints" / "000002" / file)
    assert newest(tmp_path) == (1, 1.0)
    (tmp_path / "checkpoints" / "000001" / "COMPLETE").unlink()
    with pytest.raises(RunFolderError, match=r"E413 (.|\n)*can be used"):
        store.newest()


@pytest.mark.parametrize("kept", [1, 2])
def test_the_checkpoint_just_written_is_kept_rather_than_damaged_ones_of_later_steps(kept, tmp_path):
    stored(tmp_path, 4, 8, 9)
    for number in (8, 9):
        (tmp_path / "checkpoints" / f"{number:06}" / "COMPLETE").write_bytes(b"")
    stored(tmp_path, 5, kept=kept)
    assert newest(tmp_path) == (5, 5.0)
    left = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert sorted(left) == ["000004", "000005"][-kept:]


def test_a_folder_that_cannot_be_read_and_a_state_that_json_cannot_hold_are_errors(tmp_path):
    """Otherwise a run would start again, and its events would be cut off."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        Checkpoints(tmp_path).write(1, State({"loss": float("nan")}))
    assert Checkpoints(tmp_path).newest() is None
    (tmp_path / "checkpoints").write_text("a file in place of the folder")
    with pytest.raises(RunFolderError, match=r"E413 .*cannot be read: Not a directory"):
        Checkpoints(tmp_path).newest()


@pytest.mark.parametrize("name", [".lock", "events.jsonl"])
def test_a_link_in_a_run_directory_is_refused_and_its_target_unchanged(tmp_path, name):
    """A foreign run directory may contain a link to a file of the user's."""
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    opened = {".lock": lambda: run_lock(tmp_path).__enter__(), "events.jsonl": lambda: EventFile(tmp_path / name)}
    with pytest.raises(RunFolderError, match=r"E410 .*received a link"):
        opened[name]()
    assert precious.read_text() == "mine"


HOLD = """
import sys
from pathlib import Path
from esper_run.runs.directory import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_process_is_refused_until_the_first_one_ends_or_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=r"E412 .*in use by another process"), run_lock(tmp_path):
            pytest.fail("it was let in")
        first.kill()
    with run_lock(tmp_path):
        pass
