"""Interrupts: finish the step in progress when SIGINT, SIGTERM or SIGHUP asks a run to end.

A second SIGINT or SIGTERM ends the process at once. A second SIGHUP is ignored, because a terminal that is closed sends
more than one. Where SIGHUP is ignored when the run starts, as under nohup, it stays ignored.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


def _handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a run to end: SIGHUP only where it exists and is not ignored."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, None):
        return signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    return signal.SIGINT, signal.SIGTERM


class _Note:
    """Keeps what was asked for. ``pressed`` says that no KeyboardInterrupt is of its raising."""

    pressed = False

    def __init__(self) -> None:
        self.signals = _handled_signals()
        self.numbers: list[int] = []
        self.asked = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
        self.asked.set()
        for one in self.signals:
            ends_at_once = one in (signal.SIGINT, signal.SIGTERM)
            signal.signal(one, signal.SIG_DFL if ends_at_once else signal.SIG_IGN)


@contextmanager
def heeded_signals(tell: Callable[[], None] = lambda: None) -> Iterator[Callable[[], None]]:
    """Note SIGINT, SIGTERM and SIGHUP within this block; the function it yields raises Interrupted after one.

    Args:
        tell: Called as soon as a signal comes, in a thread of its own: the step in progress may take a while yet.
    """
    note = _Note()

    def pause() -> None:
        if note.numbers:
            raise Interrupted(note.numbers[0])

    if threading.current_thread() is not threading.main_thread():
        yield pause
        return
    with _told_once(note, tell):
        before = {one: signal.signal(one, note) for one in note.signals}
        try:
            yield pause
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


@contextmanager
def _told_once(note: _Note, tell: Callable[[], None]) -> Iterator[None]:
    """A block in which a thread waits to tell. A handler must not: what it interrupts may be writing there itself."""

    def wait() -> None:
        note.asked.wait()
        if note.numbers:
            with suppress(OSError, ValueError):  # nobody may be there to read it
                tell()

    telling = threading.Thread(target=wait, name="interruption", daemon=True)
    telling.start()
    try:
        yield
    finally:
        note.asked.set()
        telling.join()
