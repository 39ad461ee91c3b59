"""Uploads: copy a run directory to its store after each checkpoint, and when the run has ended.

A thread of its own uploads the newest checkpoint and the events before it, and leaves out checkpoints that are written
while it is at work. A failed upload is a warning, and the next checkpoint is another attempt: the run directory is
complete without the store.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import EsperError, Problem, RunFolderError, one_line, printable
from esper_core.leyline.files import open_regular, read_bytes, read_json
from esper_run.runs.directory import STATUS_RUNNING, write_atomically
from esper_run.stores import FILE_PATH, ClaimLost, Snapshot, newest_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from esper_run.stores import Claim, Store

log = logging.getLogger("esper")

UPLOAD_SHARE: Final = 0.1
"""Largest share of the time in which checkpoints are uploaded while the run trains, if uploads are short."""

LONGEST_PAUSE: Final = 60.0
"""Largest number of seconds between an upload and the next one."""

SECONDS_BETWEEN_RENEWALS: Final = 60.0
"""How often the claim is renewed, much more often than claims expire."""

PATIENCE: Final = 300.0
"""Seconds without progress after which a run that has ended no longer waits for its upload."""

PAUSES: Final = (2.0, 10.0)
"""Seconds before each further attempt at the last upload."""

EVENTS: Final = "events.jsonl"

CLAIM_FILE: Final = ".claim"
"""Name of the file in a run directory with the token of its latest claim."""

_BLOCK: Final = 4 << 20


class CheckpointGone(Exception):
    """The checkpoint to upload was deleted, because there are newer ones."""


@contextmanager
def snapshot(path: Path, checkpoint: int, events: int | None, on_progress: Callable[[], None]) -> Iterator[Snapshot]:
    """Yield what to upload of a run directory, without links, hidden files and other checkpoints.

    Args:
        path: The run directory.
        checkpoint: The checkpoint to upload; 0: none.
        events: Upload this many bytes of the events; None: all.
        on_progress: Called after each block that is read.

    Raises:
        CheckpointGone: It was deleted.
    """

    def read(name: str, end: int | None, file: BinaryIO | None = None) -> Iterator[bytes]:
        with ExitStack() as closing:
            with _readable(path / name):
                file = file or closing.enter_context(open_regular(path / name))
                # The run may be appending to the file. What is there now stays as it is, whatever follows.
                end = os.fstat(file.fileno()).st_size if end is None else end
                file.seek(0)
            while True:
                with _readable(path / name):
                    block = file.read(min(_BLOCK, end - file.tell()))
                if not block:
                    return
                on_progress()  # it renews the claim, whose errors are not those of the file
                yield block

    status = read_json(path / "manifest.json").get("status", STATUS_RUNNING)
    with ExitStack() as closing:
        files: dict[str, Callable[[], Iterator[bytes]]] = {}
        if checkpoint:
            for part in ("tensors.safetensors", "state.json", "COMPLETE"):
                name = f"checkpoints/{checkpoint:06}/{part}"
                # Opened first: the run may delete the checkpoint while it is uploaded.
                try:
                    opened = closing.enter_context(open_regular(path / name))
                except FileNotFoundError as error:
                    raise CheckpointGone from error
                files[name] = partial(read, name, None, opened)
            files["latest"] = lambda: iter([f"{checkpoint:06}\n".encode()])
        # A size is fixed here, once, so that every call yields the same bytes.
        files |= {
            name: partial(read, name, events if name == EVENTS and events is not None else size)
            for name, size in _other_files(path)
        }
        yield Snapshot(str(status)[:64], checkpoint, files)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError.unreadable(file, error) from error


def _other_files(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the paths and sizes of the other files of a run directory. Links and hidden files are left out."""
    for folder, folders, names in os.walk(path):
        inside = Path(folder).relative_to(path)
        folders[:] = sorted(name for name in folders if name[0] != "." and inside / name != Path("checkpoints"))
        for name in sorted(names):
            file, relative = Path(folder, name), (inside / name).as_posix()
            is_named = relative != "latest" and relative.isprintable() and re.fullmatch(FILE_PATH, relative)
            if is_named and file.is_file() and not file.is_symlink():
                with suppress(FileNotFoundError):  # it was deleted meanwhile
                    yield relative, file.stat().st_size


