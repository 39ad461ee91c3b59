"""Uploads: keep a run in a storage up to date while it trains, and upload what it ended with.

A thread of its own uploads the newest checkpoint and the events before it, and leaves out checkpoints that are written
while it is at work. A failed upload is a warning, and the next checkpoint is another attempt: the run directory is
complete without the storage.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from esper_core.leyline.errors import EsperError, Problem, RunFolderError, one_line, printable
from esper_core.leyline.files import open_regular, read_json
from esper_run.runs.directory import STATUS_RUNNING
from esper_scale.stores.storage import (
    FILE_NAME,
    PART_BYTES,
    Part,
    Storage,
    StoredFile,
    StoredRun,
    TakenOver,
    UploadManifest,
    newest_checkpoint,
    require_not_ahead,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("esper")

UPLOAD_SHARE: Final = 0.1
"""Largest share of the time in which checkpoints are uploaded while the run trains, if uploads are short."""

LONGEST_PAUSE: Final = 60.0
"""Largest number of seconds between an upload and the next one."""

SECONDS_KEPT: Final = 60.0
"""How long objects stay after the last manifest that needs them, for processes that are reading them."""

PATIENCE: Final = 300.0
"""Seconds without progress after which a run that has ended no longer waits for its upload."""

PAUSES: Final = (2.0, 10.0)
"""Seconds before each further attempt at the last upload."""

EVENTS: Final = "events.jsonl"

_ATTEMPTS: Final = 10


class Extent(NamedTuple):
    """What to upload of a run directory: a checkpoint (0: none), and this many bytes of its events (None: all)."""

    checkpoint: int
    events: int | None = None


class Owner:
    """The owner of a run in a storage, who alone uploads to it.

    Args:
        path: The run directory.
        run: The run in the storage.
        manifest: The manifest by which the run was claimed.
    """

    def __init__(self, path: Path, run: StoredRun, manifest: UploadManifest) -> None:
        self.path, self.run = path, run
        self._published = [(monotonic(), manifest)]
        self._objects: dict[str, Part] = {}
        self._seen: dict[str, tuple[tuple[int, ...], tuple[Part, ...]]] = {}

    @classmethod
    def claim(cls, path: Path, run: StoredRun, checkpoint: int) -> Owner:
        """Become the owner of a run, whoever it was before.

        Args:
            path: The run directory.
            run: The run in the storage.
            checkpoint: Number of the checkpoint that the run directory has; 0 without one.

        Raises:
            RunFolderError: E434, the storage cannot be written; E437, the stored run is further than the run directory.
        """
        for _ in range(_ATTEMPTS):
            before = run.manifest()
            if before is not None:
                require_not_ahead(run, before, path, checkpoint)
            with suppress(TakenOver, FileExistsError):
                return cls(path, run, _claim(run, before))
        raise RunFolderError(Problem("E412", f"{run.url} is in use by other processes", hint="Try again."))

    @classmethod
    def claim_new(cls, path: Path, run: StoredRun) -> Owner | None:
        """Become the owner of a run that is not in the storage yet; None if there is one with this id."""
        if run.numbers():
            return None
        with suppress(TakenOver, FileExistsError):
            return cls(path, run, _claim(run, None))
        return None

    def upload(self, extent: Extent, on_progress: Callable[[], None] = lambda: None) -> None:
        """Upload the objects that are not there yet, then a manifest. Nothing is uploaded if the checkpoint is gone.

        Raises:
            RunFolderError: E434, the storage cannot be written; E430, a file cannot be read.
            TakenOver: Another process owns the run now.
        """
        status = read_json(self.path / "manifest.json").get("status", STATUS_RUNNING)
        before = self._published[-1][1]
        with ExitStack() as closing:
            try:  # opened first: the run may delete the checkpoint while it is uploaded
                opened = {name: closing.enter_context(open_regular(self.path / name)) for name in _state_files(extent)}
            except FileNotFoundError:
                return
            names = [*opened, *_other_files(self.path)]
            files = [self._upload_file(name, opened.get(name), extent, on_progress) for name in names]
        if extent.checkpoint:
            files.append(StoredFile(name="latest", parts=(self._put(f"{extent.checkpoint:06}\n".encode()),)))
        update = {"status": str(status)[:64], "checkpoint": extent.checkpoint, "at": datetime.now(UTC)}
        contents = {"files": tuple(file for file in files if file is not None)}
        for number in range(before.number + 1, before.number + 1 + _ATTEMPTS):
            manifest = before.model_copy(update={"number": number, **update, **contents})
            try:
                self.run.publish(manifest)
            except FileExistsError:
                continue  # an attempt of before has written it, and its answer was lost
            self._forget_old(manifest, is_last=extent.events is None)
            return
        msg = f"manifests from number {before.number + 1} on exist"
        raise OSError(msg)

    def _upload_file(
        self, name: str, file: IO[bytes] | None, extent: Extent, on_progress: Callable[[], None]
    ) -> StoredFile | None:
        """Upload the parts of a file that changed; None if it is gone."""
        end = extent.events if name == EVENTS else None
        try:
            with ExitStack() as closing:
                file = file or closing.enter_context(open_regular(self.path / name))
                status = os.fstat(file.fileno())
                size = status.st_size if end is None else end
                state = (status.st_ino, status.st_mtime_ns, size)
                seen, parts = self._seen.get(name, ((), ()))
                if seen != state:
                    # Events are only appended, so that the parts that are full stay as they are.
                    uploaded = [part for part in parts if part.bytes == PART_BYTES] if name == EVENTS else []
                    file.seek(PART_BYTES * len(uploaded))
                    while data := file.read(min(PART_BYTES, size - file.tell())):
                        uploaded.append(self._put(data))
                        on_progress()
                    self._seen[name] = (state, parts := tuple(uploaded))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunFolderError.unreadable(self.path / name, error) from error
        return StoredFile(name=name, parts=parts)

    def _put(self, data: bytes) -> Part:
        """Store bytes, unless this owner has stored them already."""
        key = sha256(data).hexdigest()
        if key not in self._objects:
            self._objects[key] = self.run.put(self._published[-1][1].writer, data)
        return self._objects[key]

    def _forget_old(self, manifest: UploadManifest, *, is_last: bool) -> None:
        """Delete what was needed only by manifests that nobody reads any more, or can read anew if this is the last."""
        now = monotonic()
        self._published.append((now, manifest))
        while len(self._published) > 2 and (is_last or now - self._published[1][0] > SECONDS_KEPT):
            del self._published[0]
        kept = [published for _, published in self._published]
        needed = set[str]().union(*(published.objects for published in kept))
        self._objects = {key: part for key, part in self._objects.items() if part.object in needed}
        self._seen = {name: seen for name, seen in self._seen.items() if needed.issuperset(p.object for p in seen[1])}
        with suppress(EsperError):  # not everybody who may write may also delete
            self.run.clean(kept)


def _claim(run: StoredRun, before: UploadManifest | None) -> UploadManifest:
    """Create the next manifest, with the files of the one before. Raises as ``StoredRun.publish``."""
    number = max(run.numbers(), default=0) + 1
    manifest = UploadManifest(
        number=number,
        writer=number,
        token=secrets.token_hex(8),
        status=STATUS_RUNNING if before is None else before.status,
        checkpoint=0 if before is None else before.checkpoint,
        at=datetime.now(UTC),
        files=() if before is None else before.files,
    )
    run.make_folders()
    run.publish(manifest)
    return manifest


def _state_files(extent: Extent) -> list[str]:
    """Return the names of the files from which the run can be resumed."""
    names = ("tensors.safetensors", "state.json", "COMPLETE") if extent.checkpoint else ()
    return [f"checkpoints/{extent.checkpoint:06}/{name}" for name in names]


def _other_files(path: Path) -> Iterator[str]:
    """Yield the names of the other files of a run directory. Links and hidden files are left out."""
    for folder, folders, names in os.walk(path):
        inside = Path(folder).relative_to(path)
        folders[:] = sorted(name for name in folders if name[0] != "." and inside / name != Path("checkpoints"))
        for name in sorted(names):
            file, relative = Path(folder, name), (inside / name).as_posix()
            is_named = relative != "latest" and relative.isprintable() and re.fullmatch(FILE_NAME, relative)
            if is_named and file.is_file() and not file.is_symlink():
                yield relative


class Claims:
    """Makes this process the owner of a run in a store.

    Args:
        storage: The folder of runs.

    Attributes:
        owner: The owner, once a run is claimed.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.owner: Owner | None = None

    def claim_new(self, path: Path) -> bool:
        """Claim a new run. Returns whether no other run has its id. Raises RunFolderError (E434)."""
        self.owner = Owner.claim_new(path, self._storage.run(path.name))
        return self.owner is not None

    def claim(self, path: Path, checkpoint: int) -> None:
        """Claim a run that is resumed from this checkpoint. Raises as ``Owner.claim``."""
        self.owner = Owner.claim(path, self._storage.run(path.resolve().name), checkpoint)

    @contextmanager
    def uploading(self, named: Path, on_warning: Callable[[str], None]) -> Iterator[Callable[[int, int], None]]:
        """Upload while the block runs, and when it has ended; yield the function that takes a new checkpoint.

        Args:
            named: The run directory, as the user names it.
            on_warning: Gets a warning if the last upload fails.
        """
        assert self.owner is not None
        upload = Upload(self.owner)
        try:
            yield upload.offer
        finally:
            failure: str | None = "the upload was interrupted"
            try:
                failure = upload.finish()
            finally:
                if failure is not None:
                    hint = None if upload.is_lost else f"Upload it:  esper runs upload {shlex.quote(str(named))}"
                    on_warning(str(Problem("E436", f"{named} is not uploaded: {failure}", hint=hint)))


