"""Who writes to a run directory? One process at a time: it holds the folder's lock for as long as it lives."""

from __future__ import annotations

import os
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO

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

    The system lets go of the lock when the process is gone, however it went. A fork of it has no part in the lock.
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
            os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(lock)))
        with told_plainly(path):
            lock.truncate(0)
            lock.write(f"process {os.getpid()}\n")
            lock.flush()
        yield


def _let_go(lock: weakref.ref[TextIO]) -> None:
    """In a fork: be no reason for which the lock stays when its process is gone."""
    if (own := lock()) is not None:
        own.close()
