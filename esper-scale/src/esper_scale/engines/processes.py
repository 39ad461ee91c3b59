"""Worker processes: each is forked from the run, with everything that was prepared, in shared memory.

A process computes with one thread, ignores the signals that ask a run to end, since its parent handles them, and exits
as soon as its parent does. It must never wait for a lock that another thread of its parent held when it was forked, for
it has no such thread. So it has streams of its own; Python and glibc take care of their locks, and torch of its engine
where nobody uses an accelerator. Requests and replies are pickled between a process and its own fork.

So that the loss of a process can be explained, it notes in shared memory which environment is at work, and writes the
traceback of its threads to a file when it crashes, when plugin code ends it, and when it is asked to.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import re
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from esper_scale.engines.protocol import Frame, Loss, WorkerGone
from esper_scale.engines.shard import Shard, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from esper_core.trainer.environment import Recipe
    from esper_core.trainer.forward import Notices
    from esper_scale.engines.ahead import Decider
    from esper_scale.engines.protocol import Order, Reply, Request

TRACE_SIGNAL: Final = signal.SIGUSR2
"""Asks a worker process for the traceback of its threads."""

SECONDS_FOR_TRACE: Final = 2.0
"""How long a worker process may take to write its traceback."""

SECONDS_OF_TRANSFER: Final = 30
"""How long the transfer of a message may stand still."""

_END_SIGNALS: Final = {number for number in signal.Signals if number.name in ("SIGHUP", "SIGINT", "SIGTERM")}
_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_DEATH_SIGNAL: Final = 1
"""``PR_SET_PDEATHSIG``, as prctl.h numbers it."""


def can_fork() -> bool:
    """Return whether worker processes can be used: on Linux, without an accelerator, which no fork could use."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


class ForkEngine:
    """Starts worker processes that have recipe and policies in common with this process."""

    def __init__(self, recipe: Recipe, decider: Decider | None = None) -> None:
        self._recipe, self._decider = recipe, decider
        self._lifeline = Lifeline()

    def start(self, order: Order) -> ForkedWorker:
        """Fork a worker process."""

        def run(connection: Connection[Any, Any], report: CrashReport) -> None:
            make = partial(self._make, order, report)
            serve(make, _OwnConnection(connection), self._decider)

        return ForkedWorker(run, self._lifeline)

    def _make(self, order: Order, report: CrashReport, notices: Notices) -> Shard:
        return Shard.of(order, self._recipe, notices, report.note_place)

    def close(self) -> None:
        """Let workers that are left exit."""
        self._lifeline.cut()


