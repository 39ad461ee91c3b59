"""Is what a folder gives always what was put there, whole, and does the folder never take more than its room?"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch

from esper_core.app.prefix_folder import STALE, PrefixFolder
from esper_core.leyline import State

KEY = "ab" * 32
ROOM = 1 << 24


def folder(home: Path, key: str = KEY, room: int = ROOM) -> PrefixFolder:
    return PrefixFolder(home, key, room)


def a_state(number: float = 0.1, size: int = 3) -> State:
    return State({"told": {"number": number, "words": ["a\nb", None]}}, {"early/w": torch.full((size,), number)})


def same(one: State | None, two: State) -> bool:
    return (
        one is not None and one.plain == two.plain and all(map(torch.equal, one.tensors.values(), two.tensors.values()))
    )


def only(home: Path) -> Path:
    (file,) = home.iterdir()
    return file


def taken(home: Path) -> int:
    return sum(one.stat().st_size for one in home.iterdir())


def test_what_one_process_keeps_another_one_has(tmp_path):
    here, there = folder(tmp_path / "a" / "b"), folder(tmp_path / "a" / "b")
    assert there.read("state", "x") is None
    here.write("state", "x", a_state())
    assert same(there.read("state", "x"), a_state())
    there.write("moment", "y", State({"n": 1}))
    assert same(here.read("moment", "y"), State({"n": 1}))


def test_another_configuration_kind_or_name_has_nothing_of_it(tmp_path):
    folder(tmp_path).write("state", "x", a_state())
    assert folder(tmp_path).read("state", "y") is None
    assert folder(tmp_path).read("moment", "x") is None
    assert folder(tmp_path, "cd" * 32).read("state", "x") is None


def test_a_file_that_was_cut_short_anywhere_is_as_if_it_were_not_there(tmp_path, caplog):
    one = State({"n": 1}, {"w": torch.ones(2)})
    folder(tmp_path).write("state", "x", one)
    path = only(tmp_path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        caplog.clear()
        again = folder(tmp_path)
        assert again.read("state", "x") is None, length
        assert [record.getMessage() for record in caplog.records] == [
            f"{path} does not count, and is trained again: it is not what was written"
        ]
        again.write("state", "x", one)
        assert path.read_bytes() == data, "it is put in its place again"
    assert same(folder(tmp_path).read("state", "x"), one)


def test_a_bit_that_fell_over_anywhere_is_found(tmp_path):
    folder(tmp_path).write("state", "x", State({"n": 1}, {"w": torch.ones(2)}))
    path = only(tmp_path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert folder(tmp_path).read("state", "x") is None, place


@pytest.mark.parametrize("other", [("state", "y", KEY), ("twin", "x", KEY), ("state", "x", "cd" * 32)])
def test_a_whole_file_of_something_else_in_its_place_does_not_count(tmp_path, caplog, other):
    kind, name, key = other
    folder(tmp_path / "other", key).write(kind, name, a_state())
    folder(tmp_path / "own").write("state", "x", a_state())
    path = only(tmp_path / "own")
    path.write_bytes(only(tmp_path / "other").read_bytes())
    assert folder(tmp_path / "own").read("state", "x") is None
    assert "it is of something else" in caplog.text
    assert not path.exists()


def test_a_file_of_another_format_does_not_count(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("esper_core.app.prefix_folder.FORMAT", 2)
        folder(tmp_path).write("state", "x", a_state())
        assert folder(tmp_path).read("state", "x") is not None
    assert folder(tmp_path).read("state", "x") is None


def test_what_a_killed_process_had_begun_is_nothing_and_is_removed_in_time(tmp_path, monkeypatch):
    class Killed(BaseException):
        """The process is gone."""

    def killed(self, target):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            folder(tmp_path).write("state", "x", a_state())
    begun = only(tmp_path)
    begun.write_bytes(begun.read_bytes()[:-5])
    again = folder(tmp_path)
    assert again.read("state", "x") is None
    again.write("state", "x", a_state())
    assert same(again.read("state", "x"), a_state())
    assert begun.exists(), "another process may be at it"
    long_ago = time.time() - STALE - 60
    os.utime(begun, (long_ago, long_ago))
    folder(tmp_path).write("state", "y", a_state())
    assert not begun.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_it_never_takes_more_than_its_room_and_what_was_of_use_last_stays(tmp_path):
    room, own = 400_000, folder(tmp_path, room=400_000)
    own.write("moment", "liked", a_state(size=10))
    for number in range(60):
        own.write("moment", str(number), a_state(size=5000))
        assert taken(tmp_path) <= room
        assert own.read("moment", "liked") is not None
    assert own.read("moment", "0") is None
    assert own.read("moment", "59") is not None
    assert taken(tmp_path) > room / 2


def test_two_processes_share_one_room(tmp_path):
    room, one, two = 400_000, folder(tmp_path, room=400_000), folder(tmp_path, "cd" * 32, room=400_000)
    for number in range(40):
        for own in (one, two):
            own.write("state", str(number), a_state(size=5000))
            assert taken(tmp_path) <= room


def test_states_drive_out_no_moments(tmp_path):
    own = folder(tmp_path, room=400_000)
    for number in range(20):
        own.write("moment", str(number), State({"n": number}))
    for number in range(60):
        own.write("state", str(number), a_state(size=5000))
    assert all(own.read("moment", str(number)) for number in range(20))
    assert own.read("state", "59") is not None


def test_what_is_not_its_own_it_leaves_alone(tmp_path):
    foreign = [tmp_path / name for name in ("notes.txt", "x.state", f".{'0' * 16}.part", "big.moment")]
    for path in foreign:
        path.write_bytes(b"mine" * 100_000)
        os.utime(path, (0, 0))
    own = folder(tmp_path, room=200_000)
    for number in range(30):
        own.write("state", str(number), a_state(size=2000))
    assert all(path.read_bytes() == b"mine" * 100_000 for path in foreign)


def test_what_is_too_large_for_the_room_is_not_kept_and_that_is_told_once(tmp_path, caplog):
    own = folder(tmp_path, room=16_000)
    for name in "xy":
        own.write("state", name, a_state(size=5000))
    assert not list(tmp_path.iterdir())
    assert [record.getMessage() for record in caplog.records] == [
        f"what takes more than 1,000 bytes is not kept in {tmp_path}: a state"
    ]
    with pytest.raises(ValueError, match="Received: 0"):
        folder(tmp_path, room=0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EFBIG])
@pytest.mark.parametrize("call", ["write_bytes", "replace", "mkdir", "exists"])
def test_a_disk_that_takes_no_more_is_told_once_and_what_is_there_is_given(tmp_path, monkeypatch, caplog, code, call):
    folder(tmp_path).write("state", "x", a_state())
    own = folder(tmp_path)

    def full(self, *arguments, **named):
        if call == "write_bytes":
            with self.open("wb") as file:
                file.write(b"half")
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, full)
        for name in "yz":
            own.write("state", name, a_state())
    own.write("state", "later", a_state())
    assert [record.getMessage() for record in caplog.records] == [
        f"nothing more is kept in {tmp_path}: {os.strerror(code)}"
    ]
    assert same(own.read("state", "x"), a_state())
    assert len(list(tmp_path.iterdir())) == 1, "nothing half is left"


def test_a_file_where_the_folder_should_be_is_told_once(tmp_path, caplog):
    (tmp_path / "home").write_text("a file")
    own = folder(tmp_path / "home")
    for name in "xy":
        assert own.read("state", name) is None
        own.write("state", name, a_state())
    assert len(caplog.records) == 1
    assert "nothing more is kept in" in caplog.text


def test_a_folder_that_is_left_alone_is_neither_read_nor_written(tmp_path, caplog):
    own = folder(tmp_path)
    own.write("state", "x", a_state())
    own.close("so it is.")
    own.write("state", "y", a_state())
    assert own.read("state", "x") is None
    assert len(list(tmp_path.iterdir())) == 1
    assert "is left alone from now on: so it is." in caplog.text
