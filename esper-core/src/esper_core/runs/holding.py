"""Who writes to a run directory? One process at a time: it holds the folder's lock for as long as it lives."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.runs.files import told_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has another way, which nobody has needed so far
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def held(run: Path) -> Iterator[None]:
    """A block in which the run directory is this process's; RunFolderError where it is another's.

    The system lets go of the lock when the process is gone, however it went.
    """
    path = run / LOCK
    with told_plainly(path):
        lock = path.open("a+")
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                owner = lock.read().strip()
                message = f"{run} is in use by another process" + (f" ({owner})" if owner else "")
                hint = "Wait for it to end, or stop it: Ctrl-C lets it finish its step and write a checkpoint."
                raise RunFolderError(Problem("E412", message, hint=hint)) from error
        with told_plainly(path):
            lock.truncate(0)
            lock.write(f"process {os.getpid()}\n")
            lock.flush()
        yield
