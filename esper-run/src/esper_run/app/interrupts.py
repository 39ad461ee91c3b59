"""Interrupts: finish the step in progress when SIGINT, SIGTERM or SIGHUP asks a run to end.

A second SIGINT or SIGTERM ends the process at once. A second SIGHUP is ignored, because a terminal that is closed sends
more than one. Where SIGHUP is ignored when the run starts, as under nohup, it stays ignored. Timers that a component
sets do not end a run.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import Interrupted, printable
from esper_run.runs.records import resume_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType


TIMERS: Final = ("SIGALRM", "SIGVTALRM", "SIGPROF")
"""Signals of timers, where the system has them."""


class _SignalHandler:
    """Notes the signals that come, and makes a second one end the process."""

    def __init__(self) -> None:
        self.signals = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, None):
            self.signals.append(signal.SIGHUP)
        self.number: int | None = None
        self.wake_up = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.wake_up.set()
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

    def announce(self, run: Path) -> None:
        """Wait for a signal, in a thread: the code that a signal handler interrupts may be writing to stderr."""
        self.wake_up.wait()
        if self.number is not None:
            with suppress(OSError, ValueError):  # the terminal may be closed
                announce_end(run)


@contextmanager
def handled_signals(run: Path) -> Iterator[Callable[[], None]]:
    """Handle the signals that ask a run to end within the block; yield a function that raises Interrupted after one.

    As soon as a signal comes, stderr says that the run ends with this step, and how to resume it.

    Args:
        run: The run directory, as the user names it.
    """
    handler = _SignalHandler()
    if threading.current_thread() is not threading.main_thread():
        yield handler.raise_if_interrupted
        return
    announcement = threading.Thread(target=handler.announce, args=(run,), name="interruption", daemon=True)
    announcement.start()
    before = {signal_number: signal.signal(signal_number, handler) for signal_number in handler.signals}
    for name in TIMERS:  # a component that sets one without a handler would kill the run without a message
        timer: Any = getattr(signal, name, None)
        if timer is not None and signal.getsignal(timer) is signal.SIG_DFL:
            before[timer] = signal.signal(timer, handler.ignore)
    try:
        yield handler.raise_if_interrupted
    finally:
        for signal_number, previous in before.items():
            signal.signal(signal_number, previous)
        handler.wake_up.set()
        announcement.join()


def announce_end(run: Path) -> None:
    """Print on stderr that the run ends with this step, and how to resume it."""
    print("Stopping after this step; interrupt again to stop at once. Either way:", file=sys.stderr)
    print(f"  {printable(resume_hint(run))}", file=sys.stderr, flush=True)
