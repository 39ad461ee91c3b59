"""Watchdog: end a run that stands still in this process, from a process beside it.

What runs here cannot be replaced: policies, rewards, observers, and networks on threads. If none of them returns, or
one crashes the process, the run is ended, and its log, its manifest and stderr say in which line it was. A
thread could not do that while a component holds Python's lock. Seconds in which the run is stopped do not count.
"""

from __future__ import annotations

import os
import re
import select
import signal
from contextlib import contextmanager
from inspect import getfile
from itertools import chain
from typing import TYPE_CHECKING, Final, NoReturn

from esper_core.leyline.errors import Problem
from esper_core.telemetry import SinkThread
from esper_run.watchdog.crash_reports import CrashReport, find_author, frames_of, frames_of_others
from esper_run.watchdog.forks import can_fork, fork, is_stopped
from esper_run.watchdog.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_run.watchdog.crash_reports import Frame

    OnEnd = Callable[[Problem, str, int], object]


_HINT: Final = "log.txt has the traceback of its threads."


class Heartbeat:
    """Tells the watchdog that the run goes on; does nothing where there is none."""

    def __init__(self, report: CrashReport | None) -> None:
        self._report = report

    def __call__(self, place: int = -1) -> None:
        """Note that work begins, in the environment of this place or elsewhere."""
        if self._report is not None:
            self._report.note_place(place)


@contextmanager
def watched(patience: float | None, on_end: OnEnd) -> Iterator[Heartbeat]:
    """Watch this process within the block; yield what has to be called again and again.

    Args:
        patience: Seconds between two calls after which the process is killed; None: as for workers.
        on_end: Called in the watching process before that, or when the process crashed, with the error, the traceback
            of all threads, and the exit code for the manifest.
    """
    if not can_fork():
        yield Heartbeat(None)
        return
    report, run = CrashReport(), os.getpid()
    pid = fork()
    if pid == 0:
        _watch(run, report, Patience(patience), on_end)
    try:
        with report.enabled():
            yield Heartbeat(report)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        report.close()


def _watch(run: int, report: CrashReport, patience: Patience, on_end: OnEnd) -> NoReturn:
    """Watch the process of the run until it ends, or stands still for too long."""
    leave = os._exit
    try:
        tick, waited, beats = min(1.0, patience.seconds / 4), 0.0, (0, 0)
        process = os.pidfd_open(run)
        while waited < patience.seconds:
            ended, _, _ = select.select([process], [], [], tick)
            if ended or os.getppid() != run:
                if trace := report.trace:
                    on_end(_crash(trace), trace, 1)
                leave(0)
            if report.beats != beats:
                beats = report.beats
                if beats[1]:  # a step is done
                    patience.longest = max(patience.longest or 0.0, waited)
                waited = 0.0
            elif not is_stopped(run):
                waited += tick
        report.request(run)
        on_end(_hang(report.trace, waited), report.trace, 128 + signal.SIGKILL)
        os.kill(run, signal.SIGKILL)
    finally:
        leave(1)


def _hang(trace: str, seconds: float) -> Problem:
    """Return the error for a run that stood still, with the line that it stood at."""
    hint = f"{_HINT} If the component is only slow, raise patience."
    return _problem("E406", f"the run stood still for {seconds:.0f} seconds%s, and was killed", trace, hint)


def _crash(trace: str) -> Problem:
    """Return the error for a run whose process was ended by a component, with the line that did it."""
    how = re.search(r"^Fatal Python error: (.+)", trace, re.MULTILINE)
    return _problem("E407", f"the run's process crashed%s: {how[1] if how else 'unknown'}", trace, _HINT)


def _problem(code: str, message: str, trace: str, hint: str) -> Problem:
    """Return an error with the line of a plugin's: of the thread at work, or else of another one."""
    other_threads = (frames for frames in frames_of_others(trace) if not any(map(_is_of_a_sink, frames)))
    candidates = (find_author(frames) for frames in chain([frames_of(trace)], other_threads))
    frame = next((frame for frame in candidates if frame is not None), None)
    message %= "" if frame is None else f" in {frame.function}"
    file, line = (None, None) if frame is None else (frame.file, frame.line)
    return Problem(code, message, file=file, line=line, hint=hint)


def _is_of_a_sink(frame: Frame) -> bool:
    """Return whether a line belongs to the thread of a sink, which no run waits for."""
    return frame.file == getfile(SinkThread)
