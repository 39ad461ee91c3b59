"""Watchdog: end a run that stands still in this process, from a process beside it.

What runs here cannot be replaced: policies, rewards, observers, and networks on threads. If none of them returns, the
run is ended, and its log, its manifest and stderr say in which line it was. A thread could not do that while a
component holds Python's lock. Seconds in which the run is stopped do not count.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from esper_core.engines.processes import TRACE_SIGNAL, CrashReport, can_fork, fork, frames_of, is_stopped
from esper_core.engines.supervision import Patience, is_authors
from esper_core.leyline.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Heartbeat:
    """Tells the watchdog that the run goes on; does nothing where there is none."""

    def __init__(self, report: CrashReport | None) -> None:
        self._report = report

    def __call__(self, place: int = -1) -> None:
        """Note that work begins, in the environment of this place or elsewhere."""
        if self._report is not None:
            self._report.note_place(place)


@contextmanager
def watched(patience: float | None, on_hang: Callable[[Problem, str], object]) -> Iterator[Heartbeat]:
    """Watch this process within the block; yield what has to be called again and again.

    Args:
        patience: Seconds between two calls after which the process is killed; None: as for workers.
        on_hang: Called in the watching process before that, with the error and the traceback of all threads.
    """
    if not can_fork():
        yield Heartbeat(None)
        return
    report, run = CrashReport(), os.getpid()
    report.listen()
    pid = fork()
    if pid == 0:
        _watch(run, report, Patience(patience), on_hang)
    try:
        yield Heartbeat(report)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        faulthandler.unregister(TRACE_SIGNAL)
        report.close()


def _watch(run: int, report: CrashReport, patience: Patience, on_hang: Callable[[Problem, str], object]) -> NoReturn:
    """Watch the process of the run until it ends, or stands still for too long."""
    leave = os._exit
    try:
        tick, waited, beats = min(1.0, patience.seconds / 4), 0.0, (0, 0)
        while waited < patience.seconds:
            time.sleep(tick)
            if os.getppid() != run:
                leave(0)
            if report.beats != beats:
                beats = report.beats
                if beats[1]:  # a step is done
                    patience.longest = max(patience.longest or 0.0, waited)
                waited = 0.0
            elif not is_stopped(run):
                waited += tick
        report.request(run)
        on_hang(_problem(report.trace, waited), report.trace)
        os.kill(run, signal.SIGKILL)
    finally:
        leave(1)


def _problem(trace: str, seconds: float) -> Problem:
    """Return the error for a run that stood still, with the line that it stood at."""
    frame = next((frame for frame in frames_of(trace) if is_authors(frame)), None)
    function = "" if frame is None else f" in {frame.function}"
    return Problem(
        "E406",
        f"the run stood still for {seconds:.0f} seconds{function}, and was killed",
        file=None if frame is None else frame.file,
        line=None if frame is None else frame.line,
        hint="log.txt has the traceback of its threads. If the component is only slow, raise patience.",
    )