class Uploader:
    """Uploads a run to a store: claims it, then uploads in a thread. The methods are called by the run's own thread.

    Args:
        store: The store; None: the run is in its directory alone, and nothing is done.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._path = Path()
        self._claim: Claim | None = None
        self._is_lost = False
        self._offered: tuple[int, int | None] | None = None
        self._changed = threading.Condition()
        self._is_ending = False
        self._failures: list[str] = []
        self._progress = self._renewed = monotonic()
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    @property
    def url(self) -> str:
        """URL of the run in the store."""
        return f"{self._store.url if self._store else ''}/{self._path.name}"

    def claim_new(self, path: Path) -> bool:
        """Claim a new run. Returns whether no other run in the store has its id. Raises RunFolderError (E434)."""
        try:
            if self._store is not None:
                if self._store.storage.find(path.name) is not None:
                    return False
                self._take(self._store, path, None)
        except RunFolderError as error:
            if error.problems[0].code in ("E412", "E435"):  # of a run without an upload yet, or a damaged one
                return False
            raise
        return True

    def claim(self, path: Path, checkpoint: int) -> None:
        """Claim a run that is resumed from this checkpoint; the caller holds the lock of its directory.

        Raises:
            RunFolderError: E434, the store cannot be used; E412, another process uploads the run; E437, the stored run
                is further than the run directory.
        """
        if self._store is not None:
            self._store.require_not_ahead(path, checkpoint)
            after = None
            with suppress(OSError, ValueError):
                # Who claimed it from this directory had its lock, and so has ended.
                after = read_bytes(path / CLAIM_FILE, 1000).decode()
            self._take(self._store, path.resolve(), after)

    def _take(self, store: Store, path: Path, after: str | None) -> None:
        self._path, self._claim = path, store.storage.claim(path.name, after)
        write_atomically(path / CLAIM_FILE, self._claim.token)

    @contextmanager
    def uploading(self, named: Path, on_warning: Callable[[str], None]) -> Iterator[Callable[[int, int], None]]:
        """Upload the claimed run while the block runs, and when it has ended.

        Yields the function to call with each new checkpoint: its number, and the bytes of events before it.

        Args:
            named: The run directory, as the user names it.
            on_warning: Gets a warning if the last upload fails.
        """
        if self._claim is None:
            yield lambda checkpoint, events: None
            return
        failure: str | None = "the upload was interrupted"
        try:
            self._thread.start()
            yield self._offer
        finally:
            try:
                failure = self._finish()
            finally:
                if failure is not None:
                    hint = (
                        None
                        if self._is_lost
                        else "The run directory is complete: copy it, or resume the run if it is not done."
                    )
                    on_warning(str(Problem("E436", f"{named} is not uploaded: {failure}", hint=hint)))

    def upload(self, checkpoint: int, events: int | None) -> None:
        """Upload once. Raises as the store, and CheckpointGone."""
        assert self._claim is not None
        with snapshot(self._path, checkpoint, events, self._note_progress) as taken:
            self._claim.upload(taken)

    def release(self) -> None:
        """Let other processes claim the run. If that fails, they can when the claim expires."""
        assert self._claim is not None
        with suppress(Exception):
            self._claim.release()

    def _offer(self, checkpoint: int, events: int | None) -> None:
        """Upload a checkpoint and the events before it, in place of what is still waiting; warn of earlier failures."""
        with self._changed:
            self._offered = (checkpoint, events)
            failures, self._failures = self._failures, []
            self._changed.notify()
        hint = "" if self._is_lost else "The next checkpoint tries again."
        for failure in failures:
            log.warning("%s", Problem("E436", failure, hint=hint))

    def _finish(self) -> str | None:
        """Upload the run directory as it is now, and wait for that; return why it failed, or None."""
        is_removed = not (self._path / "manifest.json").exists()  # which ended the run
        with self._changed:
            if not self._is_lost:  # else nothing follows that could make up for the failure
                self._failures.clear()
            self._offered = None if is_removed else (newest_checkpoint(self._path), None)
            self._is_ending = True
            self._changed.notify()
        self._progress = began = monotonic()
        is_announced = False
        while self._thread.is_alive():
            self._thread.join(0.1)
            if monotonic() - self._progress > PATIENCE:
                return f"no progress was made in {PATIENCE:.0f} seconds"
            if not is_announced and (is_announced := monotonic() - began > 2):
                print(f"Uploading to {printable(self.url)}", file=sys.stderr, flush=True)
        return self._failures[-1] if self._failures and not is_removed else None

    def _work(self) -> None:
        """Upload what is offered, until the last upload or until another process has the claim."""
        pause, is_last = 0.0, False
        while not is_last and not self._is_lost:
            with self._changed:
                # An upload is not followed by another at once; the end of the run waits for nothing.
                self._changed.wait_for(lambda: self._is_ending, pause)
                self._changed.wait_for(lambda: self._is_ending or self._offered, SECONDS_BETWEEN_RENEWALS)
                offered, self._offered, is_last = self._offered, None, self._is_ending
            began = monotonic()
            failure = self._attempt(offered)
            for seconds in PAUSES if is_last else ():
                if failure is not None and not self._is_lost:
                    sleep(seconds)
                    failure = self._attempt(offered)
            with self._changed:
                self._failures += [] if failure is None else [failure]
            pause = min((monotonic() - began) / UPLOAD_SHARE, LONGEST_PAUSE)
        self.release()

    def _attempt(self, offered: tuple[int, int | None] | None) -> str | None:
        """Upload what is offered, or only renew the claim; return why that failed."""
        try:
            if offered is None:
                self._note_progress()
            else:
                self.upload(*offered)
        except CheckpointGone:
            return None  # the run has written a newer one, which is offered next
        except ClaimLost:
            self._is_lost = True
            return f"another process has taken over {self.url}; this one goes on, and uploads nothing more"
        except EsperError as error:
            return error.problems[0].message
        except Exception as error:
            return f"{self.url}: {one_line(f'{type(error).__name__}: {error}')}"
        return None

    def _note_progress(self) -> None:
        """Renew the claim if it is time, also within a long upload."""
        assert self._claim is not None
        self._progress = now = monotonic()
        if now - self._renewed >= SECONDS_BETWEEN_RENEWALS:
            self._claim.renew()
            self._renewed = now
