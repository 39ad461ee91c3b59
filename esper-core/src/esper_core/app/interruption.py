"""How does a run end when somebody asks it to? The step in progress is finished; a second request leaves at once."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heeded_signals() -> Iterator[Callable[[], None]]:
    """While this lasts SIGINT and SIGTERM are noted; the function it gives raises Interrupted where one was."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)

    def pause() -> None:
        if noted:
            raise Interrupted(noted[0])

    if threading.current_thread() is not threading.main_thread():
        yield pause
        return
    before = {one: signal.signal(one, note) for one in _SIGNALS}
    try:
        yield pause
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
