"""Runs in a storage: what is uploaded and read back, and what happens to torn, foreign and contested uploads."""

import json
import os
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from esper_core.leyline import RunFolderError
from esper_run.runs import uploads
from esper_run.runs.records import list_runs, load_run
from esper_run.runs.uploads import Uploader
from esper_run.stores import ClaimLost, Store, newest_checkpoint, open_store
from esper_scale.stores import storage
from esper_scale.stores.storage import Storage
from tests.support.waiting import until

STORE = "memory://bucket/prefix"
NAME = "20261121-101512-quiet-otter"
URL = f"{STORE}/{NAME}"
STORED = f"/bucket/prefix/{NAME}/"
MANIFEST = {"format": 1, "id": NAME, "status": "running", "started": "2026-11-21T10:15:12+00:00"}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The files of an empty memory:// by their paths."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(uploads, "PAUSES", (0.0,))
    return MemoryFileSystem.store


@pytest.fixture
def store(memory: Any) -> Store:
    return open_store(STORE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory after its first checkpoint."""
    return make_folder(tmp_path / "runs")


def make_folder(runs: Path) -> Path:
    path = runs / NAME
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps(MANIFEST))
    (path / "config.yaml").write_text("seed: 1\n")
    (path / "empty.txt").touch()
    advance(path, 1)
    return path


def advance(path: Path, checkpoint: int) -> tuple[int, int]:
    """Add a checkpoint and events, and return what is to be uploaded then."""
    (path / "checkpoints" / f"{checkpoint:06}").mkdir(parents=True)
    for name in ("tensors.safetensors", "state.json", "COMPLETE"):
        (path / "checkpoints" / f"{checkpoint:06}" / name).write_text(f"{name} of {checkpoint}")
    (path / "latest").write_text(f"{checkpoint:06}\n")
    with (path / "events.jsonl").open("a") as events:
        events.write(f"event {checkpoint}\n")
        return checkpoint, events.tell()


def claimed(store: Store, path: Path, checkpoint: int = 1) -> Uploader:
    uploader = Uploader(store)
    uploader.claim(path, checkpoint)
    return uploader


def upload_run(path: Path, store: Store) -> None:
    """Upload a run directory that no process works on."""
    checkpoint = newest_checkpoint(path)
    uploader = claimed(store, path, checkpoint)
    uploader.upload(checkpoint, None)
    uploader.release()


def manifest_of(memory: dict[str, Any]) -> Any:
    return json.loads(memory[f"{STORED}manifest.json"].getvalue())


def put(name: str, data: bytes) -> None:
    MemoryFileSystem().pipe_file(STORED + name, data)


def expire(minutes: float = -10) -> None:
    """Make the lease of the run one that was renewed ten minutes ago."""
    lease = json.loads(MemoryFileSystem().cat_file(f"{STORED}lease.json"))
    put("lease.json", json.dumps(lease | {"at": str(datetime.now(UTC) + timedelta(minutes=minutes))}).encode())


def content(path: Path) -> dict[str, bytes]:
    return {
        name: file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and (name := file.relative_to(path).as_posix()) != ".claim"
    }


# --- copies


def test_a_run_comes_back_as_it_was_with_its_newest_checkpoint(store, folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "_BLOCK", 10)
    (folder / ".lock").touch()
    (folder / "link").symlink_to("/etc/passwd")
    uploader = claimed(store, folder)
    for number in (2, 3, 4):
        position = advance(folder, number)
        with (folder / "events.jsonl").open("a") as file:
            file.write("not part of the checkpoint\n")
        uploader.upload(*position)
        os.truncate(folder / "events.jsonl", position[1])
    old = ("checkpoints/000001", "checkpoints/000002", "checkpoints/000003", ".lock", "link")
    expected = {name: data for name, data in content(folder).items() if not name.startswith(old)}
    assert content(store.fetch_whole(NAME, tmp_path / "elsewhere")) == expected
    copied = {name for name in expected if not name.startswith(("checkpoints/", "latest"))}
    assert content(store.fetch_copy(NAME)).keys() - {".stored.json"} == copied


def test_only_what_changed_is_copied_and_what_is_not_named_is_deleted(store, folder, memory) -> None:
    put("files/000001-0000000000000000-1", b"left behind by an upload that was cut off")
    uploader = claimed(store, folder)
    for number in range(2, 5):
        before = {path for path in memory if "/files/" in path}
        uploader.upload(*advance(folder, number))
    now = {path for path in memory if "/files/" in path}
    assert len(now - before) == 5, "three files of the checkpoint, the events, and latest"
    assert {path.rpartition("/")[2] for path in now} == {file["stored"] for file in manifest_of(memory)["files"]}


def test_a_copy_in_the_cache_loses_the_files_that_the_run_lost(store, folder) -> None:
    uploader = claimed(store, folder)
    uploader.upload(1, None)
    assert (store.fetch_copy(NAME) / "empty.txt").exists()
    (folder / "empty.txt").unlink()
    uploader.upload(1, None)
    assert not (store.fetch_copy(NAME) / "empty.txt").exists()


def test_a_reader_whose_files_are_replaced_meanwhile_reads_the_new_ones(store, folder, tmp_path, monkeypatch) -> None:
    """A run is uploaded when the reader has the manifest and has read no file: once, and then whenever it does."""
    uploader, real, numbers = claimed(store, folder), Storage.manifest, iter([2])
    uploader.upload(1, None)

    def manifest(files: Storage, id_: str) -> Any:
        answer = real(files, id_)
        if number := next(numbers, None):
            with monkeypatch.context() as patch:
                patch.setattr(Storage, "manifest", real)
                uploader.upload(*advance(folder, number))
        return answer

    monkeypatch.setattr(Storage, "manifest", manifest)
    assert content(store.fetch_whole(NAME, tmp_path / "a"))["latest"] == b"000002\n"
    numbers = iter(range(3, 9))
    with pytest.raises(RunFolderError, match=r"E412 .* changed while it was read\n.*Try again"):
        store.fetch_whole(NAME, tmp_path / "b")


# --- stores that are damaged, or not to be trusted


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data + b"}", zeros, None])
@pytest.mark.parametrize("kind", ["manifest.json", "state.json"])
def test_damage_is_reported_and_the_next_upload_repairs_it(store, folder, memory, tmp_path, damage, kind) -> None:
    claimed(store, folder).upload(1, None)
    files = {file["name"]: f"files/{file['stored']}" for file in manifest_of(memory)["files"]}
    name = files.get(f"checkpoints/000001/{kind}", kind)
    if damage is not None:
        put(name, damage(memory[STORED + name].getvalue()))
    else:
        del memory[STORED + name]
    with pytest.raises(RunFolderError, match="E420" if (damage, kind) == (None, "manifest.json") else "E435"):
        store.fetch_whole(NAME, tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    if (damage, kind) != (zeros, "state.json"):  # files of the same size are not uploaded again
        upload_run(folder, store)
        assert content(store.fetch_whole(NAME, tmp_path / "elsewhere"))["latest"] == b"000001\n"


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
        {"name": "config.yaml"},
        {"name": "config.yaml/file"},
        {"stored": "../../secret"},
        {"bytes": 1 << 50},
        {"bytes": -1},
        {"more": 1},
    ],
    ids=str,
)
def test_a_foreign_manifest_cannot_leave_the_folder_or_ask_for_too_much(
    store, folder, memory, tmp_path, change
) -> None:
    upload_run(folder, store)
    manifest, empty = manifest_of(memory), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    file = {"name": "fine", "stored": "000001-0000000000000000-0", "bytes": 0, "sha256": empty}
    put("files/000001-0000000000000000-0", b"")
    put("manifest.json", json.dumps(manifest | {"files": [*manifest["files"], file]}).encode())
    store.fetch_whole(NAME, tmp_path / "fine")
    put("manifest.json", json.dumps(manifest | {"files": [*manifest["files"], file | change]}).encode())
    with pytest.raises(RunFolderError, match="E435"):
        store.fetch_whole(NAME, tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_is_named_500_times_does_not_fill_the_disk(store, folder, memory, tmp_path) -> None:
    (folder / "large").write_bytes(bytes(1 << 20))
    upload_run(folder, store)
    manifest = manifest_of(memory)
    large = next(file for file in manifest["files"] if file["name"] == "large")
    manifest["files"] += [large | {"name": f"large-{number}"} for number in range(500)]
    put("manifest.json", json.dumps(manifest).encode())
    with pytest.raises(RunFolderError, match=r"E435 .*a file is named twice"):
        load_run(URL)
    assert sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*")) < 1 << 20


@pytest.mark.parametrize("limit", ["files", "bytes"])
def test_a_run_beyond_the_limits_is_refused(store, folder, monkeypatch, limit) -> None:
    upload_run(folder, store)
    if limit == "files":
        monkeypatch.setattr("esper_scale.stores.storage.MAX_FILES", 3)
    else:
        monkeypatch.setenv("ESPER_STORE_MAX_GIB", "0")
    with pytest.raises(RunFolderError, match=r"E435 .*files of .* bytes(?s:.*)ESPER_STORE_MAX_GIB"):
        load_run(URL)


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(folder, tmp_path, memory, name, kind) -> None:
    store = open_store(f"file://{tmp_path}/store")
    upload_run(folder, store)
    root = tmp_path / "store" / NAME
    manifest = json.loads((root / "manifest.json").read_text())
    files = {file["name"]: root / "files" / file["stored"] for file in manifest["files"]}
    path = root / "manifest.json" if name == "manifest.json" else files[name]
    target = path.rename(tmp_path / "moved")
    {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(target), "folder": Path.mkdir}[kind](path)
    with pytest.raises(RunFolderError, match=r"E435 .*(a regular file|is a link)"):
        load_run(NAME, runs_dir=store.url)
    if name == "manifest.json":
        (run,) = list_runs(store.url)
        assert (run.status, run.shown_path) == ("unreadable", f"{store.url}/{NAME}")


def test_thousands_of_unreadable_manifests_are_a_row_and_a_read_each(tmp_path, memory, monkeypatch) -> None:
    reads, real = [], Storage.read
    monkeypatch.setattr(Storage, "read", lambda *arguments: reads.append(arguments) or real(*arguments))
    for number in range(3000):
        MemoryFileSystem().pipe_file(f"/bucket/prefix/run-{number}/manifest.json", b"{" * 1000)
    assert [run.status for run in list_runs(STORE)] == ["unreadable"] * 3000
    assert len(reads) == 3000
    assert list((tmp_path / "cache").rglob("run-*")) == []


def test_a_store_that_does_not_answer_is_reported_once(store, folder, monkeypatch) -> None:
    upload_run(folder, store)
    for number in range(100):
        MemoryFileSystem().pipe_file(f"/bucket/prefix/run-{number}/manifest.json", b"{}")
    calls: list[str] = []

    def fail(files: Any, path: str, *args: Any, **kwargs: Any) -> None:
        calls.append(path)
        raise TimeoutError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    with pytest.raises(RunFolderError, match=r"E434 .*TimeoutError: no answer"):
        list_runs(STORE)
    assert len(calls) < 50


@pytest.mark.parametrize("name", ["manifests/00000001.json", "manifest.json"])
def test_runs_of_other_versions_are_refused(store, memory, name) -> None:
    put(name, b'{"format": 1}')
    with pytest.raises(RunFolderError, match=r"E435 .*uploaded by (an older|another) version of Esper"):
        load_run(URL)


# --- one writer


def test_a_second_writer_is_refused_until_the_lease_expires(store, folder, tmp_path, memory) -> None:
    first = claimed(store, folder)
    first.upload(1, None)
    other = store.fetch_whole(NAME, tmp_path / "other")
    with pytest.raises(RunFolderError, match=rf"E412 {URL} is in use by a process on .*\n.*delete {URL}/lease.json"):
        claimed(store, other)
    expire()
    second = claimed(store, other)
    with pytest.raises(ClaimLost):
        first.upload(*advance(folder, 2))
    second.upload(*advance(other, 2))
    second.release()
    expected = content(store.fetch_whole(NAME, tmp_path / "expected"))
    with pytest.raises(ClaimLost):  # also when its successor has ended
        first.upload(2, None)
    assert content(store.fetch_whole(NAME, tmp_path / "now")) == expected
    assert f"{STORED}lease.json" not in memory


def test_the_lease_of_a_dead_process_is_taken_by_who_has_its_directory(store, folder) -> None:
    claimed(store, folder).upload(1, None)
    claimed(store, folder).upload(*advance(folder, 2))
    assert store.storage.find(NAME).checkpoint == 2


def test_a_lease_is_renewed_while_a_long_upload_goes_on(store, folder, monkeypatch) -> None:
    renewals: list[Any] = []
    monkeypatch.setattr(storage.LeasedRun, "renew", lambda claim: renewals.append(claim))
    monkeypatch.setattr(uploads, "SECONDS_BETWEEN_RENEWALS", 0.0)
    monkeypatch.setattr(uploads, "_BLOCK", 100)
    (folder / "large").write_bytes(bytes(10_000))
    claimed(store, folder).upload(1, None)
    assert len(renewals) > 100


def test_a_lease_that_is_unreadable_or_of_the_future_keeps_nobody_away(store, folder) -> None:
    claimed(store, folder)
    put("lease.json", b"{")
    claimed(store, make_folder(folder.parent / "other"))
    expire(1e6)
    claimed(store, make_folder(folder.parent / "third"))


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00", "2026-11-21T10:15:12"])
def test_times_that_cannot_be_shown_are_damage(store, folder, memory, at) -> None:
    upload_run(folder, store)
    put("manifest.json", json.dumps(manifest_of(memory) | {"uploaded": at}).encode())
    with pytest.raises(RunFolderError, match=r"E435 .*manifest.json: uploaded"):
        load_run(URL)


def test_an_upload_whose_answer_was_lost_is_followed_by_another(store, folder, tmp_path, monkeypatch) -> None:
    uploader, real = claimed(store, folder), MemoryFileSystem.pipe_file

    def lose_answer(files, path, value, mode="overwrite", **kwargs):
        real(files, path, value, mode)
        if path.endswith("manifest.json"):
            raise ConnectionResetError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", lose_answer)
        with pytest.raises(RunFolderError, match="E434"):
            uploader.upload(1, None)
    whole = content(store.fetch_whole(NAME, tmp_path / "whole"))
    position = advance(folder, 2)
    with monkeypatch.context() as patch:
        patch.setattr(storage.LeasedRun, "renew", lambda claim: 1 / 0)  # before the manifest is written
        with pytest.raises(ZeroDivisionError):
            uploader.upload(*position)
    assert content(store.fetch_whole(NAME, tmp_path / "still")) == whole
    uploader.upload(2, None)
    assert store.storage.find(NAME).checkpoint == 2


def test_what_no_store_can_name_is_left_out_and_an_unfinished_checkpoint_is_no_checkpoint(store, folder) -> None:
    for name in ("logs/12:30:05/f", "a\\b/f", "/".join("abcdefghijk")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    (folder / "checkpoints/000005").mkdir()
    upload_run(folder, store)
    stored = store.storage.find(NAME)
    assert stored.checkpoint == 1
    assert [name for name in stored.files if name.count("/") > 2 or ":" in name or "\\" in name] == []


def test_an_error_of_renewing_the_claim_is_not_one_of_the_file_that_is_read(store, folder, monkeypatch) -> None:
    uploader = claimed(store, folder)
    monkeypatch.setattr(uploads, "SECONDS_BETWEEN_RENEWALS", 0.0)
    monkeypatch.setattr(storage.LeasedRun, "renew", lambda claim: exec("raise ConnectionError('down')"))
    with pytest.raises(RunFolderError, match=r"E434 .*ConnectionError: down"):
        uploader.upload(1, None)


# --- uploads in the background


def test_a_failed_upload_is_a_warning_and_is_tried_again(store, folder, monkeypatch, caplog) -> None:
    warnings: list[str] = []
    with claimed(store, folder).uploading(folder, warnings.append) as offer:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "_open", lambda *args, **kwargs: 1 / 0)
            patch.setattr(uploads, "LONGEST_PAUSE", 0.0)
            offer(1, 8)
            until(lambda: offer(1, 8) or caplog.records)
        until(lambda: offer(1, 8) or store.storage.find(NAME))
    assert [record.levelname for record in caplog.records[:1]] == ["WARNING"]
    assert f"E436 the store {STORE} cannot be used: ZeroDivisionError" in caplog.text
    assert warnings == []
    real, numbers = MemoryFileSystem._open, count()
    (folder / "config.yaml").write_text("seed: 2\n")
    with monkeypatch.context() as patch, claimed(store, folder).uploading(folder, warnings.append):
        patch.setattr(MemoryFileSystem, "_open", lambda *a, **k: real(*a, **k) if next(numbers) else 1 / 0)
    assert content(store.fetch_copy(NAME))["config.yaml"] == b"seed: 2\n"
    assert warnings == []
    with monkeypatch.context() as patch, claimed(store, folder).uploading(Path("runs/x"), warnings.append):
        patch.setattr(MemoryFileSystem, "_open", lambda *args, **kwargs: 1 / 0)
    (warning,) = warnings
    assert warning.startswith("E436 runs/x is not uploaded: ")
    assert warning.endswith("The run directory is complete: copy it, or resume the run if it is not done.")


def test_a_run_whose_directory_is_removed_is_not_uploaded_and_releases_its_lease(store, folder, memory) -> None:
    with pytest.raises(uploads.CheckpointGone):
        claimed(store, folder).upload(7, 8)
    assert store.storage.find(NAME) is None, "nothing is uploaded without the checkpoint"
    with claimed(store, folder).uploading(folder, pytest.fail):
        (folder / "manifest.json").unlink()
    assert [path for path in memory if "/files/" not in path] == []


def test_a_process_that_lost_the_run_says_so_once_and_stops(store, folder, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(uploads, "LONGEST_PAUSE", 0.0)
    with claimed(store, folder).uploading(folder, pytest.fail) as offer:
        offer(1, 8)
        until(lambda: store.storage.find(NAME))
        expire()
        claimed(store, store.fetch_whole(NAME, tmp_path / "other"))
        until(lambda: offer(1, 8) or caplog.records)
    assert [record.getMessage() for record in caplog.records] == [
        f"E436 another process has taken over {URL}; this one goes on, and uploads nothing more"
    ]


def test_a_run_directory_that_is_behind_is_refused_and_one_that_is_ahead_is_kept(store, folder, tmp_path) -> None:
    upload_run(folder, store)
    other = store.fetch_whole(NAME, tmp_path / "other")
    advance(other, 2)
    upload_run(other, store)
    for act in (lambda: claimed(store, folder), lambda: store.fetch_whole(NAME, folder.parent)):
        with pytest.raises(RunFolderError, match=rf"E437 .*has checkpoint 2, and .*\n.*esper resume {URL}"):
            act()
    advance(folder, 2)
    assert store.fetch_whole(NAME, folder.parent) == folder
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"status": "done"}))
    claimed(store, folder, 2).upload(2, None)
    with pytest.raises(RunFolderError, match=r"E437 .*is done"):
        claimed(store, folder, 2)
    (folder / "summary.json").touch()
    claimed(store, folder, 2)


def test_a_new_run_does_not_take_the_id_of_a_stored_one(store, folder) -> None:
    assert Uploader(store).claim_new(folder)
    assert not Uploader(store).claim_new(folder), "one that was not uploaded yet"
    claimed(store, folder).upload(1, None)
    assert not Uploader(store).claim_new(folder)


# --- commands


def test_stored_runs_are_listed_and_found_like_those_of_a_folder(store, folder, tmp_path) -> None:
    upload_run(folder, store)
    MemoryFileSystem().pipe_file("/bucket/prefix/notes/a.txt", b"")
    listed, odd = list_runs(STORE)
    assert (listed.id, listed.status, listed.shown_path) == (NAME, "running", URL)
    assert (odd.status, odd.shown_path) == ("no run", f"{STORE}/notes")
    for name, runs_dir in ((URL, "runs"), (NAME, STORE), ("quiet-otter", STORE), (f"{URL}/", "runs")):
        assert load_run(name, runs_dir=runs_dir).resume_hint == f"Resume it:  esper resume {URL}"
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
    "error", [PermissionError("Access Denied"), FileNotFoundError("The specified bucket does not exist"), OSError("no")]
)
def test_a_store_that_cannot_be_written_is_reported_before_the_run(store, folder, monkeypatch, error) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with pytest.raises(RunFolderError, match=f"E434 .*{type(error).__name__}: {error}"):
        Uploader(store).claim_new(folder)
