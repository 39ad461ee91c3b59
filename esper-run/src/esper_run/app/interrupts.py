"""Interrupts: finish the step in progress when SIGINT, SIGTERM or SIGHUP asks a run to end.

The step has a grace, since it may wait for a worker that hangs. Then the run gives up the step, and ends at its last
checkpoint: workers are killed; and if that does not end the run, because a component in this process does not return,
so is the process.

A second SIGINT or SIGTERM ends the process at once. A second SIGHUP is ignored, because a terminal that is closed sends
more than one. Where SIGHUP is ignored when the run starts, as under nohup, it stays ignored. Timers that a component
sets do not end a run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import EsperError, Interrupted, Problem, printable
from esper_run.runs.records import resume_hint
from esper_run.watchdog import Interruption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType


TIMERS: Final = ("SIGALRM", "SIGVTALRM", "SIGPROF")
"""Signals of timers, where the system has them."""

SECONDS_TO_UNWIND: Final = 3.0
"""How long a run may take to end after its grace, before the process is ended."""


class SignalHandler:
    """Notes the signals that come, and makes a second one end the process.

    Attributes:
        interruption: What the watching process knows of it, too.
        on_overdue: Called in a thread before it ends the process, since the run has not ended in time.
    """

    def __init__(self, grace: float, on_overdue: Callable[[Problem, int], None]) -> None:
        self.interruption, self.on_overdue = Interruption(grace), on_overdue
        self.signals = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, None):
            self.signals.append(signal.SIGHUP)
        self.number: int | None = None
        self.has_ended = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; the next one ends the process, or is ignored."""
        self.number = number
        self.interruption.note(number)
        for signal_number in self.signals:
            ends_at_once = signal_number in (signal.SIGINT, signal.SIGTERM)
            signal.signal(signal_number, signal.SIG_DFL if ends_at_once else signal.SIG_IGN)

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
        if self.interruption.is_expired():
            error = Interrupted(self.interruption.number)
            EsperError.__init__(error, self.overdue())
            raise error

    def overdue(self) -> Problem:
        """Return the problem of a step that did not end in time."""
        grace = f"{self.interruption.grace:g} seconds"
        message = f"interrupted by signal {self.interruption.number}; the current step did not end within {grace}"
        return Problem("E401", message, hint="It is repeated when the run is resumed from its last checkpoint.")

    def watch(self, run: Path) -> None:
        """Wait for a signal, in a thread: the code that a signal handler interrupts may be writing to stderr."""
        try:
            number = self.interruption.wait()
        except (OSError, ValueError):  # a component closed the files of this process
            return
        if not number:
            return
        with suppress(OSError, ValueError):  # the terminal may be closed
            announce_end(run)
        # A notebook goes on after a run, and its user can interrupt again.
        if not self.has_ended.wait(self.interruption.grace + SECONDS_TO_UNWIND) and "ipykernel" not in sys.modules:
            try:
                self.on_overdue(self.overdue(), 128 + number)
            finally:
                os._exit(128 + number)


@contextmanager
def handled_signals(
    run: Path, grace: float = 20.0, on_overdue: Callable[[Problem, int], None] = lambda problem, exit_code: None
) -> Iterator[SignalHandler]:
    """Handle the signals that ask a run to end within the block; yield what raises Interrupted after one.

    As soon as a signal comes, stderr says that the run ends with this step, and how to resume it.

    Args:
        run: The run directory, as the user names it.
        grace: Seconds that the step may take.
        on_overdue: Called before the process is ended, since the block did not end after the grace: with the problem
            and the exit code.
    """
    handler = SignalHandler(grace, on_overdue)
    if threading.current_thread() is not threading.main_thread():
        yield handler
        handler.interruption.close()
        return
    watching = threading.Thread(target=handler.watch, args=(run,), name="interruption", daemon=True)
    watching.start()
    before = {signal_number: signal.signal(signal_number, handler) for signal_number in handler.signals}
    for name in TIMERS:  # a component that sets one without a handler would kill the run without a message
        timer: Any = getattr(signal, name, None)
        if timer is not None and signal.getsignal(timer) is signal.SIG_DFL:
            before[timer] = signal.signal(timer, handler.ignore)
    try:
        with handler.interruption.received():
            yield handler
    finally:
        for signal_number, previous in before.items():
            signal.signal(signal_number, previous)
        handler.has_ended.set()
        handler.interruption.stop_waiting()
        watching.join(1.0)  # it waits for ever where a component closed its socket
        handler.interruption.close()


def announce_end(run: Path) -> None:
    """Print on stderr that the run ends with this step, and how to resume it."""
    print("Stopping after this step; interrupt again to stop at once. Either way:", file=sys.stderr)
    print(f"  {printable(resume_hint(run))}", file=sys.stderr, flush=True)
