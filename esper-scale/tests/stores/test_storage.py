"""Runs in a storage: what is uploaded and read back, and what happens to torn, foreign and contested uploads."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from esper_core.leyline import RunFolderError
from esper_run.runs.records import list_runs, load_run
from esper_scale.stores import storage, uploads
from esper_scale.stores.storage import Storage, StoredRun, TakenOver, fetch_copy, fetch_whole
from esper_scale.stores.uploads import Claims, Extent, Owner, Upload, upload_run
from tests.support.waiting import until

STORE = "memory://bucket/prefix"
NAME = "20261121-101512-quiet-otter"
MANIFEST = {"format": 1, "id": NAME, "status": "running", "started": "2026-11-21T10:15:12+00:00"}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The objects of an empty memory:// by their paths."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(uploads, "PAUSES", (0.0,))
    return MemoryFileSystem.store


@pytest.fixture
def run(memory: Any) -> StoredRun:
    return Storage.open(STORE).run(NAME)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory after its first checkpoint."""
    path = tmp_path / "runs" / NAME
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps(MANIFEST))
    (path / "config.yaml").write_text("seed: 1\n")
    (path / "empty.txt").touch()
    advance(path, 1)
    return path


def advance(path: Path, checkpoint: int) -> Extent:
    """Add a checkpoint and events, and return what is to be uploaded then."""
    (path / "checkpoints" / f"{checkpoint:06}").mkdir(parents=True)
    for name in ("tensors.safetensors", "state.json", "COMPLETE"):
        (path / "checkpoints" / f"{checkpoint:06}" / name).write_text(f"{name} of {checkpoint}")
    (path / "latest").write_text(f"{checkpoint:06}\n")
    with (path / "events.jsonl").open("a") as events:
        events.write(f"event {checkpoint}\n")
        return Extent(checkpoint, events.tell())


