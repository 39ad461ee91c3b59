"""Worker processes: the environments of a run in several processes, behind the interface of a pool.

Environments of one index, and so a twin and what is compared with it, share a process; only plain records cross. What
concerns the whole run stays here: faults of blueprints, and warnings that are given once. The numbers are those of a
single process. Threads of one process wait for Python, and for each other where networks draw random numbers;
processes do not, but each has fixed environments, and is idle when it is done with them.

A process is forked from the run, with everything that was prepared, in shared memory. It computes with one thread,
ignores the signals that ask a run to end, since its parent handles them, and exits as soon as its parent does. It must
never wait for a lock that another thread of its parent held when it was forked, for it has no such thread. So it has
streams of its own. Python and glibc take care of their locks, and torch of its engine where nobody uses an accelerator.
Requests and replies are pickled between a process and its own fork; states travel as safetensors bytes.
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
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, pairwise, product
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import torch
from safetensors.torch import load, save

from esper_core.governor import Act
from esper_core.growth import FaultBook
from esper_core.leyline.actions import Action, Op
from esper_core.leyline.errors import EsperError, Problem, WorkerLost
from esper_core.leyline.protocols import State
from esper_core.trainer.forward import Notices
from esper_core.trainer.lanes import usable_cores
from esper_core.trainer.pool import Pool, Roster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from esper_core.config import RunConfig
    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline import ActionMask, Signals, Verdict
    from esper_core.trainer.environment import Recipe
    from esper_core.trainer.event_records import Changes, Ending, LostSeeds, Member

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("esper")

UNEVEN: Final = 1.15
"""How much longer than evenly shared work the largest share may take for processes to be chosen."""

_END_SIGNALS: Final = {one for one in signal.Signals if one.name in ("SIGHUP", "SIGINT", "SIGTERM")}


def processes_for(config: RunConfig, devices: Sequence[torch.device]) -> int:
    """Return over how many processes to spread a run; 1: only this one."""
    lanes = usable_cores() if config.lanes == "auto" else config.lanes
    count = min(lanes, config.instances)
    if config.engine == "threads" or count == 1:
        return 1
    if not can_fork() or any(device.type != "cpu" for device in devices):
        if config.engine == "processes":
            log.warning("engine: processes needs Linux, a CPU device and no GPU; using threads")
        return 1
    if config.engine == "processes":
        return count
    even = -(-config.instances // count) * count <= UNEVEN * config.instances
    alone = threading.current_thread() is threading.main_thread() and "ipykernel" not in sys.modules
    return count if even and alone and not config.compute.compile else 1


def can_fork() -> bool:
    """Return whether worker processes can be used: on Linux, without an accelerator, which no fork could use."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


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
    flops: int | None = None
    signals: Signals | None = None


Request = tuple[str, tuple[Any, ...], State]
"""A method of ``ForkedPool``, its arguments, and the state of the run's ``FaultBook``."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request: what the method returned, or raised with its traceback, and what is new."""

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


