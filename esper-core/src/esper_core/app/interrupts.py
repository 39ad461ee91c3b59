"""Interrupts: finish the step in progress when SIGINT, SIGTERM or SIGHUP asks a run to end.

A second SIGINT or SIGTERM ends the process at once. A second SIGHUP is ignored, because a terminal that is closed sends
more than one. Where SIGHUP is ignored when the run starts, as under nohup, it stays ignored.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Interrupted, printable
from esper_core.runs.records import resume_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType


class _SignalHandler:
    """Notes the signals that come, and makes a second one end the process."""

    def __init__(self) -> None:
        self.signals = _handled_signals()
        self.numbers: list[int] = []
        self.received = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
        self.received.set()
        for one in self.signals:
            ends_at_once = one in (signal.SIGINT, signal.SIGTERM)
            signal.signal(one, signal.SIG_DFL if ends_at_once else signal.SIG_IGN)

    def raise_if_interrupted(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.numbers:
            raise Interrupted(self.numbers[0])


def _handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a run to end: SIGHUP only where it exists and is not ignored."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, None):
        return signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    return signal.SIGINT, signal.SIGTERM


@contextmanager
def handled_signals(run: Path | None = None) -> Iterator[Callable[[], None]]:
    """Handle the signals that ask a run to end within the block; yield a function that raises Interrupted after one.

    Args:
        run: The run directory, as the user names it. As soon as a signal comes, stderr says that the run ends with
            this step, and how to resume it: the step in progress may take a while.
    """
    handler = _SignalHandler()
    if threading.current_thread() is not threading.main_thread():
        yield handler.raise_if_interrupted
        return
    with _announcement(handler, run):
        before = {one: signal.signal(one, handler) for one in handler.signals}
        try:
            yield handler.raise_if_interrupted
        finally:
            for one, previous in before.items():
                signal.signal(one, previous)


@contextmanager
def _announcement(handler: _SignalHandler, run: Path | None) -> Iterator[None]:
    """Announce the end from a thread: what a signal handler interrupts may itself be writing to stderr."""

    def wait() -> None:
        handler.received.wait()
        if handler.numbers:
            with suppress(OSError, ValueError):  # the terminal may be closed
                announce_end(run)

    thread = threading.Thread(target=wait, name="interruption", daemon=True)
    thread.start()
    try:
        yield
    finally:
        handler.received.set()
        thread.join()


def announce_end(run: Path | None) -> None:
    """Print on stderr that the run ends with this step, and how to resume it."""
    if run is None:
        print("Stopping after this step; interrupt again to stop at once.", file=sys.stderr, flush=True)
        return
    print("Stopping after this step; interrupt again to stop at once. Either way:", file=sys.stderr)
    print(f"  {printable(resume_hint(run))}", file=sys.stderr, flush=True)