def content(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_comes_back_as_it_was_with_its_newest_checkpoint(run, folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "PART_BYTES", 10)
    monkeypatch.setattr(uploads, "PART_BYTES", 10)
    (folder / ".lock").touch()
    (folder / "link").symlink_to("/etc/passwd")
    owner = Owner.claim(folder, run, 1)
    for number in (2, 3, 4):
        extent = advance(folder, number)
        events = (folder / "events.jsonl").read_bytes()
        with (folder / "events.jsonl").open("a") as file:
            file.write("not part of the checkpoint\n")
        owner.upload(extent)
        os.truncate(folder / "events.jsonl", len(events))
    expected = content(folder)
    for name in [*expected]:
        if name[:18] in ("checkpoints/000001", "checkpoints/000002", "checkpoints/000003", ".lock", "link"):
            del expected[name]
    assert content(fetch_whole(run, tmp_path / "elsewhere")) == expected
    assert content(fetch_copy(run)).keys() - {".stored.json"} == {
        name for name in expected if not name.startswith("checkpoints/") and name != "latest"
    }


def test_only_what_changed_is_uploaded_and_what_nobody_needs_is_deleted(run, folder, memory, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "SECONDS_KEPT", -1)
    owner, puts, later = Owner.claim(folder, run, 1), [], run.put(99, b"of a process that claims the run right now")
    monkeypatch.setattr(
        StoredRun, "put", lambda *arguments, real=StoredRun.put: puts.append(arguments[2]) or real(*arguments)
    )
    for number in range(2, 6):
        puts.clear()
        owner.upload(advance(folder, number))
    assert b"seed: 1\n" not in puts
    assert len(puts) == 5, "three files of the checkpoint, the events, and latest"
    assert run.numbers() == [4, 5]
    manifests = [run.read(number) for number in run.numbers()]
    assert {path.rpartition("/")[2] for path in memory if "/objects/" in path} == {
        later.object,
        *manifests[0].objects,
        *manifests[1].objects,
    }


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [cut, lambda data: data + b"}", lambda data: b"\0" * len(data), None])
@pytest.mark.parametrize("kind", ["manifests", "objects"])
def test_a_torn_upload_leaves_the_one_before(run, folder, memory, tmp_path, caplog, damage, kind) -> None:
    owner = Owner.claim(folder, run, 1)
    owner.upload(advance(folder, 2))
    before = content(fetch_whole(run, tmp_path / "before"))
    owner.upload(advance(folder, 3))
    first, last = run.read(2), run.read(3)
    name = f"{last.number:08}.json" if kind == "manifests" else min(last.objects - first.objects)
    path = next(path for path in memory if path.endswith(name))
    if damage is None:
        del memory[path]
    else:
        MemoryFileSystem().pipe_file(path, damage(memory[path].getvalue()))
    assert content(fetch_whole(run, tmp_path / "after")) == before
    assert ("an older upload is used" in caplog.text) == (kind == "objects" or damage is not None)
    Owner.claim(folder, run, 3).upload(Extent(3))
    assert content(fetch_whole(run, tmp_path / "repaired"))["latest"] == b"000003\n"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../outside"},
        {"name": "/etc/passwd"},
        {"name": "a/../../b"},
        {"name": ".lock"},
        {"name": "a\\b"},
        {"name": "c:evil"},
        {"name": "x" * 300},
        {"name": "line\nbreak"},
        {"parts": [{"object": "../../secret", "bytes": 1}]},
        {"parts": [{"object": "000001-" + "0" * 64, "bytes": 1 << 40}]},
        {"parts": [{"object": "000001-" + "0" * 64, "bytes": -1}]},
        {"more": 1},
    ],
)
def test_a_foreign_manifest_cannot_leave_the_folder_or_ask_for_too_much(run, folder, tmp_path, change) -> None:
    Owner.claim(folder, run, 1).upload(Extent(1))
    manifest = json.loads(run.read(2).model_dump_json())
    manifest["files"].append({"name": "fine", "parts": []} | change)
    MemoryFileSystem().pipe_file(f"/bucket/prefix/{NAME}/manifests/00000002.json", json.dumps(manifest).encode())
    assert run.read(2) is None
    with pytest.raises(RunFolderError, match="E435"):
        fetch_whole(run, tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_that_exclude_each_other_are_reported(run, folder, tmp_path) -> None:
    Owner.claim(folder, run, 1).upload(Extent(1))
    manifest = json.loads(run.read(2).model_dump_json())
    manifest["files"] += [{"name": "a", "parts": []}, {"name": "a/b", "parts": []}]
    MemoryFileSystem().pipe_file(f"/bucket/prefix/{NAME}/manifests/00000002.json", json.dumps(manifest).encode())
    with pytest.raises(RunFolderError, match=r"E410|E435"):
        fetch_whole(run, tmp_path / "elsewhere")
    MemoryFileSystem().pipe_file(f"/bucket/prefix/{NAME}/manifests/00000003.json", json.dumps(manifest).encode())
    assert run.read(3) is None, "it has another number"


def test_the_later_of_two_owners_keeps_the_run(run, folder, memory, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "SECONDS_KEPT", -1)
    first = Owner.claim(folder, run, 1)
    first.upload(Extent(1))
    other = fetch_whole(run, tmp_path / "other")
    second = Owner.claim(other, run, 1)
    with pytest.raises(TakenOver):
        first.upload(advance(folder, 2))
    for number in range(2, 6):  # the manifest with the number that the first would take next was deleted by now
        second.upload(advance(other, number))
    expected = content(fetch_whole(run, tmp_path / "expected"))
    for _ in range(2):
        with pytest.raises(TakenOver):
            first.upload(Extent(2))
    assert content(fetch_whole(run, tmp_path / "now")) == expected


def test_an_upload_whose_answer_was_lost_is_followed_by_another(run, folder, monkeypatch) -> None:
    owner, real = Owner.claim(folder, run, 1), MemoryFileSystem.pipe_file

    def lose_answer(files, path, value, mode="overwrite", **kwargs):
        real(files, path, value, mode)
        if "/manifests/" in path:
            raise ConnectionResetError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", lose_answer)
        with pytest.raises(RunFolderError, match="E434"):
            owner.upload(Extent(1))
    owner.upload(advance(folder, 2))
    assert run.manifest().checkpoint == 2


def uploading(owner, named, on_warning):
    """Upload while a block runs, as the owner."""
    claims = Claims(Storage.open(STORE))
    claims.owner = owner
    return claims.uploading(named, on_warning)


def test_a_failed_upload_is_a_warning_and_is_tried_again(run, folder, monkeypatch, caplog) -> None:
    warnings: list[str] = []
    with uploading(Owner.claim(folder, run, 1), folder, warnings.append) as offer:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "pipe_file", lambda *args, **kwargs: 1 / 0)
            offer(1, 8)
            until(lambda: offer(1, 8) or caplog.records)
        until(lambda: offer(1, 8) or run.manifest().checkpoint == 1)
    assert [record.levelname for record in caplog.records[:1]] == ["WARNING"]
    assert "E436 the store memory://bucket/prefix" in caplog.text.replace(f"/{NAME}", "")
    assert warnings == []
    last, real, calls = run.manifest(), MemoryFileSystem.pipe_file, []
    assert (last.checkpoint, content(fetch_copy(run))["events.jsonl"]) == (1, b"event 1\n")
    with monkeypatch.context() as patch, uploading(Owner.claim(folder, run, 1), folder, warnings.append):
        patch.setattr(
            MemoryFileSystem, "pipe_file", lambda *a, **k: calls.append(a) or (real(*a, **k) if calls[1:] else 1 / 0)
        )
    assert run.manifest().number > last.number + 1
    assert warnings == []
    with monkeypatch.context() as patch, uploading(Owner.claim(folder, run, 1), Path("runs/x"), warnings.append):
        patch.setattr(MemoryFileSystem, "pipe_file", lambda *args, **kwargs: 1 / 0)
    (warning,) = warnings
    assert warning.startswith("E436 runs/x is not uploaded: ")
    assert "ZeroDivisionError" in warning
    assert warning.endswith("Upload it:  esper runs upload runs/x")
    upload_run(folder, Storage.open(STORE))
    assert run.manifest().objects


