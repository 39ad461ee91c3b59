"""Worker processes: each is forked from the run, with everything that was prepared, in shared memory.

A process computes with one thread, ignores the signals that ask a run to end, since its parent handles them, and exits
as soon as its parent does. It must never wait for a lock that another thread of its parent held when it was forked, for
it has no such thread. So it has streams of its own; Python and glibc take care of their locks, and torch of its engine
where nobody uses an accelerator. Requests and replies are pickled between a process and its own fork.

So that the end of a process can be explained, it leaves a breadcrumb in shared memory, and writes the traceback of its
threads to a file when it crashes, and when it is asked to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from esper_run.watchdog import TRACE_SIGNAL, CrashReport, fork, is_stopped
from esper_run.watchdog.crash_reports import SECONDS_FOR_TRACE
from esper_scale.engines.breadcrumbs import BreadcrumbMemory
from esper_scale.engines.protocol import WorkerEnd, WorkerGone
from esper_scale.engines.shard import Shard, serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from esper_core.trainer import Recipe
    from esper_scale.engines.protocol import Order, Reply, Request

SECONDS_OF_TRANSFER: Final = 30
"""How long the transfer of a message may stand still."""

_DEATH_SIGNAL: Final = 1
"""``PR_SET_PDEATHSIG``, as prctl.h numbers it."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ForkEngine:
    """Starts worker processes that have the recipe in common with this process."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._lifeline = Lifeline()

    def start(self, order: Order) -> ForkedWorker:
        """Fork a worker process."""

        def run(connection: Connection[Any, Any], breadcrumbs: BreadcrumbMemory) -> None:
            serve(lambda warn: Shard(order, self._recipe, warn, breadcrumbs), _OwnConnection(connection))

        return ForkedWorker(run, self._lifeline)

    def close(self) -> None:
        """Let workers that are left exit."""
        self._lifeline.cut()


class ForkedWorker:
    """A forked process that runs ``run`` with its end of a pipe."""

    def __init__(self, run: Callable[[Connection[Any, Any], BreadcrumbMemory], None], lifeline: Lifeline) -> None:
        self._status: int | None = None
        self._report, self._breadcrumbs = CrashReport(), BreadcrumbMemory()
        self._pipe, other = Pipe()
        _limit_transfers(self._pipe)
        is_main = threading.current_thread() is threading.main_thread()
        self.pid = fork()
        if self.pid == 0:
            self._pipe.close()
            _run_fork(partial(run, other, self._breadcrumbs), self._report, lifeline, ends_with_thread=is_main)
        other.close()

    def send(self, request: Request) -> None:
        """Send a request. If the process is gone, ``receive`` says so."""
        with suppress(OSError):
            self._pipe.send(request)

    def receive(self, seconds: float) -> Reply:
        """Return the next reply. See ``Worker``."""
        try:
            if not self._pipe.poll(seconds):
                raise TimeoutError
            reply: Reply = self._pipe.recv()
        except BlockingIOError:  # it stopped in the middle of a message
            raise TimeoutError from None
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise WorkerGone from error
        return reply

    def end(self) -> WorkerEnd:
        """End the process if it still runs, and return how it ended and what it was doing."""
        name = ""
        if self._status is None and self._is_running():
            how, what = ("was stopped",) * 2 if is_stopped(self.pid) else ("did not reply", "did not return")
            self._report.request(self.pid)  # one that is stopped runs on for that
            self._kill()
        else:
            status = self._wait()
            name = signal.Signals(-status).name if status < 0 else ""
            how = f"was ended by {name}" if name else f"exited with code {status}"
            what = f"ended the process by {name}" if name else f"ended the process with code {status}"
        end = WorkerEnd(how, what, name, self._breadcrumbs.read(), self._report.trace)
        self.close()
        return end

    def close(self) -> None:
        """Kill the process. A cut lifeline is not enough, because forks that came later hold it as well."""
        self._kill()
        self._report.close()
        self._breadcrumbs.close()

    def _kill(self) -> None:
        self._pipe.close()
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def _is_running(self) -> bool:
        """Return whether the process runs, or is stopped. One whose pipe has ended is about to exit."""
        try:
            has_hung_up = self._pipe.closed or self._pipe.poll(0)
        except OSError:
            has_hung_up = True
        end = time.monotonic() + SECONDS_FOR_TRACE if has_hung_up else 0.0
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._status = os.waitstatus_to_exitcode(status)
            if done or time.monotonic() >= end:
                return not done
            time.sleep(0.01)

    def _wait(self) -> int:
        """Wait for the process, and return its exit code, or the negative number of the signal that ended it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


class _OwnConnection:
    """A worker's end of its pipe. A fork of the worker that a component made ends before it sends a reply, too."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection, self._pid = connection, os.getpid()
        self.recv = connection.recv

    def send(self, message: Any) -> None:
        """Send a reply."""
        if os.getpid() != self._pid:
            os._exit(1)
        self._connection.send(message)


class Lifeline:
    """A pipe that nothing is written to. Reading ends in every fork once the parent has closed its end, or died."""

    def __init__(self) -> None:
        self._ends = list(os.pipe())

    def hold_on(self) -> None:
        """Exit this forked process as soon as no process has the other end open."""
        read_end, write_end = self._ends
        os.close(write_end)
        leave = os._exit

        def wait() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {TRACE_SIGNAL})  # the traceback is that of the main thread
            os.read(read_end, 1)
            leave(0)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def cut(self) -> None:
        """Close the parent's end. May be called twice."""
        while self._ends:
            os.close(self._ends.pop())


def _run_fork(run: Callable[[], None], report: CrashReport, lifeline: Lifeline, *, ends_with_thread: bool) -> NoReturn:
    """Run the forked process to its end. It may be killed with the thread that forked it, even if it is stopped."""
    code, leave = 1, os._exit
    try:
        if ends_with_thread:
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123  for as long as there is this process
        stderr = open(2, "w", buffering=1, closefd=False, errors="replace", encoding="utf-8")  # noqa: SIM115
        sys.stdout = sys.stderr = stderr
        lifeline.hold_on()
        torch.set_num_threads(1)

        with report.enabled():
            run()
        code = 0
    except EOFError:
        code = 0  # the parent closed the pipe
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def _limit_transfers(pipe: Connection[Any, Any]) -> None:
    """Let a transfer through ``pipe`` raise BlockingIOError when it stands still for too long."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as other:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            other.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", SECONDS_OF_TRANSFER, 0))
