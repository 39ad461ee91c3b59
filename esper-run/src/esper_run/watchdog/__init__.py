"""The watchdog: end a run that stands still or crashed, and say in which line.

What is here:
    crash_reports: what a process leaves behind, and whose line it was at.
    forks: copies of this process.
    patience: after how many seconds a component counts as hanging.
    watchdog: watches this process from a process beside it. Begin with its ``watched``.
"""

from esper_run.watchdog.crash_reports import TRACE_SIGNAL, CrashReport, Frame, find_author, frames_of
from esper_run.watchdog.forks import can_fork, fork, is_stopped
from esper_run.watchdog.patience import Patience
from esper_run.watchdog.watchdog import Heartbeat, watched

__all__ = [
    "TRACE_SIGNAL",
    "CrashReport",
    "Frame",
    "Heartbeat",
    "Patience",
    "can_fork",
    "find_author",
    "fork",
    "frames_of",
    "is_stopped",
    "watched",
]