class Upload:
    """Uploads a run in a thread. Its methods are called by the run's own thread."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.is_lost = False
        self._offered: Extent | None = None
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._failures: list[str] = []
        self._progress = monotonic()
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    def offer(self, checkpoint: int, events: int | None) -> None:
        """Upload a checkpoint and the events before it, in place of what is still waiting; warn of earlier failures."""
        with self._changed:
            self._offered = Extent(checkpoint, events)
            failures, self._failures = self._failures, []
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()
        for failure in failures:
            log.warning("%s", Problem("E436", failure, hint="" if self.is_lost else "The next checkpoint tries again."))

    def finish(self) -> str | None:
        """Upload the run directory as it is now, and wait for that; return why it failed, or None."""
        self._ending.set()
        if not (self.owner.path / "manifest.json").exists():  # it was removed, which ended the run
            return None
        if not self.is_lost:
            with self._changed:
                self._failures.clear()
            self.offer(newest_checkpoint(self.owner.path), None)
        self._progress = began = monotonic()
        is_announced = False
        while self._thread.is_alive():
            self._thread.join(0.1)
            if monotonic() - self._progress > PATIENCE:
                return f"no progress was made in {PATIENCE:.0f} seconds"
            if not is_announced and (is_announced := monotonic() - began > 2):
                print(f"Uploading to {printable(self.owner.run.url)}", file=sys.stderr, flush=True)
        return self._failures[-1] if self._failures else None

    def _work(self) -> None:
        """Upload what is offered, until the last upload or until the run has another owner."""
        while not self.is_lost:
            with self._changed:
                self._changed.wait_for(lambda: self._offered is not None)
                extent, self._offered = self._offered, None
            assert extent is not None
            began, is_last = monotonic(), extent.events is None
            for pause in (*PAUSES, None):
                failure = self._attempt(extent)
                if failure is None or self.is_lost or not is_last or pause is None:
                    break
                threading.Event().wait(pause)
            with self._changed:
                if is_last:
                    self._failures.clear()
                if failure is not None:
                    self._failures.append(failure)
            if is_last:
                return
            self._ending.wait(min((monotonic() - began) / UPLOAD_SHARE, LONGEST_PAUSE))

    def _attempt(self, extent: Extent) -> str | None:
        """Upload once; return why that failed."""
        url = self.owner.run.url
        try:
            self.owner.upload(extent, self._note_progress)
        except TakenOver:
            self.is_lost = True
            return f"another process has resumed the run from {url}; this one goes on, and uploads nothing more"
        except RunFolderError as error:
            return error.problems[0].message
        except Exception as error:
            return f"{url}: {one_line(f'{type(error).__name__}: {error}')}"
        return None

    def _note_progress(self) -> None:
        self._progress = monotonic()


def upload_run(path: Path, storage: Storage) -> str:
    """Upload a run directory that no process works on; return its URL. Raises as ``Owner.claim``."""
    checkpoint, claims = newest_checkpoint(path), Claims(storage)
    claims.claim(path, checkpoint)
    assert claims.owner is not None
    try:
        claims.owner.upload(Extent(checkpoint))
    except TakenOver:
        message = f"{claims.owner.run.url} is in use by another process"
        raise RunFolderError(Problem("E412", message, hint="It uploads the run.")) from None
    return claims.owner.run.url
