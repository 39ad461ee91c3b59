"""Where does it go what a thread beside the run prints? To stderr: stdout belongs to the command's result.

``contextlib.redirect_stdout`` turns the streams of every thread, and two threads that use it at once may leave them
turned. Here one stream stands before the real one and looks who writes.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


class Parted:
    """``sys.stdout`` or ``sys.stderr`` for all threads but its guests: what these print goes to stderr.

    A guest cannot close it. It is put in place, and taken away, by the thread that the run is on.
    """

    def __init__(self, name: str, own: TextIO) -> None:
        self._name = name
        self._own = own
        self._guests: set[int] = set()

    def take_in(self, thread: int) -> None:
        """From now on this thread, by its number, is a guest."""
        self._guests.add(thread)

    def let_go(self, thread: int) -> None:
        """It is none any more; the last one that goes leaves things as they were."""
        self._guests.discard(thread)
        if not self._guests and getattr(sys, self._name) is self:
            setattr(sys, self._name, self._own)

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._name == "stdout" and self._has_guest else self._own

    @property
    def _has_guest(self) -> bool:
        return threading.get_ident() in self._guests

    def close(self) -> None:
        """Close it; a guest only has written what is waiting."""
        if self._has_guest:
            self._stream.flush()
        else:
            self._own.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


def parted_streams(thread: int) -> list[Parted]:
    """Both streams, with this thread as a guest; ``let_go`` ends it."""
    parted = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Parted):
            stream = Parted(name, stream)
            setattr(sys, name, stream)
        stream.take_in(thread)
        parted.append(stream)
    return parted
