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
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, Any, Final

from esper_core.governor import Act
from esper_core.growth import FaultBook
from esper_core.leyline.actions import Action, Op
from esper_core.trainer.lanes import usable_cores
from esper_core.trainer.pool import Roster
from esper_core.trainer.worker_process import (
    EnvironmentStatus,
    ForkedPool,
    Lifeline,
    Reply,
    Request,
    WorkerProcess,
    can_fork,
    pack,
    serve,
    unpack,
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
    from esper_core.trainer.event_records import Changes, Ending, LostSeeds

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
        """Begin a round, as ``Pool.reset``."""
        self._call("reset", round_, first_seed)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, as ``Pool.train``."""
        turns = [one.place for one in self.turns(step)]
        changes: Changes = self._call("train", step)
        return sorted(changes, key=lambda change: turns.index(change[0]))

    def evaluate(self, step: int) -> None:
        """Measure every environment, as ``Pool.evaluate``."""
        self._call("evaluate", step)

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured, as ``Pool.synchronise``."""
        signals: list[Signals] = self._call("synchronise", step)
        return signals

    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss, as ``Pool.heal``."""
        return self._counted(self._call("heal", step))

    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """Return the governor's decisions, as ``Pool.judge``."""
        decisions: dict[int, Decision] = self._call("judge", opinions)
        return decisions

    def carry_out(self, decisions: Mapping[int, Decision], step: int) -> tuple[dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as ``Pool.carry_out``."""
        active = {place: one for place, one in decisions.items() if one.act is Act.ROLL_BACK or one.truncated}
        if not active:
            return {}, []
        rolled, changes = self._call("carry_out", active, step)
        counted = {
            place: replace(one, withdrawn=decisions[place].counted(self.faults)) for place, one in rolled.items()
        }
        return counted, changes

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        masks: list[ActionMask] = self._call("masks")
        return masks

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, as ``Pool.apply``."""
        if all(action.op is Op.WAIT for action in actions):
            return [], []
        changes, lost = self._call("apply", actions, step)
        return changes, self._counted(lost)

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes, as ``Pool.conclude``."""
        concluded: tuple[Changes, list[Ending]] = self._call("conclude", step)
        return concluded

    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its place."""
        return {place: unpack(state) for place, state in self._call("packed_states").items()}

    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its place."""
        self._call("load_packed_states", {place: pack(state) for place, state in states.items()}, latest)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        processes, self._processes = self._processes, []
        self._lifeline.cut()
        for process in processes:
            process.close()
        self.environments = []

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of every process, and return what they return, joined in the order of places."""
        for process in self._processes:
            process.send(Request(method, arguments, self.faults.state_dict()))
        return joined(self._receive_all())

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
    """Return the indices of each process, in order: as many as the others have, or one more.

    >>> split(5, 2)
    [range(0, 3), range(3, 5)]
    """
    count = min(environments, processes)
    ends = [-(-environments * number // count) for number in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]
