"""How are a few lines kept at the foot of a terminal while others are printed? They are erased and drawn again.

Nothing is switched on that would have to be switched off: the cursor stays to be seen, at the beginning of the line
below, so that a terminal is in order whenever the process dies.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from threading import RLock, current_thread, main_thread
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO


class Screen:
    """The lines at the foot of the terminal ``stream``. Any thread may draw them, and print above them.

    continued: whether the process was stopped, and goes on, since it was asked last.
    """

    def __init__(self, stream: TextIO, continued: Callable[[], bool] = lambda: False) -> None:
        self._stream = stream
        self._continued = continued
        self._lock = RLock()
        self._lines: list[str] = []
        self._drawn: list[int] = []
        """Columns of the lines that are on the terminal."""
        self._waiting = ""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal, as they are now."""
        with suppress(OSError, ValueError):
            size = os.get_terminal_size(self._stream.fileno())
            if size.columns > 0 and size.lines > 0:
                return size
        return get_terminal_size()

    def show(self, lines: Sequence[str]) -> None:
        """Have these lines stand there instead of those before. They have to be narrower than the terminal."""
        with self._lock:
            self._lines = list(lines)
            self._draw()

    def print(self, text: str) -> None:
        """Print above the lines, what is whole of it; the rest waits for its end."""
        with self._lock:
            whole, end, self._waiting = (self._waiting + text).rpartition("\n")
            if end:
                self._draw(whole + end)

    def close(self) -> None:
        """Erase the lines, and print what waits."""
        with self._lock:
            self._lines = []
            self._draw(self._waiting)
            self._waiting = ""

    def _draw(self, above: str = "") -> None:
        """Erase, print what comes above, and draw, in one go.

        Where the terminal was another's meanwhile, what was drawn stays where it is, and the next is drawn below. As
        long as it is another's, nothing is drawn.
        """
        in_front = self._in_front()
        if self._continued() or not in_front:
            self._drawn = []
        if not in_front:
            self._write(above)
            return
        self._write(self._erasing() + above + "".join(f"{line}\n" for line in self._lines))
        self._drawn = [columns(click.unstyle(line)) for line in self._lines]

    def _erasing(self) -> str:
        """What clears the lines, each by itself, and takes the cursor to the first of them.

        Where the terminal became narrower it broke the lines, and there are more. To clear the rest of a screen at once
        would be shorter; but from its top on tmux takes that for a new page, and keeps the old one in its history.
        """
        columns, height = self.size
        rows = sum(max(1, -(-one // max(1, columns))) for one in self._drawn)
        rows = min(rows, max(1, height - 1))
        back = f"\x1b[{rows}A"
        return f"\r\x1b[K{back}" + "\x1b[2K\n" * rows + back if rows else ""

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()

    def _in_front(self) -> bool:
        """Whether the terminal is this process's, and not the shell's that has sent it into the background."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except (OSError, ValueError, AttributeError):  # it is not the terminal that commands come from
            return True


@contextmanager
def told_of_continuation() -> Iterator[Callable[[], bool]]:
    """A block with a function that says whether the process was stopped, and goes on, since it was asked last.

    Any thread may ask, at once: a handler would run in the main thread, and wait there for what torch is at.
    """
    if current_thread() is not main_thread() or not hasattr(signal, "SIGCONT"):
        yield lambda: False
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    handler = signal.signal(signal.SIGCONT, lambda *_: None)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def continued() -> bool:
        try:
            return signal.SIGCONT in os.read(reading, 4096)
        except OSError:
            return False

    try:
        yield continued
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCONT, handler)
        os.close(reading)
        os.close(writing)


class Above:
    """A stream that stands before a screen's: what is written there comes to stand above the lines."""

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self._screen = screen
        self._stream = stream

    def write(self, text: str) -> int:
        """Print it."""
        self._screen.print(text)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        """Print them."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Whole lines are there already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
