"""How does a run end when somebody asks it to? The step in progress is finished; a second request leaves at once."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Note:
    """Keeps what was asked for. ``pressed`` says that no KeyboardInterrupt is of its raising."""

    pressed = False

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.asked = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
        self.asked.set()
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)


@contextmanager
def heeded_signals(tell: Callable[[], None] = lambda: None) -> Iterator[Callable[[], None]]:
    """While this lasts SIGINT and SIGTERM are noted; the function it gives raises Interrupted where one was.

    tell: called as soon as one is there, in a thread of its own: the step in progress may take a while yet.
    """
    note = _Note()

    def pause() -> None:
        if note.numbers:
            raise Interrupted(note.numbers[0])

    if threading.current_thread() is not threading.main_thread():
        yield pause
        return
    with _told_once(note, tell):
        before = {one: signal.signal(one, note) for one in _SIGNALS}
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