def test_an_upload_ends_where_others_write_every_manifest_first(run, folder, monkeypatch) -> None:
    upload = Upload(owner := Owner.claim(folder, run, 1))
    owner.upload(Extent(7))
    assert run.numbers() == [1], "nothing is uploaded without the checkpoint"
    monkeypatch.setattr(StoredRun, "publish", lambda *args: (_ for _ in ()).throw(FileExistsError))
    assert "OSError: manifests from number 2 on exist" in str(upload.finish())
    with pytest.raises(RunFolderError, match=r"E412 .* is in use by other processes"):
        Owner.claim(folder, run, 1)
    assert not Claims(Storage.open(STORE)).claim_new(folder.with_name("20261121-101513-quiet-otter"))
    (folder / "manifest.json").unlink()
    assert Upload(owner).finish() is None, "who removes a run directory wants no more of it"


def test_an_owner_that_lost_the_run_says_so_once_and_stops(run, folder, tmp_path, caplog) -> None:
    upload = Upload(Owner.claim(folder, run, 1))
    upload.offer(1, 8)
    until(lambda: run.manifest().checkpoint == 1)
    Owner.claim(fetch_whole(run, tmp_path / "other"), run, 1)
    until(lambda: upload.offer(1, 8) or upload.is_lost)
    until(lambda: upload.offer(1, 8) or caplog.records)
    assert upload.finish() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"E436 another process has resumed the run from {run.url}; this one goes on, and uploads nothing more"
    ]


def test_a_run_directory_that_is_behind_is_refused_and_one_that_is_ahead_is_kept(run, folder, tmp_path) -> None:
    other = tmp_path / "other" / NAME
    Owner.claim(folder, run, 1).upload(Extent(1))
    fetch_whole(run, other.parent)
    Owner.claim(other, run, 1).upload(advance(other, 2))
    for act in (lambda: Owner.claim(folder, run, 1), lambda: fetch_whole(run, folder.parent)):
        with pytest.raises(RunFolderError, match=rf"E437 .*has checkpoint 2, and .*\n.*esper resume {run.url}"):
            act()
    advance(folder, 2)
    assert fetch_whole(run, folder.parent) == folder
    owner = Owner.claim(folder, run, 2)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"status": "done"}))
    owner.upload(Extent(2))
    with pytest.raises(RunFolderError, match=r"E437 .*is done"):
        Owner.claim(folder, run, 2)
    (folder / "summary.json").touch()
    Owner.claim(folder, run, 2)


def test_a_new_run_does_not_take_the_id_of_a_stored_one(run, folder) -> None:
    claims = Claims(Storage.open(STORE))
    assert claims.claim_new(folder)
    assert not Claims(Storage.open(STORE)).claim_new(folder)


def test_stored_runs_are_listed_and_found_like_those_of_a_folder(run, folder, tmp_path) -> None:
    Owner.claim(folder, run, 1).upload(Extent(1))
    MemoryFileSystem().pipe_file("/bucket/prefix/notes/a.txt", b"")
    listed, odd = list_runs(STORE)
    assert (listed.id, listed.status, listed.place) == (NAME, "running", run.url)
    assert (odd.status, odd.place) == ("no run", f"{STORE}/notes")
    for name, runs_dir in ((run.url, "runs"), (NAME, STORE), ("quiet-otter", STORE), (f"{run.url}/", "runs")):
        assert load_run(name, runs_dir=runs_dir).resume_hint == f"Resume it:  esper resume {run.url}"
    for name, runs_dir, says in (("quite-otter", STORE, "run quite-otter"), (NAME, f"{STORE}-2", f"folder {STORE}-2")):
        with pytest.raises(RunFolderError, match=f"E420 there is no {says}"):
            load_run(name, runs_dir=runs_dir)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing://bucket/x/run", "E434 .*nothing"),
        ("memory://", "E434 .*does not name a run"),
        ("memory://bucket/..", "E434 .*does not name a run"),
        (f"{STORE}/absent", "E420 cannot read .*there is no such run"),
        ("gs://bucket/x/run", r"E434 .*is not installed\n.*gcsfs"),
    ],
)
def test_what_cannot_be_read_is_reported(memory, url, message) -> None:
    with pytest.raises(RunFolderError, match=message):
        load_run(url)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("Access Denied"), "permission denied: Access Denied"),
        (FileNotFoundError("The specified bucket does not exist"), "no such bucket or folder"),
        (TimeoutError("no answer"), "TimeoutError: no answer"),
    ],
)
def test_a_store_that_cannot_be_written_is_reported_before_the_run(run, folder, monkeypatch, error, message) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with pytest.raises(RunFolderError, match=f"E434 .*{message}"):
        Claims(Storage.open(STORE)).claim_new(folder)


def test_a_run_on_a_local_disk_is_created_exclusively(folder, tmp_path, memory) -> None:
    run = Storage.open(f"file://{tmp_path}/store").run(NAME)
    first = Owner.claim(folder, run, 1)
    first.upload(Extent(1))
    assert content(fetch_whole(run, tmp_path / "elsewhere"))["events.jsonl"] == b"event 1\n"
    Owner.claim(folder, run, 1)
    with pytest.raises(TakenOver):
        first.upload(Extent(1))