class WorkerPool(Roster[EnvironmentStatus]):
    """The environments in several processes, behind the interface of ``Pool``; ``environments`` holds their status."""

    def __init__(
        self,
        recipe: Recipe,
        arms: Sequence[str],
        environments: int,
        *,
        processes: int,
        twin: str | None = None,
        implants: Callable[[str, int], Sequence[Growth]] | None = None,
    ) -> None:
        every = enumerate(product(range(environments), arms))
        statuses = [EnvironmentStatus(place, arm, index) for place, (index, arm) in every]
        super().__init__(statuses, len(statuses), FaultBook())
        self._notices = recipe.notices
        self._lifeline = Lifeline()
        self._processes: list[WorkerProcess] = []
        try:
            for part in split(environments, processes):

                def make(own: Recipe, part: range = part) -> ForkedPool:
                    return ForkedPool(own, arms, environments, twin=twin, implants=implants, indices=part)

                whose = f"the environments with index {part.start} to {part.stop - 1}"
                self._processes.append(WorkerProcess(partial(serve, make, recipe), self._lifeline, whose))
            self._receive_all()
        except BaseException:
            self.close()
            raise

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round."""
        self._call(ForkedPool.reset, round_, first_seed)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, and return the seeds' changes of stage."""
        turns = [one.place for one in self.turns(step)]
        return sorted(self._call(ForkedPool.train, step), key=lambda change: turns.index(change[0]))

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split."""
        self._call(ForkedPool.evaluate, step)

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured."""
        return self._call(ForkedPool.synchronise, step)

    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss."""
        return self._counted(self._call(ForkedPool.heal, step))

    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """Return the governor's decisions."""
        return self._call(ForkedPool.judge, opinions)

    def carry_out(self, decisions: Mapping[int, Decision], step: int) -> tuple[dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as the governor decided."""
        active = {place: one for place, one in decisions.items() if one.act is Act.ROLL_BACK or one.truncated}
        if not active:
            return {}, []
        rolled, changes = self._call(ForkedPool.carry_out, active, step)
        counted = {
            place: replace(one, withdrawn=decisions[place].counted(self.faults)) for place, one in rolled.items()
        }
        return counted, changes

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        return self._call(ForkedPool.masks)

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment."""
        if all(action.op is Op.WAIT for action in actions):
            return [], []
        changes, lost = self._call(ForkedPool.apply, actions, step)
        return changes, self._counted(lost)

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes."""
        return self._call(ForkedPool.conclude, step)

    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its place."""
        return {place: unpack(state) for place, state in self._call(ForkedPool.packed_states).items()}

    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its place."""
        self._call(ForkedPool.load_packed_states, {place: pack(state) for place, state in states.items()}, latest)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        processes, self._processes = self._processes, []
        self._lifeline.cut()
        for process in processes:
            process.close()
        self.environments = []

    def _call(self, method: Callable[Concatenate[ForkedPool, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method of every process's pool, and return what they return, joined in the order of places."""
        request: Request = method.__name__, arguments, self.faults.state_dict()
        for process in self._processes:
            process.send(request)
        result: T = joined(self._receive_all())
        return result

    def _receive_all(self) -> list[Any]:
        """Wait for all replies, and return their values; if several raised an error, raise the first one."""
        replies: list[Reply] = [process.receive() for process in self._processes]
        for reply in replies:
            for status in reply.statuses:
                self.environments[status.place] = status
            for level, message in reply.logged:
                log.log(level, "%s", message)
            for notice in reply.notices:
                self._notices.warn(*notice)
        for reply in replies:
            if reply.error is not None:
                raise reply.error from WorkerTraceback(reply.trace)
        return [reply.value for reply in replies]

    def _counted(self, lost: LostSeeds) -> LostSeeds:
        """Count lost seeds over the whole run: a process knows only its own."""
        return [(place, one.counted(self.faults)) for place, one in lost]


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process, as text."""


def joined(values: Sequence[Any]) -> Any:
    """Join what several processes returned: lists and dictionaries one after the other, tuples item by item.

    >>> joined([([1], {0: "a"}), ([2, 3], {1: "b"})])
    ([1, 2, 3], {0: 'a', 1: 'b'})
    """
    if isinstance(values[0], tuple):
        return tuple(map(joined, zip(*values, strict=True)))
    if isinstance(values[0], dict):
        return {place: one for value in values for place, one in value.items()}
    return None if values[0] is None else list(chain(*values))


def split(environments: int, processes: int) -> list[range]:
    """Return the indices of each process, in order: as many as the others have, or one more."""
    count = min(environments, processes)
    ends = [-(-environments * number // count) for number in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


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
        before, sent = sent, [] if pool is None else [_status_of(one) for one in pool.environments]
        changed = [status for status in sent if status not in before]
        pipe.send(Reply(value, error, trace, changed, logged.kept, notices.kept))
        logged.kept, notices.kept = [], []

    def begin() -> None:
        nonlocal pool
        pool = make(replace(recipe, notices=notices))

    def answer(request: Request) -> Any:
        method, arguments, faults = request
        assert pool is not None
        pool.faults.load_state_dict(faults)
        return getattr(pool, method)(*arguments)

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


def _status_of(member: Member) -> EnvironmentStatus:
    return EnvironmentStatus(**{one.name: getattr(member, one.name) for one in fields(EnvironmentStatus)})


class _Logged(logging.Handler):
    """Keeps log messages for the next reply."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append((record.levelno, record.getMessage()))


class _ForwardedNotices(Notices):
    """Keeps notices for the next reply; the parent gives each of them once."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []

    def warn(self, what: str, reason: str) -> None:
        self.kept.append((what, reason))


class Lifeline:
    """A pipe that nothing is written to. Reading ends in every fork once the parent has closed its end, or died."""

    def __init__(self) -> None:
        self._ends = list(os.pipe())

    def hold_on(self) -> None:
        """Exit this forked process as soon as no process has the other end open."""
        end, own = self._ends
        os.close(own)

        def wait() -> None:
            os.read(end, 1)
            os._exit(0)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def cut(self) -> None:
        """Close the parent's end. May be called twice."""
        while self._ends:
            os.close(self._ends.pop())


class WorkerProcess:
    """A forked process that runs ``serve`` with its end of a pipe; error messages say ``whose`` it is."""

    def __init__(self, serve: Callable[[Connection[Any, Any]], None], lifeline: Lifeline, whose: str) -> None:
        self._whose = whose
        self._status: int | None = None
        self._pipe, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see the module docstring
                self.pid = os.fork()
            if self.pid == 0:
                _run_fork(serve, other, lifeline)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
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
            os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> int:
        """Wait for the process, and return its exit code, or the negative number of the signal that ended it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def _lost(self) -> WorkerLost:
        status = self._wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        hint = (
            "Earlier results are intact: esper resume continues from the last checkpoint. The system may have run out\n"
            'of memory: use fewer lanes, or "engine: threads".'
        )
        return WorkerLost(Problem("E403", f"the process of {self._whose} {how}", hint=hint))


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
        os._exit(code)
