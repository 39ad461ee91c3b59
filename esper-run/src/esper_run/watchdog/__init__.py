"""The watchdog: end a run that stands still or crashed, and say where it was.

What is here:
    crash_reports: the traceback that a process leaves behind.
    forks: copies of this process.
    interruption: which signal asked the run to end, and since when.
    patience: after how many seconds a component counts as hanging.
    watchdog: watches this process from a process beside it. Begin with its ``watched``.
"""

from esper_run.watchdog.crash_reports import TRACE_SIGNAL, CrashReport
from esper_run.watchdog.forks import can_fork, fork, is_stopped
from esper_run.watchdog.interruption import Interruption
from esper_run.watchdog.patience import Patience
from esper_run.watchdog.watchdog import Heartbeat, watched

__all__ = [
    "TRACE_SIGNAL",
    "CrashReport",
    "Heartbeat",
    "Interruption",
    "Patience",
    "can_fork",
    "fork",
    "is_stopped",
    "watched",
]
