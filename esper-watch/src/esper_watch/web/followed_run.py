"""Following a run: read its events while they are written, without ever writing to its directory.

A ``FollowedRun`` remembers how far it has read. It waits for the rest of a last line that is incomplete, and starts
again if the file was replaced or cut, as when a run is resumed from a checkpoint. Links in a run directory could lead
anywhere, so a directory with links is not read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import RLock
from typing import Any, Final

from esper_core import EsperError
from esper_core.leyline import Problem, RunFolderError
from esper_core.leyline.files import open_regular
from esper_run import load_run, read_events
from esper_watch.formats import format_percent
from esper_watch.history import UNFINISHED, History, unfinished_status
from esper_watch.report import read_report
from esper_watch.sections import Report

EVENTS: Final = "events.jsonl"
OTHERS: Final = ("manifest.json", "summary.json", "config.yaml", "latest")
"""The other files that a page shows."""

FINAL: Final = ("done", "failed", "interrupted", "stopped")
"""Statuses that the last event of a run tells."""

CHUNK: Final = 4 << 20
"""Bytes of events between two looks at the clock. No event is as long: what follows a longer line is not read."""

TAIL: Final = 512
"""Bytes before the place of reading that are compared, to notice that a file was written anew."""


class FollowedRun:
    """A run directory that is read as it grows. Its methods may be called from several threads.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = RLock()
        self.problem: Problem | None = None
        self._stamp: tuple[Any, ...] = ()
        self.revision = 0
        """Grows with each change."""
        self.size = 0
        """Bytes of events.jsonl."""
        self.is_behind = False
        """Whether the time was over before all lines were read: what is known so far says nothing of the run's end."""
        self._forget()

    def _forget(self) -> None:
        self.history = History(self.path.resolve().name)
        self.offset = 0
        self._inode: tuple[int, int] | None = None
        self._tail = b""
        self._fault: tuple[int, EsperError] | None = None
        """Size of the file when a line was found that is no event, and the error: what follows is not read."""

    @property
    def reading(self) -> str:
        """How much of the events was read so far, in words, with what the manifest says of the run."""
        try:
            status = f" The run is {load_run(self.path).status}."
        except EsperError:
            status = ""
        share = self.offset / self.size if self.size else 1.0
        return f"Reading events: {format_percent(share, 0)} of {self.size / 1e6:,.0f} MB.{status}"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, so that its page changes no more by itself."""
        return self.history.status in FINAL

    def refresh(self, seconds: float = float("inf")) -> int:
        """Read what is new, for about ``seconds`` at most, and return the revision."""
        with self.lock:
            before = self.offset, self._inode, self._stamp, self.problem
            try:
                refuse_links(self.path)
                self._follow(time.monotonic() + seconds)
                self._stamp = self._other_files()
                self.problem = None
            except EsperError as error:
                self.problem = error.problems[0]
            except OSError as error:  # it is being deleted
                self.problem = RunFolderError.unreadable(self.path, error).problems[0]
            if before != (self.offset, self._inode, self._stamp, self.problem):
                self.revision += 1
            return self.revision

    def report(self) -> Report:
        """Return what a page shows of what was read: nothing of a directory with links."""
        with self.lock:
            try:
                refuse_links(self.path)
            except EsperError as error:
                return Report(History(self.history.name), None, error.problems[0].message, "", has_checkpoint=False)
            return read_report(self.path, self.history)

    def _follow(self, deadline: float) -> None:
        """Read complete lines until the end of the file, or the deadline."""
        events = self.path / EVENTS
        try:
            status = events.stat()
        except FileNotFoundError:
            if self.offset:
                self._forget()
            self.size = 0
            return
        except OSError as error:
            raise RunFolderError.unreadable(events, error) from None
        self.size = status.st_size
        if self._inode != (status.st_dev, status.st_ino) or not self._continues(events):
            self._forget()
            self._inode = status.st_dev, status.st_ino
        if self._fault is not None:
            raise self._fault[1]
        if not self.is_over:
            self.history.status = UNFINISHED
        self.is_behind = False
        while self.offset < self.size:
            try:
                if not (end := self._line_end(events)):
                    break
                for event in read_events(events, tell=self._note, start=self.offset, end=end):
                    self.history.add(event)
            except EsperError as error:
                self._fault = self.size, error
                raise
            self._move(events, end)
            if time.monotonic() > deadline and self.offset < self.size:
                self.is_behind = True
                break

    def _note(self, text: str) -> None:
        if text not in self.history.skipped:
            self.history.skipped.append(text)

    def _continues(self, events: Path) -> bool:
        """Return whether the file still holds what was read."""
        if self.size < (self.offset if self._fault is None else self._fault[0]):
            return False
        with open_regular(events) as file:
            file.seek(self.offset - len(self._tail))
            return bool(file.read(len(self._tail)) == self._tail)

    def _line_end(self, events: Path) -> int:
        """Return the end of the last complete line within the next chunk; 0 if there is none."""
        with open_regular(events) as file:
            file.seek(self.offset)
            chunk = file.read(CHUNK)
        if length := chunk.rfind(b"\n") + 1:
            return self.offset + length
        if len(chunk) == CHUNK:  # a sparse file: looking for the end of its line would take all memory
            raise RunFolderError.unreadable(events, f"a line has more than {CHUNK:,} bytes")
        return 0

    def _move(self, events: Path, end: int) -> None:
        with open_regular(events) as file:
            start = max(0, end - TAIL)
            file.seek(start)
            self._tail = file.read(end - start)
        self.offset = end

    def _other_files(self) -> tuple[Any, ...]:
        """Return what tells whether another file of the run changed, and set the status of a run without an end."""
        if not self.is_over:
            self.history.status = unfinished_status(self.path)
        parts: list[Any] = []
        for name in (EVENTS, *OTHERS):
            try:
                status = (self.path / name).stat()
                parts.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                parts.append(None)
        return *parts, self.history.status


def refuse_links(run: Path) -> None:
    """Raise RunFolderError if a run directory is a link, holds one, or cannot be read."""
    try:
        with os.scandir(run) as entries:
            links = [Path(entry) for entry in entries if entry.is_symlink()]
    except OSError as error:
        raise RunFolderError.unreadable(run, error) from None
    if links or run.is_symlink():
        what = "it is a link, which may lead out of the folder of runs"
        raise RunFolderError.unreadable(links[0] if links else run, what)
