"""Crash reports: the traceback that a process leaves behind for its parent.

``faulthandler`` writes it to a file when the process crashes, and when it is asked to. It does so in native code, and
so even where a component holds Python's lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE_SIGNAL: Final = signal.SIGUSR2
"""Asks a process for the traceback of its threads."""

SECONDS_FOR_TRACE: Final = 2.0
"""How long a process may take to write its traceback."""


class CrashReport:
    """The traceback of a process's threads, for its parent to read; made before the fork, so that both have it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as there is a report

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

    def request(self, pid: int) -> None:
        """Ask a process for its traceback, and wait until it is there. If it is stopped, it runs on for that."""
        os.kill(pid, TRACE_SIGNAL)
        os.kill(pid, signal.SIGCONT)
        # The process says nothing when it is done: the traceback is complete once it has not grown for a while.
        end, before = time.monotonic() + SECONDS_FOR_TRACE, -1
        while time.monotonic() < end and not before == (before := len(self.trace)) > 0:
            time.sleep(0.05)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    @property
    def trace(self) -> str:
        """What was written."""
        # Not by ``read``: the position in the file is shared with the process that writes.
        descriptor = self._file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
