"""A worker process: forked from the run, it owns some of the environments and answers requests about them.

A fork has everything that its parent prepared: recipe, data and plugins, in shared memory. It computes with one thread,
ignores the signals that ask a run to end, since its parent handles them, and exits as soon as its parent does.

A fork must never wait for a lock that another thread of its parent held when it was forked, for it has no such thread.
So it has streams of its own. Python and glibc take care of their locks, and torch of its engine, as long as nobody has
used an accelerator.

Requests and replies are records, pickled between a process and its own fork; states travel as safetensors bytes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from safetensors.torch import load, save

from esper_core.leyline.errors import EsperError, Problem, WorkerLost
from esper_core.leyline.protocols import State
from esper_core.trainer.forward import Notices
from esper_core.trainer.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from esper_core.leyline.signals import Signals
    from esper_core.trainer.environment import Recipe
    from esper_core.trainer.event_records import Member

log = logging.getLogger("esper")

_END_SIGNALS: Final = {one for one in signal.Signals if one.name in ("SIGHUP", "SIGINT", "SIGTERM")}


def can_fork() -> bool:
    """Return whether worker processes can be used: on Linux, without an accelerator, which no fork could use."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


# What is sent.


@dataclass(slots=True)
class EnvironmentStatus:
    """Status of an environment in a worker process, with the attributes of ``Member``."""

    place: int
    arm: str
    index: int
    round: int = 0
    seed: int = 0
    steps: int = 0
    over: bool = False
    seconds: tuple[float, float] = (0.0, 0.0)
    signals: Signals | None = None

    @classmethod
    def of(cls, member: Member) -> EnvironmentStatus:
        """Return the status of an environment."""
        return cls(**{one.name: getattr(member, one.name) for one in fields(cls)})


@dataclass(frozen=True, slots=True)
class Request:
    """A request to call a method of ``ForkedPool``.

    Attributes:
        method: Its name.
        arguments: Its arguments.
        faults: State of the run's ``FaultBook``.
    """

    method: str
    arguments: tuple[Any, ...]
    faults: State


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request.

    Attributes:
        value: What the method returned.
        error: What it raised.
        trace: The error's traceback as text.
        statuses: Status of each environment that has another one than before.
        logged: Log messages since the last reply, with their levels.
        notices: Warnings that the run gives once.
    """

    value: Any
    error: BaseException | None
    trace: str
    statuses: list[EnvironmentStatus]
    logged: list[tuple[int, str]]
    notices: list[tuple[str, str]]


PackedState = tuple[Mapping[str, Any], tuple[str, ...], bytes]
"""Plain data of a ``State``, the names of its tensors in order, and the tensors as safetensors bytes."""


def pack(state: State) -> PackedState:
    """Pack a state whose tensors share no memory, as those of a checkpoint."""
    return state.plain, tuple(state.tensors), save(dict(state.tensors))


def unpack(packed: PackedState) -> State:
    """Return the state that was packed."""
    plain, names, tensors = packed
    by_name = load(tensors)
    return State(plain, {name: by_name[name] for name in names})


# In the worker process.


class ForkedPool(Pool):
    """The environments of one process."""

    def packed_states(self) -> dict[int, PackedState]:
        """Return the state of each environment, by its place."""
        return {place: pack(state) for place, state in self.states().items()}

    def load_packed_states(self, states: Mapping[int, PackedState], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its place."""
        self.load_states({place: unpack(state) for place, state in states.items()}, latest)


