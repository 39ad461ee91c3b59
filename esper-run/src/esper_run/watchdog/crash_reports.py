"""Crash reports: what a process leaves behind for its parent, and whose line it was at.

So that the loss of a process can be explained, it notes in shared memory which environment is at work, and writes the
traceback of its threads to a file when it crashes, when plugin code ends it, and when it is asked to.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
import signal
import struct
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from esper_core.plugins import is_third_party

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TRACE_SIGNAL: Final = signal.SIGUSR2
"""Asks a worker process for the traceback of its threads."""

SECONDS_FOR_TRACE: Final = 2.0
"""How long a worker process may take to write its traceback."""

_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of code that a worker was at."""

    file: str
    line: int
    function: str


class CrashReport:
    """What a process leaves behind, for its parent to read: the environment at work, and the traceback of its threads.

    It is made before the fork, so that both have it.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, struct.calcsize("qqq"))
        self._beats = self._other_beats = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as there is a report

    def note_place(self, place: int) -> None:
        """Note the place of the environment whose work begins; -1: other work."""
        self._beats += 1
        self._other_beats += place < 0
        struct.pack_into("qqq", self._shared, 0, place + 1, self._beats, self._other_beats)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Write the traceback within the block whenever this process is asked to, or crashes."""
        was_enabled = faulthandler.is_enabled()
        faulthandler.register(TRACE_SIGNAL, self._file)
        faulthandler.enable(self._file)
        try:
            yield
        finally:
            faulthandler.unregister(TRACE_SIGNAL)
            if was_enabled:
                faulthandler.enable(2)
            else:
                faulthandler.disable()

    def trace_exits(self) -> None:
        """Write the traceback when this process ends itself, too."""
        leave, pid = os._exit, os.getpid()

        def write_and_exit(status: int) -> NoReturn:
            if os.getpid() == pid:  # not in a fork of a component's
                faulthandler.dump_traceback(self._file)
            leave(status)

        os._exit = write_and_exit

    def request(self, pid: int) -> None:
        """Ask a process for its traceback, and wait until it is there. If it is stopped, it runs on for that."""
        os.kill(pid, TRACE_SIGNAL)
        os.kill(pid, signal.SIGCONT)
        end, before = time.monotonic() + SECONDS_FOR_TRACE, -1
        while time.monotonic() < end and not before == (before := len(self.trace)) > 0:
            time.sleep(0.05)

    def close(self) -> None:
        """Release the memory and the file."""
        self._shared.close()
        self._file.close()

    @property
    def place(self) -> int | None:
        """The place of the environment whose work began last; None: of none yet."""
        (number,) = struct.unpack_from("q", self._shared)
        return number - 1 if number else None

    @property
    def beats(self) -> tuple[int, int]:
        """How often work began, and how often other work than that of an environment."""
        every, other_beats = struct.unpack_from("qq", self._shared, struct.calcsize("q"))
        return every, other_beats

    @property
    def trace(self) -> str:
        """What was written."""
        descriptor = self._file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def frames_of(trace: str) -> tuple[Frame, ...]:
    """Return the frames of the current thread in what faulthandler wrote last, the innermost first.

    >>> frames_of('Current thread 0x1 (most recent call first):\\n  File "/a.py", line 3 in forward\\n')
    (Frame(file='/a.py', line=3, function='forward'),)
    """
    return _frames_in(trace.rpartition("Current thread")[2].partition("\n\n")[0])


def frames_of_others(trace: str) -> list[tuple[Frame, ...]]:
    """Return the frames of each other thread."""
    return [_frames_in(block) for block in trace.split("\n\n") if block.startswith("Thread")]


def _frames_in(block: str) -> tuple[Frame, ...]:
    matches = (_FRAME.match(line) for line in block.splitlines())
    return tuple(Frame(match["file"], int(match["line"]), match["function"]) for match in matches if match)


def find_author(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost line of a plugin's; None if all are Esper's, of what Esper uses, or of Python's library.

    Lines outside of Esper's outermost one belong to the program that called it, such as the command ``esper``.
    """
    names = {part for frame in frames for part in Path(frame.file).parts if part.startswith("esper_")}
    specs = (find_spec(package) for package in names if not is_third_party(package))
    framework = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin is not None]
    outermost = max((place for place, frame in enumerate(frames) if _is_within(frame, framework)), default=len(frames))
    return next((frame for frame in frames[:outermost] if _is_authors(Path(frame.file), framework)), None)


def _is_within(frame: Frame, framework: Sequence[Path]) -> bool:
    """Return whether a line is Esper's, and not of the command ``esper``."""
    parents = Path(frame.file).parents
    return any(folder in parents and folder / "cli" not in parents for folder in framework)


def _is_authors(file: Path, framework: Sequence[Path]) -> bool:
    _, installed, module_path = file.as_posix().rpartition("/site-packages/")
    if installed:
        return is_third_party(module_path.partition("/")[0])
    return file.is_absolute() and not any(folder in file.parents for folder in (*framework, Path(os.__file__).parent))
