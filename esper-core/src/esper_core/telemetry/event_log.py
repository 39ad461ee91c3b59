"""The event bus, and events.jsonl: how events are published, written and read.

Each event is one line of JSON. events.jsonl is the record that everything else is derived from: every event of a run,
appended, and flushed to disk at the end of each step. NaN and infinities are written as names, so that nothing is lost.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import file_digest
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, get_args

from pydantic import Field, TypeAdapter, ValidationError

from esper_core._version import __version__
from esper_core.leyline.constants import EVENT_FORMAT
from esper_core.leyline.errors import GrowthError, Problem, RunFolderError
from esper_core.leyline.events import Event
from esper_core.leyline.files import append_regular, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

log = logging.getLogger("esper")

TYPES: Final = frozenset(kind.__dataclass_fields__["type"].default for kind in get_args(Event))
"""The types of events that this version knows."""

MAX_LINE: Final = 16 << 20
"""Bytes of the longest line that is read. The events of a run have some thousand; a sparse file has no line at all."""


@dataclass(frozen=True, slots=True)
class _Head:
    """What an event of any version has."""

    type: str
    v: int


class Listener(Protocol):
    """Receives events. An exception in one of the core's own listeners stops the run."""

    def hear(self, event: Event) -> None:
        """Receive one event."""

    def settle(self) -> None:
        """End a step: write what must not be lost."""


class Bus:
    """Passes each event on to every listener, in the order in which they were given."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)

    def publish(self, *events: Event) -> None:
        """Pass events on to all listeners."""
        for event in events:
            for listener in self._listeners:
                listener.hear(event)

    def settle(self) -> None:
        """Notify all listeners that a step has ended."""
        for listener in self._listeners:
            listener.settle()


def encode(event: Event) -> str:
    """Write an event as one line of JSON, without the newline."""
    return _writer(type(event)).dump_json(event).decode()  # type: ignore[arg-type]


def decode(line: str | bytes) -> Event:
    """Read an event from a line that this version has written.

    Raises:
        pydantic.ValidationError: the line is not an event of this version.
    """
    return _reader().validate_json(line)


@cache
def _writer(kind: type[Event]) -> TypeAdapter[Event]:
    # One adapter for each type: in a union, pydantic ignores a dataclass' own setting for NaN.
    return TypeAdapter(kind)


@cache
def _reader() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="type")])


class EventFile:
    """Appends events to events.jsonl. Settled events survive the death of the process.

    ``after``: continue behind this many bytes and cut off the rest. None: append to the whole file.
    """

    def __init__(self, path: Path, *, after: int | None = None) -> None:
        self._path = path
        try:
            self._file = append_regular(path)
            if after is not None:
                self._cut(after)
            with open_regular(path) as file:
                self._sum = file_digest(file, "sha256")
        except OSError as error:
            raise RunFolderError.about(path, error) from error
        self._lines: list[str] = []

    def _cut(self, after: int) -> None:
        length = self._file.seek(0, os.SEEK_END)
        if length < after:
            self._file.close()
            message = f"{self._path} has {length:,} bytes; {after:,} were written before the checkpoint"
            hint = "A part of the file was removed. Start the run again."
            raise RunFolderError(Problem("E413", message, hint=hint))
        # What came after the checkpoint is trained again, and would be recorded twice.
        self._file.truncate(after)
        # Not for writing, which appends wherever the position is, but for ``length``, which reads it.
        self._file.seek(0, os.SEEK_END)

    @property
    def length(self) -> int:
        """Number of bytes written, always whole lines."""
        return self._file.tell()

    @property
    def checksum(self) -> dict[str, Any]:
        """Length and SHA-256 of what was written."""
        return {"bytes": self.length, "sha256": self._sum.hexdigest()}

    def require_exists(self) -> None:
        """Raise RunFolderError if the file was moved or deleted while the run writes to it."""
        if not self._path.exists():
            message = f"cannot write {self._path}: it was moved or deleted during the run"
            hint = "The run was stopped, since its results would be lost. Start it again and leave its folder alone."
            raise RunFolderError(Problem("E410", message, hint=hint))

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a crash of the machine."""
        try:
            # Only at checkpoints: the system keeps what was flushed if the process dies, and a disk is slow.
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error

    def hear(self, event: Event) -> None:
        """Buffer an event until the end of its step."""
        self._lines.append(encode(event))

    def settle(self) -> None:
        """Write the events of the step. Raises RunFolderError if the file cannot be written."""
        if not self._lines:
            return
        data = ("\n".join(self._lines) + "\n").encode()
        self._lines.clear()
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error
        self._sum.update(data)

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            # After an error there is nothing left: lines are dropped before they are written, so none is written twice.
            self.settle()
        finally:
            with suppress(OSError):  # settle() has reported it already
                self._file.close()


