"""Where do environments live that share a run, and no process? In shards, by index, behind the face of a pool.

Everything of one index, its twin among it, is in one process, so only plain records cross. What concerns the whole run
stays here: who stands where, the faults of blueprints, what is told once. The numbers are those of one process.

Over how many processes is a run spread? Over several where that can be and pays; else its lanes are threads.

The numbers are the same. Threads of one process wait for Python, and for each other where networks draw random numbers;
processes do not, but each of them has its seeds from the beginning, and does nothing when it is done with them.
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
from esper_core.trainer.pool import Changes, Ending, Mishaps, Pool
from esper_core.trainer.remembering import parts_of_all, state_of_all
from esper_core.trainer.study import Roster, interleaved
from esper_core.trainer.worker_process import Fork, Lifeline, Packed, Reply, Request, Standing, can_fork, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from esper_core.config import RunConfig
    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline.actions import ActionMask
    from esper_core.leyline.protocols import State
    from esper_core.leyline.signals import Signals, Verdict
    from esper_core.trainer.environment import Mishap, Recipe
    from esper_core.trainer.worker_process import Placed


T = TypeVar("T")

log = logging.getLogger("esper")


class Shards(Roster[Standing]):
    """The environments of every arm, as ``Pool`` has them, in so many processes; on a CPU.

    ``environments`` tells how they stand, after the latest request. implants: as for ``Pool``.
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
        super().__init__([Standing(arm, index) for index, arm in interleaved(arms, range(environments))])
        self.faults = FaultBook()
        self.latest: list[Signals] = []
        self._notices = recipe.notices
        self._lifeline = Lifeline()
        self._forks: list[Fork] = []
        parts = split(environments, processes)
        self._places = [range(part.start * len(arms), part.stop * len(arms)) for part in parts]
        try:
            for part in parts:

                def make(own: Recipe, part: range = part) -> Pool:
                    return Pool(own, arms, environments, twin=twin, implants=implants, indices=part)

                whose = f"the environments with index {part.start} to {part.stop - 1}"
                self._forks.append(Fork(partial(serve, make, recipe), self._lifeline, whose))
            self._received()
        except BaseException:
            self.close()
            raise

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round, as ``Pool.reset``."""
        self._ask("reset", round_, first_seed)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, as ``Pool.train``."""
        turn = {place: number for number, place in enumerate(self.turns(step))}
        passed = self._joined(self._ask("train", step))
        return self._named(sorted(passed, key=lambda one: turn[one[0]]))

    def evaluate(self, step: int) -> None:
        """Measure every environment; who measures on a CPU has read it, too."""
        self._measured = self._flat(self._ask("measure", step))

    def synchronise(self, step: int) -> list[Signals]:
        """What was measured in ``step``."""
        return self._keep(self._measured)

    def heal(self, signals_E: Sequence[Signals], step: int) -> tuple[list[Signals], Mishaps]:
        """Take out seeds that went wrong, as ``Pool.heal``."""
        replies = self._ask("heal", step)
        signals = self._keep(self._flat([signals for signals, _ in replies]))
        return signals, self._counted(self._joined([mishaps for _, mishaps in replies]))

    def judge(self, signals_E: Sequence[Signals], opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """What is to be done in each environment whose episode goes on, as ``Pool.judge``."""
        told = [({place - own.start: opinions[place] for place in own if place in opinions},) for own in self._places]
        return dict(self._joined([list(one.items()) for one in self._ask_each("judge", told)]))

    def heed(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, Decision], step: int
    ) -> tuple[list[Signals], dict[int, RolledBack], Changes]:
        """Carry out what was decided, as ``Pool.heed``."""
        active = [place for place, one in decisions.items() if one.act is Act.ROLL_BACK or one.truncated]
        if not active:
            return self._keep(signals_E), {}, []
        asked = [([place - own.start for place in active if place in own], step) for own in self._places]
        replies = self._ask_each("heed", asked)
        signals = self._keep(self._flat([signals for signals, _, _ in replies]))
        rolled = {
            place: replace(back, withdrawn=decisions[place].counted(self.faults))
            for place, back in self._joined([list(backs.items()) for _, backs, _ in replies])
        }
        return signals, rolled, self._named(self._joined([changes for _, _, changes in replies]))

    def masks(self) -> list[ActionMask]:
        """What could be done now, in each environment."""
        return self._flat(self._ask("masks"))

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, Mishaps]:
        """Carry out one action in each environment, as ``Pool.apply``."""
        active = {place: action for place, action in enumerate(actions) if action.op is not Op.WAIT}
        if not active:
            return [], []
        asked = [({place - own.start: active[place] for place in own if place in active}, step) for own in self._places]
        replies = self._ask_each("apply", asked)
        changes = self._named(self._joined([changes for changes, _ in replies]))
        return changes, self._counted(self._joined([mishaps for _, mishaps in replies]))

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes, as ``Pool.conclude``."""
        replies = self._ask("conclude", step)
        endings: list[Ending] = self._flat([endings for _, endings in replies])
        self._keep([ending.signals for ending in endings])
        return self._named(self._joined([changes for changes, _ in replies])), endings

    def state(self) -> State:
        """All that is known, between two steps: what ``Pool.state`` gives, which a pool can load."""
        packed: list[Packed] = self._flat(self._ask("states"))
        return state_of_all([one.opened() for one in packed], self.faults, self.latest)

    def load(self, state: State, *, in_round: bool) -> None:
        """Be as another pool was, as ``Pool.load``."""
        self.faults.load_state_dict(state.part("faults"))
        if in_round:
            states_E, latest = parts_of_all(state, len(self.environments))
            packed = [Packed.of(one) for one in states_E]
            self._ask_each(
                "load_states",
                [(packed[own.start : own.stop], latest[own.start : own.stop]) for own in self._places],
            )
            self._keep(latest)

    def close(self) -> None:
        """End the processes, whatever they do."""
        forks, self._forks = self._forks, []
        self._lifeline.cut()
        for fork in forks:
            fork.close()
        self.environments, self.latest = [], []

    # What is asked, and what is told.

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """What each shard gives."""
        return self._ask_each(method, [arguments] * len(self._forks))

    def _ask_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The same, each asked with arguments of its own."""
        for fork, own in zip(self._forks, arguments, strict=True):
            fork.send(Request(method, own, self.faults.state_dict()))
        return self._received()

    def _received(self) -> list[Any]:
        """What all of them reply, when all are done; what the first of those raises that raise."""
        replies: list[Reply] = [fork.receive() for fork in self._forks]
        for own, reply in zip(self._places, replies, strict=True):
            for place, standing in zip(own, reply.standings, strict=False):
                self.environments[place] = standing
            for level, message in reply.said:
                log.log(level, "%s", message)
            for notice in reply.notices:
                self._notices.tell(*notice)
        for reply in replies:
            if reply.error is not None:
                raise reply.error from Elsewhere(reply.trace)
        return [reply.value for reply in replies]

    @staticmethod
    def _flat(parts: Sequence[Sequence[T]]) -> list[T]:
        """What is told of each environment, in the order of their places."""
        return [one for part in parts for one in part]

    def _joined(self, parts: Sequence[Placed[T]]) -> Placed[T]:
        """What is told with a place in its shard, with the place in the run."""
        return [(own.start + place, one) for own, part in zip(self._places, parts, strict=True) for place, one in part]

    def _named(self, changes: Placed[Transition]) -> Changes:
        return [(self.environments[place], change) for place, change in changes]

    def _counted(self, mishaps: Placed[Mishap]) -> Mishaps:
        """Mishaps, counted over the whole run: a shard knows only of its own."""
        return [(self.environments[place], mishap.counted(self.faults)) for place, mishap in mishaps]

    def _keep(self, signals: Sequence[Signals]) -> list[Signals]:
        self.latest = list(signals)
        return self.latest


