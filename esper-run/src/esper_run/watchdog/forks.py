"""Forks: copies of this process, with everything that was prepared, in shared memory."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import torch

from esper_run.watchdog.interruption import END_SIGNALS


def can_fork() -> bool:
    """Return whether worker processes can be used: on Linux, without an accelerator, which no fork could use."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


def fork() -> int:
    """Fork this process, as ``os.fork``. Signals that ask a run to end are ignored in the fork."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # a component replaced or closed it
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, whose locks a fork must not wait for
            pid = os.fork()
        if pid == 0:
            for number in END_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as by SIGSTOP."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")
