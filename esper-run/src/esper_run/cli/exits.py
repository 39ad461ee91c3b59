"""Exits: end the process of a command in bounded time, whatever components left behind."""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import sys
import threading
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, NoReturn

from esper_core.leyline.constants import EXIT_SECONDS, PREPARATION_SECONDS
from esper_core.leyline.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

_STDERR: Final = 2
"""Its file descriptor: ``sys.stderr`` may be replaced by an object without one."""


@contextmanager
def preparation(seconds: float = PREPARATION_SECONDS) -> Iterator[None]:
    """End the process with status 1 if the block takes that long, with the traceback of each thread on stderr.

    For what comes before a run: imports of plugins, the data of a task, trial passes. Python's own timer does it, which
    needs no lock that a component could hold.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def end_process(status: int, seconds: float = EXIT_SECONDS) -> NoReturn:
    """Exit; after so many seconds even if threads that are no daemons still run, which a line on stderr names."""

    def wait() -> None:
        end = monotonic() + seconds
        for thread in _threads_left():
            thread.join(max(0.0, end - monotonic()))
        if names := [_describe(thread) for thread in _threads_left()]:
            line = f"warning: the process ends, although components left threads: {', '.join(names)}"
            with suppress(OSError, ValueError):  # stderr may be closed
                print(printable(line), file=sys.stderr, flush=True)
            for file in [candidate for candidate in gc.get_objects() if issubclass(type(candidate), io.IOBase)]:
                with suppress(Exception):  # closed, for example
                    file.flush()
            os._exit(status)

    if _threads_left():
        threading.Thread(target=wait, name="end", daemon=True).start()  # Python waits for the others itself
    sys.exit(status)


def _threads_left() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]


def _describe(thread: threading.Thread) -> str:
    """Return a thread's name, and the package that started it: the outermost frame that is not Python's own."""
    frame, packages = sys._current_frames().get(thread.ident or 0), []
    while frame is not None:
        packages.append(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back
    package = next((package for package in reversed(packages) if package not in sys.stdlib_module_names), None)
    return f'"{thread.name}"' + (f" of {package}" if package else "")