def read_events(
    path: str | Path, *, tell: Callable[[str], None] | None = None, start: int = 0, end: int | None = None
) -> Iterator[Event]:
    """Read the events of an events.jsonl file in order.

    Events of a type that this version does not know are skipped, fields that it does not know are ignored, and an
    incomplete last line is skipped, which a killed or a running process leaves behind.

    Args:
        path: the file.
        tell: called once for each kind of skipped data with a line of text. None: log a warning.
        start: begin at this byte, where a line must begin: what is before it was read already.
        end: stop at this byte, as if the file ended there. None: read all of it.

    Raises:
        FileNotFoundError: there is no such file.
        RunFolderError: a line is not an event (E421), or the file cannot be read (E430).
    """
    reported: set[str] = set()

    def report(message: str) -> None:
        if message not in reported:
            reported.add(message)
            if tell is None:
                log.warning("%s: %s", path, message)
            else:
                tell(message)

    for number, line in enumerate(_lines(path, start, end), start=1):
        if not line.endswith(b"\n"):
            number += _lines_before(path, start)
            report(f"the last line, line {number}, is incomplete and skipped: {len(line)} bytes without a newline")
            return
        try:
            event = _parse(line, report)
        except (ValueError, GrowthError) as error:  # an Action refuses by GrowthError what no action can have
            raise _not_an_event(path, number + _lines_before(path, start), error) from error
        if event is not None:
            yield event


def _lines(path: str | Path, start: int, end: int | None) -> Iterator[bytes]:
    """Yield the lines of a file from byte ``start`` up to byte ``end``."""
    try:
        with open_regular(path) as file:
            file.seek(start)
            left = sys.maxsize if end is None else max(0, end - start)
            while line := file.readline(min(left, MAX_LINE + 1)):
                if len(line) > MAX_LINE:
                    raise OSError(errno.EFBIG, f"a line has more than {MAX_LINE:,} bytes")
                yield line
                left -= len(line)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFolderError.unreadable(path, error) from None


def _lines_before(path: str | Path, start: int) -> int:
    """Return how many lines the first ``start`` bytes have. Only messages need it."""
    return sum(1 for _ in _lines(path, 0, start)) if start else 0


def _parse(line: bytes, report: Callable[[str], None]) -> Event | None:
    """Return the event of a line, or None if this version does not know its type. Raises ValueError if it is none."""
    try:
        event = decode(line)
    except ValidationError as error:
        try:
            head = TypeAdapter(_Head).validate_json(line, strict=True)
        except ValidationError:
            raise error from None
        _check_version(head.v)
        if head.type in TYPES:
            raise
        report(f'events of type "{head.type}" are skipped: esper-core {__version__} does not know them')
        return None
    _check_version(event.v)
    return event


def _check_version(version: int) -> None:
    if version != EVENT_FORMAT:
        msg = f"its format version is {version}; esper-core {__version__} reads version {EVENT_FORMAT}"
        raise ValueError(msg)


def _not_an_event(path: str | Path, number: int, error: Exception) -> RunFolderError:
    reason = str(error)
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        reason = f"{place}: {fault['msg']}" if place else fault["msg"]
    message = "this line is not an event that this version of esper-core can read"
    hint = f"{reason}\nRead the file with the version that wrote it; packages.txt beside it names that version."
    return RunFolderError(Problem("E421", message, file=str(path), line=number, hint=hint))
