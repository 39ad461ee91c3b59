"""Index of runs: read the events of runs while they are written, without ever writing to a run directory.

A ``FollowedRun`` remembers how far it has read. It waits for the rest of a last line that is incomplete, and starts
again if the file was replaced or cut, as when a run is resumed from a checkpoint. Links in a run directory could lead
anywhere, so a directory with links is not read.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from esper_core import EsperError
from esper_core.leyline import Problem, RunFolderError
from esper_core.leyline.errors import one_line
from esper_core.leyline.files import open_regular
from esper_run import load_run, read_events
from esper_watch.figures import arm_styles
from esper_watch.formats import format_percent, format_value
from esper_watch.headline import facts, headline, lost_seeds
from esper_watch.history import UNFINISHED, History, is_usable
from esper_watch.report import read_report
from esper_watch.sections import Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVENTS: Final = "events.jsonl"
OTHERS: Final = ("manifest.json", "summary.json", "config.yaml", "latest")
"""The other files that a page shows."""

FINAL: Final = ("done", "failed", "interrupted", "stopped")
"""Statuses that the last event of a run tells."""

CHUNK: Final = 4 << 20
"""Bytes of events between two looks at the clock."""

LONGEST_LINE: Final = 16 << 20
"""Bytes without an end of a line after which the rest of the events is not read."""

TAIL: Final = 512
"""Bytes before the place of reading that are compared, to notice that a file was written anew."""

POINTS: Final = 60
"""Points of a curve in a list of runs, about."""

KEPT: Final = 4
"""Runs whose histories stay in memory, at most."""

KEPT_BYTES: Final = 600 << 20
"""Bytes of events that these runs have together, at most; one of them may have more."""


class FollowedRun:
    """A run directory that is read as it grows. Its methods may be called from several threads.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = RLock()
        self.problem: Problem | None = None
        self._inode: tuple[int, int] | None = None
        self._stamp: tuple[Any, ...] = ()
        self._fault: tuple[int, EsperError] | None = None
        """Size of the file when a line was found that is no event, and the error: what follows is not read."""
        self.identity = object()
        """Tells the revisions of this object from those of another one."""
        self.revision = 0
        """Grows with each change."""
        self.size = 0
        """Bytes of events.jsonl."""
        self.is_behind = False
        """Whether the time was over before all lines were read: what is known so far says nothing of the run's end."""
        self._forget()

    def _forget(self) -> None:
        self.history = History(self.path.name)
        self.offset = 0
        self._inode = None
        self._tail = b""
        self._fault = None

    @property
    def share_read(self) -> float:
        """Part of the events that was read, from 0 to 1."""
        return self.offset / self.size if self.size else 1.0

    @property
    def reading(self) -> str:
        """How much of the events was read so far, in words, with what the manifest says of the run."""
        try:
            status = f" The run is {load_run(self.path).status}."
        except EsperError:
            status = ""
        return f"Reading events: {format_percent(self.share_read, 0)} of {self.size / 1e6:,.0f} MB.{status}"

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
                return Report(History(self.path.name), None, error.problems[0].message, "", has_checkpoint=False)
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
        while self.offset < self.size and (end := self._line_end(events)):
            try:
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
        """Return the end of the last complete line within the next chunk, or of a longer line; 0 if there is none."""
        with open_regular(events) as file:
            file.seek(self.offset)
            end = self.offset
            while chunk := file.read(CHUNK):
                if (place := chunk.rfind(b"\n")) >= 0:
                    return int(end + place + 1)
                end += len(chunk)
                if end - self.offset > LONGEST_LINE:
                    # No event is as long, and looking for its end would take all memory of a sparse file's reader.
                    fault = RunFolderError.unreadable(events, f"a line has more than {LONGEST_LINE:,} bytes")
                    self._fault = self.size, fault
                    raise fault
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
            try:
                status_now = load_run(self.path).status
                self.history.status = status_now if status_now in ("running", "died") else UNFINISHED
            except EsperError:
                self.history.status = UNFINISHED
        return *_stamp(self.path), self.history.status


