"""Interruption: which signal asked the run to end, and since when, in memory that the watching process shares.

A component that does not return to Python keeps Python's own handler from being called. The signal is still written to
a socket at once, by Python's native code: a thread reads it there, and where a component holds Python's lock, and no
thread can run, the watching process finds it unread.
"""

from __future__ import annotations

import mmap
import select
import signal
import socket
import struct
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

END_SIGNALS: Final = frozenset(number for number in signal.Signals if number.name in ("SIGHUP", "SIGINT", "SIGTERM"))
"""Signals that ask a run to end."""

_LAYOUT: Final = "qd"
_NO_MORE: Final = b"\0"


class Interruption:
    """The first signal that asked a run to end.

    Attributes:
        grace: Seconds that the step in progress may take afterwards.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._shared = mmap.mmap(-1, struct.calcsize(_LAYOUT))
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    @property
    def number(self) -> int:
        """The signal; 0: none came."""
        number: int = struct.unpack_from(_LAYOUT, self._shared)[0]
        return number

    def note(self, number: int) -> None:
        """Note a signal, unless there was one before."""
        if number in END_SIGNALS and not self.number:
            struct.pack_into(_LAYOUT, self._shared, 0, number, time.monotonic())

    def is_expired(self, more: float = 0.0) -> bool:
        """Return whether the grace has passed since the signal, and so many seconds more."""
        number, since = struct.unpack_from(_LAYOUT, self._shared)
        return bool(number) and time.monotonic() - since >= self.grace + more

    @contextmanager
    def received(self) -> Iterator[None]:
        """Let signals be written to the socket within the block. Called by the main thread."""
        before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def wait(self) -> int:
        """Wait for a signal, and return it; 0 after ``stop_waiting``."""
        while True:
            # Looked at before it is taken: this thread may not get Python's lock any more when it has read the signal.
            select.select([self._reader], [], [])
            self.look()
            if self.number or self._reader.recv(1) == _NO_MORE:
                return self.number

    def stop_waiting(self) -> None:
        """End ``wait``, which looks at what came before."""
        with suppress(OSError):  # it is full, or a component closed it
            self._writer.send(_NO_MORE)

    def look(self) -> None:
        """Note a signal that no thread has read."""
        with suppress(BlockingIOError, ConnectionError):
            for number in self._reader.recv(4096, socket.MSG_PEEK):
                self.note(number)

    def close(self) -> None:
        """Release the socket and the memory."""
        for end in (self._reader, self._writer):
            with suppress(OSError):
                end.close()
        self._shared.close()