class Elsewhere(Exception):
    """Where an error was raised in another process: its traceback, in words."""


def split(environments: int, processes: int) -> list[range]:
    """Indices, in their order, for each process: as many as the others have, or one more.

    >>> split(5, 2)
    [range(0, 3), range(3, 5)]
    """
    count = min(environments, processes)
    ends = [-(-environments * number // count) for number in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


UNEVEN: Final = 1.15
"""How much longer than evenly shared work the largest share may take, for processes to be chosen."""


def processes_for(config: RunConfig, devices: Sequence[torch.device]) -> int:
    """How many; 1: this one alone."""
    lanes = usable_cores() if config.lanes == "auto" else config.lanes
    count = min(lanes, config.instances)
    if config.workers == "threads" or count == 1:
        return 1
    if not can_fork() or any(device.type != "cpu" for device in devices):
        if config.workers == "processes":
            log.warning("lanes are processes on Linux, where there is no GPU: here they are what they are elsewhere")
        return 1
    return count if config.workers == "processes" or _pays(config, count) else 1


def _pays(config: RunConfig, count: int) -> bool:
    """Whether nothing speaks against ``count`` processes, where nobody asked for them."""
    even = -(-config.instances // count) * count <= UNEVEN * config.instances
    alone = threading.current_thread() is threading.main_thread() and "ipykernel" not in sys.modules
    return even and alone and not config.compute.compile
