"""Watchdog: end a run that stands still in this process, from a process beside it.

What runs here cannot be replaced: policies, rewards, observers, and networks on threads. If none of them returns, or
one crashes the process, the run is ended, and its log and stderr have the traceback of its threads. A
thread could not do that while a component holds Python's lock. Seconds in which the run is stopped do not count.
"""

from __future__ import annotations

import mmap
import os
import re
import select
import signal
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from esper_core.leyline.errors import Problem
from esper_run.watchdog.crash_reports import CrashReport
from esper_run.watchdog.forks import can_fork, fork, is_stopped
from esper_run.watchdog.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_run.watchdog.interruption import Interruption

    OnEnd = Callable[[Problem, str, int], object]


class Heartbeat:
    """Tells the watchdog, in shared memory, that the run goes on.

    Attributes:
        beats: How often work began, and how often other work than that of an environment.
    """

    _LAYOUT: Final = "qq"

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, struct.calcsize(self._LAYOUT))

    def __call__(self, pool_index: int = -1) -> None:
        """Note that work begins, in the environment of this index or elsewhere."""
        every, other = self.beats
        struct.pack_into(self._LAYOUT, self._shared, 0, every + 1, other + (pool_index < 0))

    @property
    def beats(self) -> tuple[int, int]:
        """See above."""
        every, other = struct.unpack_from(self._LAYOUT, self._shared)
        return every, other


TRACE_HINT: Final = "log.txt has the traceback of its threads, too."

SECONDS_BEYOND_GRACE: Final = 4.0
"""How long a run that was asked to end may go on after its grace: its own thread ends it somewhat earlier."""


@contextmanager
def watched(patience: float | None, on_end: OnEnd, interruption: Interruption | None = None) -> Iterator[Heartbeat]:
    """Watch this process within the block; yield what has to be called again and again.

    Args:
        patience: Seconds between two calls after which the process is killed; None: as for workers.
        on_end: Called in the watching process before that, or when the process crashed, with the error, the traceback
            of all threads, and the exit code for the manifest.
        interruption: Whether the run was asked to end; it is killed then, too, if no thread of it can end it.
    """
    if not can_fork():
        yield Heartbeat()
        return
    report, heartbeat, run = CrashReport(), Heartbeat(), os.getpid()
    pid = fork()
    if pid == 0:
        _watch(run, report, heartbeat, Patience(patience), on_end, interruption)
    try:
        with report.enabled():
            yield heartbeat
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        report.close()


def _watch(
    run: int,
    report: CrashReport,
    heartbeat: Heartbeat,
    patience: Patience,
    on_end: OnEnd,
    interruption: Interruption | None,
) -> NoReturn:
    """Watch the process of the run until it ends, or stands still for too long."""
    leave = os._exit
    try:
        tick, waited, beats = min(1.0, patience.seconds / 4), 0.0, (0, 0)
        process, problem = os.pidfd_open(run), None
        while waited < patience.seconds:
            ended, _, _ = select.select([process], [], [], tick)
            if ended or os.getppid() != run:
                if trace := report.trace:
                    how = re.search(r"^Fatal Python error: (.+)", trace, re.MULTILINE)
                    message = f"the run's process crashed: {how[1] if how else 'unknown'}"
                    on_end(Problem("E407", message, hint=TRACE_HINT), trace, 1)
                leave(0)
            if interruption is not None:
                interruption.look()
                if interruption.is_expired(SECONDS_BEYOND_GRACE):
                    cause = f"interrupted by signal {interruption.number}"
                    message = f"{cause}; a component did not return, and the run was killed"
                    problem = Problem("E401", message, hint=TRACE_HINT)
                    break
            if heartbeat.beats != beats:
                beats = heartbeat.beats
                if beats[1]:  # a step is done
                    patience.longest = max(patience.longest or 0.0, waited)
                waited = 0.0
            elif not is_stopped(run):
                waited += tick
        if problem is None:
            hint = f"{TRACE_HINT} If the component is only slow, raise patience."
            problem = Problem("E406", f"the run stood still for {waited:.0f} seconds, and was killed", hint=hint)
        report.request(run)
        on_end(problem, report.trace, 128 + signal.SIGKILL)
        os.kill(run, signal.SIGKILL)
    finally:
        leave(1)
