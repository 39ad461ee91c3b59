"""Interrupts: finish the step in progress when SIGINT, SIGTERM or SIGHUP asks a run to end.

The step has a grace, since it may wait for a worker that hangs. Then the run gives up the step, and ends at its last
checkpoint.

A second SIGINT or SIGTERM ends the process at once. A second SIGHUP is ignored, because a terminal that is closed sends
more than one. Where SIGHUP is ignored when the run starts, as under nohup, it stays ignored. Timers that a component
sets do not end a run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import EsperError, Interrupted, Problem, printable
from esper_run.runs.records import resume_hint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType


TIMERS: Final = ("SIGALRM", "SIGVTALRM", "SIGPROF")
"""Signals of timers, where the system has them."""


class SignalHandler:
    """Notes the first signal, and makes a second one end the process.

    Args:
        run: The run directory, as the user names it.
        grace: Seconds that the step in progress may take after the signal.
    """

    def __init__(self, run: Path, grace: float) -> None:
        self.run, self.grace = run, grace
        self.signals = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, None):
            self.signals.append(signal.SIGHUP)
        self.number: int | None = None
        self.since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, and announce the end; the next one ends the process, or is ignored."""
        self.number, self.since = number, time.monotonic()
        for signal_number in self.signals:
            ends_at_once = signal_number in (signal.SIGINT, signal.SIGTERM)
            signal.signal(signal_number, signal.SIG_DFL if ends_at_once else signal.SIG_IGN)
        announce_end(self.run)

    def __eq__(self, other: object) -> bool:
        """Equal what replaces it when a signal comes, so that no component is blamed for that change."""
        return self is other or (self.number is not None and other in (signal.SIG_DFL, signal.SIG_IGN))

    __hash__ = object.__hash__

    @staticmethod
    def ignore(number: int, frame: FrameType | None) -> None:
        """Do nothing, where the signal would kill the process; programs that it starts do not inherit this."""

    def raise_if_interrupted(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.number is not None:
            raise Interrupted(self.number)

    def raise_if_expired(self) -> None:
        """Raise Interrupted if a signal came, and its grace has passed: the step in progress is given up."""
        if self.number is not None and time.monotonic() - self.since >= self.grace:
            error = Interrupted(self.number)
            message = f"interrupted by signal {self.number}; the current step did not end within {self.grace:g} seconds"
            hint = "It is repeated when the run is resumed from its last checkpoint."
            EsperError.__init__(error, Problem("E401", message, hint=hint))
            raise error


@contextmanager
def handled_signals(run: Path, grace: float = 20.0) -> Iterator[SignalHandler]:
    """Handle the signals that ask a run to end within the block; yield what raises Interrupted after one.

    As soon as a signal comes, stderr says that the run ends with this step, and how to resume it.

    Args:
        run: The run directory, as the user names it.
        grace: Seconds that the step may take.
    """
    handler = SignalHandler(run, grace)
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    before = {signal_number: signal.signal(signal_number, handler) for signal_number in handler.signals}
    for name in TIMERS:  # a component that sets one without a handler would kill the run without a message
        timer: Any = getattr(signal, name, None)
        if timer is not None and signal.getsignal(timer) is signal.SIG_DFL:
            before[timer] = signal.signal(timer, handler.ignore)
    try:
        yield handler
    finally:
        for signal_number, previous in before.items():
            signal.signal(signal_number, previous)


def announce_end(run: Path) -> None:
    """Print on stderr that the run ends with this step, and how to resume it."""
    text = "Stopping after this step; interrupt again to stop at once. Either way:\n"
    # Past Python's buffer: the code that a signal handler interrupts may be writing to it.
    with suppress(OSError, ValueError):  # the terminal may be closed
        os.write(sys.stderr.fileno(), f"{text}  {printable(resume_hint(run))}\n".encode(errors="backslashreplace"))
