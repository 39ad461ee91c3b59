"""How does a part of a run get a process of its own? It is forked, and talked to through a pipe.

A fork has all that its parent prepared: recipe, data and plugins, whose memory they share. It computes with one thread,
does not mind the signals that ask a run to end, for its parent does, and is gone as soon as its parent is, in whatever
way that ended.

What a fork must not do is wait for what another thread of its parent held at that moment: it has no such thread. So it
has streams of its own; Python and glibc look after their own locks, and torch after its engine, as long as nobody used
an accelerator.

What does a process do that has some of a run's environments? What is asked of it, until nobody asks any more.

Only plain records cross: actions, signals, masks, transitions. Each is told with the place where it belongs, among the
environments that live here.
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
    from esper_core.trainer.environment import Environment, Mishap, Recipe
    from esper_core.trainer.pool import Ending, Pool


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


T = TypeVar("T")
Placed = list[tuple[int, T]]
"""Things, each with the place of its environment."""

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Standing:
    """How an environment stands: what may be asked of a ``Member``."""

    arm: str
    index: int
    round: int = 0
    seed: int = 0
    steps: int = 0
    over: bool = False
    seconds: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, one: Environment) -> Standing:
        """That of an environment that was reset."""
        return cls(one.arm, one.index, one.round, one.seed, one.steps, one.over, one.seconds)


@dataclass(frozen=True, slots=True)
class Request:
    """What a shard is asked for: one of its methods. faults: how often each blueprint went wrong in the run so far."""

    method: str
    arguments: tuple[Any, ...]
    faults: State


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request: a value, or an error with its traceback in words.

    standings: how the environments stand now. said: what was said meanwhile, with its level. notices: what is told once
    in a run.
    """

    value: Any
    error: BaseException | None
    trace: str
    standings: tuple[Standing, ...]
    said: tuple[tuple[int, str], ...]
    notices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A state on its way: its tensors as bytes, and their names in order."""

    plain: Mapping[str, Any]
    names: tuple[str, ...]
    tensors: bytes

    @classmethod
    def of(cls, state: State) -> Packed:
        """A state of tensors that are by themselves, as those of a checkpoint are."""
        return cls(state.plain, tuple(state.tensors), save(dict(state.tensors)))

    def opened(self) -> State:
        """The state."""
        tensors = load(self.tensors)
        return State(self.plain, {name: tensors[name] for name in self.names})


class Shard:
    """The environments of one process: each method gives what that of ``Pool`` does, as records that can be sent."""

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

    def heal(self, step: int) -> tuple[list[Signals], Placed[Mishap]]:
        signals, mishaps = self.pool.heal(self.pool.latest, step)
        return signals, self._placed(mishaps)

    def judge(self, opinions: Mapping[int, Verdict]) -> Mapping[int, Decision]:
        self._decisions = self.pool.judge(self.pool.latest, opinions)
        return self._decisions

    def heed(self, places: Sequence[int], step: int) -> tuple[list[Signals], dict[int, RolledBack], Placed[Transition]]:
        """Carry out what was decided for ``places``: a governor knows its own decision again, and no copy of it."""
        decided = {place: self._decisions[place] for place in places}
        signals, rolled, changes = self.pool.heed(self.pool.latest, decided, step)
        return signals, rolled, self._placed(changes)

    def masks(self) -> list[ActionMask]:
        return self.pool.masks()

    def apply(self, actions: Mapping[int, Action], step: int) -> tuple[Placed[Transition], Placed[Mishap]]:
        every = [actions.get(place, WAIT) for place in range(len(self.pool.environments))]
        changes, mishaps = self.pool.apply(every, step)
        return self._placed(changes), self._placed(mishaps)

    def conclude(self, step: int) -> tuple[Placed[Transition], list[Ending]]:
        changes, endings = self.pool.conclude(step)
        return self._placed(changes), endings

    def states(self) -> list[Packed]:
        return [Packed.of(state) for state in self.pool.states()]

    def load_states(self, states_E: Sequence[Packed], latest: Sequence[Signals]) -> None:
        self.pool.load_states([state.opened() for state in states_E], latest)

    def _placed(self, told: Sequence[tuple[Any, T]]) -> Placed[T]:
        return [(self._places[id(environment)], thing) for environment, thing in told]


def serve(make: Callable[[Recipe], Pool], recipe: Recipe, pipe: Connection[Any, Any]) -> None:
    """Make a pool and do what is asked of it, one thing after the other, until the pipe ends (EOFError).

    The first reply says how the making went, before anything was asked for.
    """
    said = _Said()
    log.handlers, log.propagate = [said], False
    notices = _Passed()
    shard: Shard | None = None

    def reply(act: Callable[[], Any]) -> None:
        value, error, trace = None, None, ""
        try:
            value = act()
        except BaseException as raised:  # whatever it is, it is raised again where somebody asked
            error, trace = sendable(raised), "".join(traceback.format_exception(raised))
        here = [] if shard is None else shard.pool.environments
        began = all(hasattr(one, "seconds") for one in here)  # an episode: they have one, unless it failed to begin
        standings = tuple(map(Standing.of, here)) if began else ()
        pipe.send(Reply(value, error, trace, standings, said.taken(), notices.taken()))

    def begin() -> None:
        nonlocal shard
        shard = Shard(make(replace(recipe, notices=notices)))

    def answer(request: Request) -> Any:
        assert shard is not None
        shard.pool.faults.load_state_dict(request.faults)
        return getattr(shard, request.method)(*request.arguments)

    reply(begin)
    while True:
        reply(partial(answer, pipe.recv()))


def sendable(error: BaseException) -> BaseException:
    """``error``, as it can be sent; a plain one that says the same where its class does not come through."""
    home = type(error).__module__
    ours = isinstance(error, EsperError) and home.startswith("esper_core.")
    plain = home == "builtins" and all(isinstance(one, str | int | float | None) for one in error.args)
    if ours or (plain and not vars(error)):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Said(logging.Handler):
    """Keeps what is said until somebody takes it along."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append((record.levelno, record.getMessage()))

    def taken(self) -> tuple[tuple[int, str], ...]:
        taken, self._records = tuple(self._records), []
        return taken


class _Passed(Notices):
    """Leaves it to whoever takes them along to tell notices once in a run."""

    def __init__(self) -> None:
        super().__init__()
        self._noticed: list[tuple[str, str]] = []

    def tell(self, about: str, reason: str) -> None:
        self._noticed.append((about, reason))

    def taken(self) -> tuple[tuple[str, str], ...]:
        taken, self._noticed = tuple(self._noticed), []
        return taken
