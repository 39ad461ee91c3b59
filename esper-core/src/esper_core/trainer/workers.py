"""Worker processes: the environments of a run in several processes, behind the interface of a pool.

Environments of one index, and so a twin and what is compared with it, share a process; only plain records cross. What
concerns the whole run stays here: places, faults of blueprints, and warnings that are given once. The numbers are those
of a single process. Threads of one process wait for Python, and for each other where networks draw random numbers;
processes do not, but each has fixed environments, and is idle when it is done with them.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from esper_core.governor import Act
from esper_core.growth import FaultBook, Transition
from esper_core.leyline.actions import Action, Op
from esper_core.trainer.lanes import usable_cores
from esper_core.trainer.pool import Pool, Roster, interleaved, parts_of_pool_state, state_of_pool
from esper_core.trainer.worker_process import (
    EnvironmentStatus,
    Lifeline,
    PackedState,
    Reply,
    Request,
    WorkerProcess,
    can_fork,
    serve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from esper_core.config import RunConfig
    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline.actions import ActionMask
    from esper_core.leyline.protocols import State
    from esper_core.leyline.signals import Signals, Verdict
    from esper_core.trainer.environment import Recipe
    from esper_core.trainer.event_records import Changes, Ending, LostSeed, LostSeeds
    from esper_core.trainer.worker_process import Placed

T = TypeVar("T")

log = logging.getLogger("esper")

UNEVEN: Final = 1.15
"""How much longer than evenly shared work the largest share may take for processes to be chosen."""


def processes_for(config: RunConfig, devices: Sequence[torch.device]) -> int:
    """Return over how many processes to spread a run; 1: only this one."""
    lanes = usable_cores() if config.lanes == "auto" else config.lanes
    count = min(lanes, config.instances)
    if config.workers == "threads" or count == 1:
        return 1
    if not can_fork() or any(device.type != "cpu" for device in devices):
        if config.workers == "processes":
            log.warning("workers: processes needs Linux, a CPU device and no GPU; using threads")
        return 1
    return count if config.workers == "processes" or _is_worth_it(config, count) else 1


def _is_worth_it(config: RunConfig, count: int) -> bool:
    """Return whether to use ``count`` processes where the configuration leaves it open."""
    even = -(-config.instances // count) * count <= UNEVEN * config.instances
    alone = threading.current_thread() is threading.main_thread() and "ipykernel" not in sys.modules
    return even and alone and not config.compute.compile


class WorkerPool(Roster[EnvironmentStatus]):
    """The environments of every arm, as ``Pool`` has them, in several processes on a CPU.

    ``environments`` holds the status of each after the latest request.

    Args:
        recipe: What the environments have in common.
        arms: Names of the arms.
        environments: How many environments each arm has.
        processes: How many processes to start.
        twin: The arm that never grows, with which seeds are compared.
        implants: For an arm and a seed, what the host has grown from the start.
    """

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
        super().__init__([EnvironmentStatus(arm, index) for index, arm in interleaved(arms, range(environments))])
        self.faults = FaultBook()
        self.latest: list[Signals] = []
        self._notices = recipe.notices
        self._lifeline = Lifeline()
        self._processes: list[WorkerProcess] = []
        parts = split(environments, processes)
        self._places = [range(part.start * len(arms), part.stop * len(arms)) for part in parts]
        try:
            for part in parts:

                def make(own: Recipe, part: range = part) -> Pool:
                    return Pool(own, arms, environments, twin=twin, implants=implants, indices=part)

                whose = f"the environments with index {part.start} to {part.stop - 1}"
                self._processes.append(WorkerProcess(partial(serve, make, recipe), self._lifeline, whose))
            self._receive_all()
        except BaseException:
            self.close()
            raise

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round, as ``Pool.reset``."""
        self._call("reset", round_, first_seed)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, as ``Pool.train``."""
        turn = {place: number for number, place in enumerate(self.turns(step))}
        passed = self._joined(self._call("train", step))
        return self._with_members(sorted(passed, key=lambda one: turn[one[0]]))

    def evaluate(self, step: int) -> None:
        """Measure every environment; on a CPU the results are read at once."""
        self._measured = self._flat(self._call("measure", step))

    def synchronise(self, step: int) -> list[Signals]:
        """Return what was measured in ``step``."""
        return self._keep(self._measured)

    def heal(self, signals_E: Sequence[Signals], step: int) -> tuple[list[Signals], LostSeeds]:
        """Take out seeds that broke a loss, as ``Pool.heal``."""
        replies = self._call("heal", step)
        signals = self._keep(self._flat([signals for signals, _ in replies]))
        return signals, self._counted(self._joined([lost for _, lost in replies]))

    def judge(self, signals_E: Sequence[Signals], opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """Return a decision for each environment whose episode goes on, as ``Pool.judge``."""
        asked = [({place - own.start: opinions[place] for place in own if place in opinions},) for own in self._places]
        return dict(self._joined([list(one.items()) for one in self._call_each("judge", asked)]))

    def carry_out(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, Decision], step: int
    ) -> tuple[list[Signals], dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as ``Pool.carry_out``."""
        active = [place for place, one in decisions.items() if one.act is Act.ROLL_BACK or one.truncated]
        if not active:
            return self._keep(signals_E), {}, []
        asked = [([place - own.start for place in active if place in own], step) for own in self._places]
        replies = self._call_each("carry_out", asked)
        signals = self._keep(self._flat([signals for signals, _, _ in replies]))
        rolled = {
            place: replace(back, withdrawn=decisions[place].counted(self.faults))
            for place, back in self._joined([list(backs.items()) for _, backs, _ in replies])
        }
        return signals, rolled, self._with_members(self._joined([changes for _, _, changes in replies]))

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        return self._flat(self._call("masks"))

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, as ``Pool.apply``."""
        active = {place: action for place, action in enumerate(actions) if action.op is not Op.WAIT}
        if not active:
            return [], []
        asked = [({place - own.start: active[place] for place in own if place in active}, step) for own in self._places]
        replies = self._call_each("apply", asked)
        changes = self._with_members(self._joined([changes for changes, _ in replies]))
        return changes, self._counted(self._joined([lost for _, lost in replies]))

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes, as ``Pool.conclude``."""
        replies = self._call("conclude", step)
        endings: list[Ending] = self._flat([endings for _, endings in replies])
        self._keep([ending.signals for ending in endings])
        return self._with_members(self._joined([changes for changes, _ in replies])), endings

    def state_dict(self) -> State:
        """Return the state between two steps, which a ``Pool`` can load as well."""
        packed: list[PackedState] = self._flat(self._call("states"))
        return state_of_pool([one.unpack() for one in packed], self.faults, self.latest)

    def load_state_dict(self, state: State, *, in_round: bool) -> None:
        """Restore the state of this or another pool, as ``Pool.load_state_dict``."""
        self.faults.load_state_dict(state.part("faults"))
        if in_round:
            states_E, latest = parts_of_pool_state(state, len(self.environments))
            packed = [PackedState.of(one) for one in states_E]
            asked = [(packed[own.start : own.stop], latest[own.start : own.stop]) for own in self._places]
            self._call_each("load_states", asked)
            self._keep(latest)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        processes, self._processes = self._processes, []
        self._lifeline.cut()
        for process in processes:
            process.close()
        self.environments, self.latest = [], []

    # Requests and replies.

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker with the same arguments, and return what each returns."""
        return self._call_each(method, [arguments] * len(self._processes))

    def _call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every worker, each with arguments of its own, and return what each returns."""
        for process, own in zip(self._processes, arguments, strict=True):
            process.send(Request(method, own, self.faults.state_dict()))
        return self._receive_all()

    def _receive_all(self) -> list[Any]:
        """Wait for all replies, and return their values; if several raised an error, raise the first one."""
        replies: list[Reply] = [process.receive() for process in self._processes]
        for own, reply in zip(self._places, replies, strict=True):
            for place, status in zip(own, reply.statuses, strict=False):
                self.environments[place] = status
            for level, message in reply.logged:
                log.log(level, "%s", message)
            for notice in reply.notices:
                self._notices.warn(*notice)
        for reply in replies:
            if reply.error is not None:
                raise reply.error from WorkerTraceback(reply.trace)
        return [reply.value for reply in replies]

    @staticmethod
    def _flat(parts: Sequence[Sequence[T]]) -> list[T]:
        """Join lists that have one item for each environment, in the order of places."""
        return [one for part in parts for one in part]

    def _joined(self, parts: Sequence[Placed[T]]) -> Placed[T]:
        """Join lists of items with places in their process, and turn these into places in the run."""
        return [(own.start + place, one) for own, part in zip(self._places, parts, strict=True) for place, one in part]

    def _with_members(self, changes: Placed[Transition]) -> Changes:
        return [(self.environments[place], change) for place, change in changes]

    def _counted(self, lost: Placed[LostSeed]) -> LostSeeds:
        """Count lost seeds over the whole run: a process knows only its own."""
        return [(self.environments[place], one.counted(self.faults)) for place, one in lost]

    def _keep(self, signals: Sequence[Signals]) -> list[Signals]:
        self.latest = list(signals)
        return self.latest


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process, as text."""


def split(environments: int, processes: int) -> list[range]:
    """Return the indices of each process, in order: as many as the others have, or one more.

    >>> split(5, 2)
    [range(0, 3), range(3, 5)]
    """
    count = min(environments, processes)
    ends = [-(-environments * number // count) for number in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]
