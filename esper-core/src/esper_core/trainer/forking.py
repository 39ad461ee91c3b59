"""How does a part of a run get a process of its own? It is forked, and talked to through a pipe.

A fork has all that its parent prepared: recipe, data and plugins, whose memory they share. It computes with one thread,
does not mind the signals that ask a run to end, for its parent does, and is gone as soon as its parent is, in whatever
way that ended.

What a fork must not do is wait for what another thread of its parent held at that moment: it has no such thread. So it
has streams of its own; Python and glibc look after their own locks, and torch after its engine, as long as nobody used
an accelerator.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from esper_core.leyline.errors import Problem, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

_ASKING_TO_END: Final = {one for one in signal.Signals if one.name in ("SIGHUP", "SIGINT", "SIGTERM")}


def can_fork() -> bool:
    """Whether processes are forked here: on Linux, where torch knows of no accelerator, which no fork could use."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


class Lifeline:
    """A pipe into which nothing is ever written: its end tells every fork that its parent has let go of it, or died."""

    def __init__(self) -> None:
        self._end, self._own = os.pipe()

    def hold_on(self) -> None:
        """In a fork: be gone as soon as nobody holds the other end."""
        os.close(self._own)

        def wait() -> None:
            os.read(self._end, 1)
            os._exit(0)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def cut(self) -> None:
        """In the parent: let go. May be called twice."""
        for end in {self._own, self._end} if self._own >= 0 else ():
            os.close(end)
        self._own = self._end = -1


class Fork:
    """A process that does what ``serve`` does with its end of a pipe. whose: what messages call it."""

    def __init__(self, serve: Callable[[Connection[Any, Any]], None], lifeline: Lifeline, whose: str) -> None:
        self._whose = whose
        self._status: int | None = None
        self._pipe, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with _unsignalled(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads: see above
            self.pid = os.fork()
            if self.pid == 0:
                _be(serve, other, lifeline)
        other.close()

    def send(self, thing: Any) -> None:
        """Say something to it; WorkerLost where it is gone."""
        try:
            self._pipe.send(thing)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> Any:
        """What it says next; WorkerLost where it is gone."""
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def close(self) -> None:
        """End it, whatever it does: cut lifelines are not enough, for forks that came later hold them, too."""
        self._pipe.close()
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._ended()

    def _ended(self) -> int:
        """How it ended: its exit code, or the number of a signal below 0."""
        if self._status is None:
            with suppress(ChildProcessError):  # somebody else waited for all that there was
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status or 0

    def _lost(self) -> WorkerLost:
        status = self._ended()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended by itself, with code {status}"
        hint = (
            "What was written before is intact: esper resume goes on from the last checkpoint. A system that runs out\n"
            'of memory ends processes so. Fewer lanes take less of it, and so does "workers: threads".'
        )
        return WorkerLost(Problem("E403", f"the process of {self._whose} {how}", hint=hint))


@contextmanager
def _unsignalled() -> Iterator[None]:
    """A block in which nobody is asked to end; who was, is asked behind it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKING_TO_END)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be(serve: Callable[[Connection[Any, Any]], None], pipe: Connection[Any, Any], lifeline: Lifeline) -> NoReturn:
    """Be the fork, to its end."""
    code = 1
    try:
        for one in _ASKING_TO_END:
            signal.signal(one, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKING_TO_END)
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123  for as long as there is this process
        own = open(2, "w", buffering=1, closefd=False, errors="replace", encoding="utf-8")  # noqa: SIM115
        sys.stdout = sys.stderr = own
        lifeline.hold_on()
        torch.set_num_threads(1)
        serve(pipe)
        code = 0
    except EOFError:
        code = 0  # its parent has no more to say
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)