def fork() -> int:
    """Fork this process, as ``os.fork``. Signals that ask a run to end are ignored in the fork."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # a component replaced or closed it
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see the module docstring
            pid = os.fork()
        if pid == 0:
            for number in _END_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


class ForkedWorker:
    """A forked process that runs ``run`` with its end of a pipe."""

    def __init__(self, run: Callable[[Connection[Any, Any], CrashReport], None], lifeline: Lifeline) -> None:
        self._status: int | None = None
        self._report = CrashReport()
        self._pipe, other = Pipe()
        _limit_transfers(self._pipe)
        is_main = threading.current_thread() is threading.main_thread()
        self.pid = fork()
        if self.pid == 0:
            self._pipe.close()
            _run_fork(partial(run, other, self._report), self._report, lifeline, ends_with_thread=is_main)
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

    def end(self) -> Loss:
        """End the process if it still runs, and return how it was lost and what it was doing."""
        stopped = False
        if self._status is None and self._is_running():
            stopped = is_stopped(self.pid)
            self._report.request(self.pid)
            how = "was stopped" if stopped else "did not reply"
            self._kill()
        else:
            status = self._wait()
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        place, trace = self._report.place, self._report.trace
        self.close()
        return Loss(how, place, frames_of(trace), trace, accidental=stopped)

    def close(self) -> None:
        """Kill the process. A cut lifeline is not enough, because forks that came later hold it as well."""
        self._kill()
        self._report.close()

    def _kill(self) -> None:
        self._pipe.close()
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def _is_running(self) -> bool:
        """Return whether the process runs, or is stopped. One whose pipe has ended is about to exit."""
        end = time.monotonic() + SECONDS_FOR_TRACE if self._pipe.closed or self._has_hung_up() else 0.0
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._status = os.waitstatus_to_exitcode(status)
            if done or time.monotonic() >= end:
                return not done
            time.sleep(0.01)

    def _has_hung_up(self) -> bool:
        try:
            return self._pipe.poll(0)
        except OSError:
            return True

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


class CrashReport:
    """What a process leaves behind, for its parent to read: the environment at work, and the traceback of its threads.

    It is made before the fork, so that both have it.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, struct.calcsize("qqq"))
        self._beats = self._other_beats = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as there is a report

    def note_place(self, place: int) -> None:
        """Note the place of the environment whose work begins; -1: other work."""
        self._beats += 1
        self._other_beats += place < 0
        struct.pack_into("qqq", self._shared, 0, place + 1, self._beats, self._other_beats)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Write the traceback within the block whenever this process is asked to, or crashes."""
        was_enabled = faulthandler.is_enabled()
        faulthandler.register(TRACE_SIGNAL, self._file)
        faulthandler.enable(self._file)
        try:
            yield
        finally:
            faulthandler.unregister(TRACE_SIGNAL)
            if was_enabled:
                faulthandler.enable(2)
            else:
                faulthandler.disable()

    def trace_exits(self) -> None:
        """Write the traceback when this process ends itself, too."""
        leave, pid = os._exit, os.getpid()

        def write_and_exit(status: int) -> NoReturn:
            if os.getpid() == pid:  # not in a fork of a component's
                faulthandler.dump_traceback(self._file)
            leave(status)

        os._exit = write_and_exit

    def request(self, pid: int) -> None:
        """Ask a process for its traceback, and wait until it is there. If it is stopped, it runs on for that."""
        os.kill(pid, TRACE_SIGNAL)
        os.kill(pid, signal.SIGCONT)
        end, before = time.monotonic() + SECONDS_FOR_TRACE, -1
        while time.monotonic() < end and not before == (before := len(self.trace)) > 0:
            time.sleep(0.05)

    def close(self) -> None:
        """Release the memory and the file."""
        self._shared.close()
        self._file.close()

    @property
    def place(self) -> int | None:
        """The place of the environment whose work began last; None: of none yet."""
        (number,) = struct.unpack_from("q", self._shared)
        return number - 1 if number else None

    @property
    def beats(self) -> tuple[int, int]:
        """How often work began, and how often other work than that of an environment."""
        every, other_beats = struct.unpack_from("qq", self._shared, struct.calcsize("q"))
        return every, other_beats

    @property
    def trace(self) -> str:
        """What was written."""
        descriptor = self._file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def frames_of(trace: str) -> tuple[Frame, ...]:
    """Return the frames of the current thread in what faulthandler wrote last, the innermost first.

    >>> frames_of('Current thread 0x1 (most recent call first):\\n  File "/a.py", line 3 in forward\\n')
    (Frame(file='/a.py', line=3, function='forward'),)
    """
    return _frames_in(trace.rpartition("Current thread")[2].partition("\n\n")[0])


def frames_of_others(trace: str) -> list[tuple[Frame, ...]]:
    """Return the frames of each other thread."""
    return [_frames_in(block) for block in trace.split("\n\n") if block.startswith("Thread")]


def _frames_in(block: str) -> tuple[Frame, ...]:
    matches = (_FRAME.match(line) for line in block.splitlines())
    return tuple(Frame(match["file"], int(match["line"]), match["function"]) for match in matches if match)


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

        report.trace_exits()
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


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as by SIGSTOP."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")