class RunsFolder:
    """The runs below a folder, or one of them.

    Args:
        root: The folder.
        only: The name of the only run that is shown; None: all of them.
    """

    def __init__(self, root: Path, only: str | None = None) -> None:
        self.root = root.resolve()
        self.only = only
        self._lock = RLock()
        self._followed: OrderedDict[str, FollowedRun] = OrderedDict()
        self._cards: dict[str, tuple[tuple[Any, ...], Card]] = {}

    def names(self) -> list[str]:
        """Return the names of the run directories, the newest first; not those of links, or that no URL can hold."""
        try:
            with os.scandir(self.root) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if (self.only is None or entry.name == self.only)
                    and entry.is_dir(follow_symlinks=False)
                    and entry.name.encode(errors="ignore").decode() == entry.name
                    and any(Path(entry.path, name).exists() for name in (EVENTS, "manifest.json"))
                ]
        except OSError:
            return []
        return sorted(names, reverse=True)

    def run(self, name: str) -> FollowedRun | None:
        """Return the run of this name; None if there is none. No name leads out of the folder."""
        with self._lock:
            if name not in self.names():
                return None
            followed = self._followed.get(name)
            if followed is None:
                followed = self._followed[name] = FollowedRun(self.root / name)
            self._followed.move_to_end(name)
            while len(self._followed) > 1 and (
                len(self._followed) > KEPT or sum(kept_run.offset for kept_run in self._followed.values()) > KEPT_BYTES
            ):
                self._followed.popitem(last=False)
            return followed

    def cards(self, seconds: float) -> list[Card]:
        """Return what a list of runs shows. Runs for which there is no time left are marked as being read."""
        deadline, cards = time.monotonic() + seconds, []
        with self._lock:
            for name in self.names():
                stamp = _stamp(self.root / name)
                stamped_card = self._cards.get(name)
                if stamped_card is None or stamped_card[0] != stamp or stamped_card[1].status not in FINAL:
                    if time.monotonic() > deadline:
                        cards.append(stamped_card[1] if stamped_card else Card(name))
                        continue
                    followed = self.run(name)
                    if followed is None:
                        continue
                    followed.refresh(max(0.0, deadline - time.monotonic()))
                    try:
                        stamped_card = stamp, card_of(followed)
                    except Exception as error:  # whatever is in a foreign run, it must not hide the others
                        reason = one_line(f"{type(error).__name__}: {error}")
                        stamped_card = stamp, Card(name, "unreadable", f"E430 cannot show this run: {reason}")
                    if not followed.is_behind:
                        self._cards[name] = stamped_card
                cards.append(stamped_card[1])
        return sorted(cards, key=lambda card: card.started, reverse=True)


@dataclass(frozen=True)
class Card:
    """What a list of runs shows of one."""

    name: str
    status: str = "reading"
    headline: str = ""
    started: str = ""
    """When, as ISO 8601."""
    facts: tuple[tuple[str, str], ...] = ()
    """How far it is, and what growth gained, each with its name."""
    metric: str = ""
    curves: tuple[tuple[str, str | None, tuple[tuple[float, float], ...]], ...] = ()
    """CSS class, dash pattern and points from 0 to 1 of the curve of each arm."""
    ends: tuple[tuple[str, str, str | None, str], ...] = ()
    """Name, CSS class and dash pattern of each arm, and its latest metric."""


def card_of(followed: FollowedRun) -> Card:
    """Return the card of a run."""
    with followed.lock:
        if followed.problem is not None:
            return Card(followed.path.name, "unreadable", f"{followed.problem.code} {followed.problem.message}")
        if followed.is_behind:
            return Card(followed.path.name, headline=followed.reading)
        report = followed.report()
        history = report.history
        styles = arm_styles(history.arms)
        means = {arm: [value for value in history.mean_metric(arm) if is_usable(value)] for arm in history.arms}
        return Card(
            name=followed.path.name,
            status=history.status,
            headline=report.changed or headline(report),
            started=str(report.manifest.get("started", "")),
            facts=(
                *(("Trouble", text) for text in lost_seeds(history)),
                *((name, text) for name, text in facts(report) if name != "Cost"),
            ),
            metric=report.metric.name,
            curves=tuple((styles[arm].css_class, styles[arm].dash, line) for arm, line in _lines(means).items()),
            ends=tuple(
                (arm, styles[arm].css_class, styles[arm].dash, format_value(report.metric, values[-1]))
                for arm, values in means.items()
                if values
            ),
        )


def _lines(means: Mapping[str, Sequence[float]]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return the curve of each arm as points from 0 to 1, upwards."""
    all_values = [value for values in means.values() for value in values]
    low, high = min(all_values, default=0.0), max(all_values, default=1.0)
    longest = max(map(len, means.values()), default=1)
    lines = {}
    for arm, values in means.items():
        picked = range(0, len(values), 1 + len(values) // POINTS)
        lines[arm] = tuple(
            (at / max(1, longest - 1), (values[at] - low) / (high - low) if high > low else 0.5) for at in picked
        )
    return lines


def _stamp(run: Path) -> tuple[Any, ...]:
    """Return what tells whether a file of the run changed."""
    parts: list[Any] = []
    for name in (EVENTS, *OTHERS):
        try:
            status = (run / name).stat()
            parts.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            parts.append(None)
    return tuple(parts)


def refuse_links(run: Path) -> None:
    """Raise RunFolderError if a run directory is a link, holds one, or cannot be read."""
    try:
        if run.is_symlink():
            raise _refusal(run)
        with os.scandir(run) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise _refusal(Path(entry.path))
    except OSError as error:
        raise RunFolderError.unreadable(run, error) from None


def _refusal(path: Path) -> RunFolderError:
    return RunFolderError.unreadable(path, "it is a link, which may lead out of the folder of runs")
