"""A worker process: forked from the run, it owns some of the environments and answers requests about them.

A fork has everything that its parent prepared: recipe, data and plugins, in shared memory. It computes with one thread,
ignores the signals that ask a run to end, since its parent handles them, and exits as soon as its parent does.

A fork must never wait for a lock that another thread of its parent held when it was forked, for it has no such thread.
So it has streams of its own. Python and glibc take care of their locks, and torch of its engine, as long as nobody has
used an accelerator.

Requests and replies are plain records, pickled between a process and its own fork; states travel as safetensors bytes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import torch
from safetensors.torch import load, save

from esper_core.leyline.actions import WAIT
from esper_core.leyline.errors import EsperError, Problem, WorkerLost
from esper_core.leyline.protocols import State
from esper_core.trainer.forward import Notices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Transition
    from esper_core.leyline.actions import Action, ActionMask
    from esper_core.leyline.signals import Signals, Verdict
    from esper_core.trainer.environment import Environment, Recipe
    from esper_core.trainer.event_records import Ending, LostSeed
    from esper_core.trainer.pool import Pool

T = TypeVar("T")

Placed = list[tuple[int, T]]
"""Items, each with the place of its environment in the process."""

log = logging.getLogger("esper")

_END_SIGNALS: Final = {one for one in signal.Signals if one.name in ("SIGHUP", "SIGINT", "SIGTERM")}


def can_fork() -> bool:
    """Return whether worker processes can be used: on Linux, without an accelerator, which no fork could use."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


# What is sent.


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """Status of an environment in a worker process, with the attributes of ``Member``."""

    arm: str
    index: int
    round: int = 0
    seed: int = 0
    steps: int = 0
    over: bool = False
    seconds: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, one: Environment) -> EnvironmentStatus:
        """Return the status of an environment that was reset."""
        return cls(one.arm, one.index, one.round, one.seed, one.steps, one.over, one.seconds)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to call a method of ``Worker``.

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
        statuses: Status of each environment.
        logged: Log messages since the last reply, with their levels.
        notices: Warnings that the run gives once.
    """

    value: Any
    error: BaseException | None
    trace: str
    statuses: tuple[EnvironmentStatus, ...]
    logged: tuple[tuple[int, str], ...]
    notices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PackedState:
    """A ``State`` whose tensors are safetensors bytes, with their names in order."""

    plain: Mapping[str, Any]
    names: tuple[str, ...]
    tensors: bytes

    @classmethod
    def of(cls, state: State) -> PackedState:
        """Pack a state whose tensors share no memory, as those of a checkpoint."""
        return cls(state.plain, tuple(state.tensors), save(dict(state.tensors)))

    def unpack(self) -> State:
        """Return the state."""
        tensors = load(self.tensors)
        return State(self.plain, {name: tensors[name] for name in self.names})


# In the worker process.


class Worker:
    """The environments of one process. Each method returns what that of ``Pool`` does, as records that can be sent."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._places = {id(environment): place for place, environment in enumerate(pool.environments)}
        self._decisions: Mapping[int, Decision] = {}

    def reset(self, round_: int, first_seed: int) -> None:
        self.pool.reset(round_, first_seed)

    def train(self, step: int) -> Placed[Transition]:
        return self._placed(self.pool.train(step))

    def measure(self, step: int) -> list[Signals]:
        self.pool.evaluate(step)
        return self.pool.synchronise(step)

    def heal(self, step: int) -> tuple[list[Signals], Placed[LostSeed]]:
        signals, lost = self.pool.heal(self.pool.latest, step)
        return signals, self._placed(lost)

    def judge(self, opinions: Mapping[int, Verdict]) -> Mapping[int, Decision]:
        self._decisions = self.pool.judge(self.pool.latest, opinions)
        return self._decisions

    def carry_out(
        self, places: Sequence[int], step: int
    ) -> tuple[list[Signals], dict[int, RolledBack], Placed[Transition]]:
        """Carry out the decisions for ``places``: a governor accepts its own decision only, and no copy of it."""
        decisions = {place: self._decisions[place] for place in places}
        signals, rolled, changes = self.pool.carry_out(self.pool.latest, decisions, step)
        return signals, rolled, self._placed(changes)

    def masks(self) -> list[ActionMask]:
        return self.pool.masks()

    def apply(self, actions: Mapping[int, Action], step: int) -> tuple[Placed[Transition], Placed[LostSeed]]:
        every = [actions.get(place, WAIT) for place in range(len(self.pool.environments))]
        changes, lost = self.pool.apply(every, step)
        return self._placed(changes), self._placed(lost)

    def conclude(self, step: int) -> tuple[Placed[Transition], list[Ending]]:
        changes, endings = self.pool.conclude(step)
        return self._placed(changes), endings

    def states(self) -> list[PackedState]:
        return [PackedState.of(state) for state in self.pool.states()]

    def load_states(self, states_E: Sequence[PackedState], latest: Sequence[Signals]) -> None:
        self.pool.load_states([state.unpack() for state in states_E], latest)

    def _placed(self, items: Sequence[tuple[Any, T]]) -> Placed[T]:
        return [(self._places[id(environment)], item) for environment, item in items]


def serve(make: Callable[[Recipe], Pool], recipe: Recipe, pipe: Connection[Any, Any]) -> None:
    """Make a pool, and answer requests until the pipe ends (EOFError).

    The first reply, before any request, says whether the pool could be made.
    """
    logged = _Logged()
    log.handlers, log.propagate = [logged], False
    notices = _ForwardedNotices()
    worker: Worker | None = None

    def reply(act: Callable[[], Any]) -> None:
        value, error, trace = None, None, ""
        try:
            value = act()
        except BaseException as raised:  # whatever it is, it is raised again in the parent
            error, trace = sendable(raised), "".join(traceback.format_exception(raised))
        here = [] if worker is None else worker.pool.environments
        began = all(hasattr(one, "seconds") for one in here)  # else an episode failed to begin
        statuses = tuple(map(EnvironmentStatus.of, here)) if began else ()
        pipe.send(Reply(value, error, trace, statuses, logged.take(), notices.take()))

    def begin() -> None:
        nonlocal worker
        worker = Worker(make(replace(recipe, notices=notices)))

    def answer(request: Request) -> Any:
        assert worker is not None
        worker.pool.faults.load_state_dict(request.faults)
        return getattr(worker, request.method)(*request.arguments)

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

    def take(self) -> tuple[tuple[int, str], ...]:
        taken, self._records = tuple(self._records), []
        return taken


class _ForwardedNotices(Notices):
    """Keeps notices for the next reply; the parent gives each of them once."""

    def __init__(self) -> None:
        super().__init__()
        self._noticed: list[tuple[str, str]] = []

    def warn(self, what: str, reason: str) -> None:
        self._noticed.append((what, reason))

    def take(self) -> tuple[tuple[str, str], ...]:
        taken, self._noticed = tuple(self._noticed), []
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
