"""Who hears what happened? Everybody who listens, in the order in which they came.

Where is the truth of a run kept? In events.jsonl: every event, appended, on disk once a step.

How does an event become a line of JSON and an event again? Without loss: NaN and infinities are told by name.

What does a file of events tell? Line by line; what a newer version added is left out, and what is torn is told.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, get_args

from pydantic import Field, TypeAdapter, ValidationError

from esper_core import __version__
from esper_core.leyline.constants import EVENT_FORMAT
from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.events import Event
from esper_core.leyline.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


class Listener(Protocol):
    """Hears events. The core's own listeners may raise; then the run stops."""

    def hear(self, event: Event) -> None:
        """Take one event."""
        ...

    def settle(self) -> None:
        """A step is over: whatever must not be lost goes where it is safe."""
        ...


class Bus:
    """Passes each event on to every listener at once."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)

    def publish(self, *events: Event) -> None:
        """Tell everybody."""
        for event in events:
            for listener in self._listeners:
                listener.hear(event)

    def settle(self) -> None:
        """A step is over."""
        for listener in self._listeners:
            listener.settle()


def encode(event: Event) -> str:
    """One line, without the line's end."""
    return _writer(type(event)).dump_json(event).decode()  # type: ignore[arg-type]


def decode(line: str | bytes) -> Event:
    """The event of a line of just this version; pydantic's ValidationError where it is none."""
    return _reader().validate_json(line)


@cache
def _writer(kind: type[Event]) -> TypeAdapter[Event]:
    """One for each kind: in a union pydantic does not heed what a record says of its NaN."""
    return TypeAdapter(kind)


@cache
def _reader() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="type")])


class EventFile:
    """Appends events to a file. What was settled survives the death of the process.

    after: bytes of the file that it goes on behind: whatever else there is, is taken off. None: behind all of them.
    """

    def __init__(self, path: Path, *, after: int | None = None) -> None:
        self._path = path
        try:
            self._file = path.open("ab")
            if after is not None:
                self._cut(after)
        except OSError as error:
            raise RunFolderError.about(path, error) from error
        self._lines: list[str] = []

    def _cut(self, after: int) -> None:
        length = self._file.seek(0, os.SEEK_END)
        if length < after:
            message = f"{self._path} is shorter than it was: {length:,} bytes of {after:,}"
            hint = "Something took a part of it away. Run it again from the start."
            raise RunFolderError(Problem("E413", message, hint=hint))
        self._file.truncate(after)
        self._file.seek(0, os.SEEK_END)

    @property
    def length(self) -> int:
        """Bytes that were written, all lines whole."""
        return self._file.tell()

    def demand_there(self) -> None:
        """RunFolderError where the file is no longer in its place: what is written now nobody will find."""
        if not self._path.exists():
            message = f"cannot write {self._path}: it was moved or deleted while the run went on"
            hint = "The run was stopped: what it finds would have nowhere to go. Run it again, and leave it be."
            raise RunFolderError(Problem("E410", message, hint=hint))

    def secure(self) -> None:
        """Have the disk know what was written: it survives the death of the machine, too."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error

    def hear(self, event: Event) -> None:
        """Keep the event until the step is settled."""
        self._lines.append(encode(event))

    def settle(self) -> None:
        """Write what was heard. RunFolderError where the disk does not take it."""
        if not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error

    def close(self) -> None:
        """Write what is left and let the file go."""
        try:
            self.settle()
        finally:
            with suppress(OSError):  # what could not be flushed was told already
                self._file.close()


log = logging.getLogger("esper")

TYPES: Final = frozenset(kind.__dataclass_fields__["type"].default for kind in get_args(Event))
"""The types of events that this version knows."""


def read_events(
    path: str | Path, *, tell: Callable[[str], None] | None = None, end: int | None = None
) -> Iterator[Event]:
    """The events of a file, in their order.

    ``end`` is the byte at which reading stops, as if the file ended there; None: at its end.

    ``tell`` is given a line of text for whatever is left out, each once: a torn last line, which a killed process
    leaves, or one that is still being written; events of a type, and fields, that this version does not know. None: it
    is a warning of the logger ``esper``, with the file's name.

    Raises:
        FileNotFoundError: there is no such file.
        RunFolderError: E421 at a line that is no event, with its number; E430 where the file cannot be read, or is a
            folder, a pipe or a device.
    """
    told: set[str] = set()

    def tell_once(said: str) -> None:
        if said not in told:
            told.add(said)
            if tell is None:
                log.warning("%s: %s", path, said)
            else:
                tell(said)

    for number, line in enumerate(_lines(path, end), start=1):
        if not line.endswith(b"\n"):
            tell_once(f"line {number}, the last one, is torn, and left out: {len(line)} bytes without their end")
            return
        try:
            event = _event_of(line, tell_once)
        except ValidationError as error:
            raise _no_event(path, number, error) from error
        except _OtherVersionError as error:
            raise _of_another_version(path, number, error.version) from error
        if event is not None:
            yield event


def _lines(path: str | Path, end: int | None) -> Iterator[bytes]:
    """Yield the lines of a file up to byte ``end``."""
    try:
        with open_regular(path) as file:
            while line := file.readline(-1 if end is None else end - file.tell()):
                yield line
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFolderError.unreadable(path, error) from None


class _OtherVersionError(ValueError):
    """A line of another version of the format."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def _event_of(line: bytes, tell: Callable[[str], None]) -> Event | None:
    """The event of a line; None where its type is one that this version does not know."""
    try:
        event = decode(line)
    except ValidationError as error:
        return _of_a_newer(line, error, tell)
    if event.v != EVENT_FORMAT:
        raise _OtherVersionError(event.v)
    return event


def _of_a_newer(line: bytes, error: ValidationError, tell: Callable[[str], None]) -> Event | None:
    """What this version understands of a line that it did not write. ``error`` is raised where the line is wrong."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        raise error from None
    version = told.get("v") if isinstance(told, dict) else None
    if type(version) is not int:
        raise error
    if version != EVENT_FORMAT:
        raise _OtherVersionError(version)
    if isinstance(kind := told.get("type"), str) and kind not in TYPES:
        tell(f'events of type "{kind}" are left out: esper-core {__version__} does not know them')
        return None
    for fault in error.errors(include_url=False, include_context=False):
        if fault["type"] != "unexpected_keyword_argument":
            raise error
        _, *way, key = fault["loc"]
        _take_out(told, way, key)
        named = ".".join(str(step) for step in (kind, *way, key) if isinstance(step, str))
        tell(f'the field "{named}" is left out: esper-core {__version__} does not know it')
    return decode(json.dumps(told))


def _take_out(record: Any, way: list[int | str], key: int | str) -> None:
    for step in way:
        record = record[step]
    del record[key]


def _no_event(path: str | Path, number: int, error: ValidationError) -> RunFolderError:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(step) for step in fault["loc"])
    reason = f"{place}: {fault['msg']}" if place else fault["msg"]
    message = "a line is no event that this version could read"
    hint = f"{reason}\nRead it with the version that wrote it; packages.txt beside it names it."
    return RunFolderError(Problem("E421", message, file=str(path), line=number, hint=hint))


def _of_another_version(path: str | Path, number: int, version: int) -> RunFolderError:
    message = f"events are in version {version} of their format; esper-core {__version__} reads version {EVENT_FORMAT}"
    hint = "Read it with the version that wrote it; packages.txt beside it names it."
    if version > EVENT_FORMAT:
        hint = "They were written by a newer one:  pip install --upgrade esper-core"
    return RunFolderError(Problem("E421", message, file=str(path), line=number, hint=hint))