def serve(make: Callable[[Recipe], ForkedPool], recipe: Recipe, pipe: Connection[Any, Any]) -> None:
    """Make a pool, and answer requests until the pipe ends (EOFError).

    The first reply, before any request, says whether the pool could be made.
    """
    logged = _Logged()
    log.handlers, log.propagate = [logged], False
    notices = _ForwardedNotices()
    pool: ForkedPool | None = None
    sent: list[EnvironmentStatus] = []

    def reply(act: Callable[[], Any]) -> None:
        nonlocal sent
        value, error, trace = None, None, ""
        try:
            value = act()
        except BaseException as raised:  # whatever it is, it is raised again in the parent
            error, trace = sendable(raised), "".join(traceback.format_exception(raised))
        before, sent = sent, [] if pool is None else [EnvironmentStatus.of(one) for one in pool.environments]
        pipe.send(Reply(value, error, trace, [one for one in sent if one not in before], logged.take(), notices.take()))

    def begin() -> None:
        nonlocal pool
        pool = make(replace(recipe, notices=notices))

    def answer(request: Request) -> Any:
        assert pool is not None
        pool.faults.load_state_dict(request.faults)
        return getattr(pool, request.method)(*request.arguments)

    reply(begin)
    while True:
        reply(partial(answer, pipe.recv()))


def sendable(error: BaseException) -> BaseException:
    """Return ``error`` if it can be sent to the parent, else a RuntimeError with its message."""
    home = type(error).__module__
    ours = isinstance(error, EsperError) and home.startswith("esper_core.")
    plain = home == "builtins" and all(isinstance(one, str | int | float | None) for one in error.args)
    if ours or (plain and not vars(error)):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Logged(logging.Handler):
    """Keeps log messages for the next reply."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        taken, self._records = self._records, []
        return taken


class _ForwardedNotices(Notices):
    """Keeps notices for the next reply; the parent gives each of them once."""

    def __init__(self) -> None:
        super().__init__()
        self._noticed: list[tuple[str, str]] = []

    def warn(self, what: str, reason: str) -> None:
        self._noticed.append((what, reason))

    def take(self) -> list[tuple[str, str]]:
        taken, self._noticed = self._noticed, []
        return taken


# The process itself.


class Lifeline:
    """A pipe that nothing is written to. Its end tells every fork that the parent let go of it, or died."""

    def __init__(self) -> None:
        self._end, self._own = os.pipe()

    def hold_on(self) -> None:
        """In a fork: exit as soon as nobody holds the other end."""
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


class WorkerProcess:
    """A forked process that runs ``serve`` with its end of a pipe.

    Args:
        serve: What it runs.
        lifeline: Ends it when the parent does.
        whose: What error messages call it.
    """

    def __init__(self, serve: Callable[[Connection[Any, Any]], None], lifeline: Lifeline, whose: str) -> None:
        self._whose = whose
        self._status: int | None = None
        self._pipe, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with _end_signals_blocked(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see the module docstring
            self.pid = os.fork()
            if self.pid == 0:
                _run_fork(serve, other, lifeline)
        other.close()

    def send(self, message: Any) -> None:
        """Send a message; WorkerLost if the process is gone."""
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> Any:
        """Return the next message; WorkerLost if the process is gone."""
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def close(self) -> None:
        """Kill the process. A cut lifeline is not enough, because forks that came later hold it as well."""
        self._pipe.close()
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> int:
        """Wait for the process, and return its exit code, or the negative number of the signal that ended it."""
        if self._status is None:
            with suppress(ChildProcessError):  # somebody else waited for all children
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status or 0

    def _lost(self) -> WorkerLost:
        status = self._wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended by itself, with code {status}"
        hint = (
            "What was written before is intact: esper resume goes on from the last checkpoint. A system that runs out\n"
            'of memory ends processes so. Fewer lanes take less of it, and so does "workers: threads".'
        )
        return WorkerLost(Problem("E403", f"the process of {self._whose} {how}", hint=hint))


@contextmanager
def _end_signals_blocked() -> Iterator[None]:
    """Delay signals that ask to end until the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_fork(
    serve: Callable[[Connection[Any, Any]], None], pipe: Connection[Any, Any], lifeline: Lifeline
) -> NoReturn:
    """Run the forked process to its end."""
    code = 1
    try:
        for one in _END_SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123  for as long as there is this process
        own = open(2, "w", buffering=1, closefd=False, errors="replace", encoding="utf-8")  # noqa: SIM115
        sys.stdout = sys.stderr = own
        lifeline.hold_on()
        torch.set_num_threads(1)
        serve(pipe)
        code = 0
    except EOFError:
        code = 0  # the parent closed the pipe
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)
