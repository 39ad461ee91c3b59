"""The run's side: the environments of a run in several workers, behind the interface of ``Pool``.

Environments of one index, and so a twin and what is compared with it, share a worker; only plain records cross. What
concerns the whole run stays here: faults of blueprints, and warnings that are given once. The numbers are those of a
single process.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from esper_core.leyline.lifecycle import Action, Op
from esper_core.leyline.signals import CALM
from esper_core.trainer import StudyPool
from esper_run.watchdog import Patience
from esper_scale.engines.protocol import EnvironmentStatus, Order, Request, pack, unpack
from esper_scale.engines.shard import Shard
from esper_scale.engines.supervision import SupervisedWorker, WorkerSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.governor import GovernorDecision, RolledBack
    from esper_core.growth import Transition
    from esper_core.leyline import ActionMask, Signals, Verdict
    from esper_core.leyline.protocols import State
    from esper_core.trainer import Ending, LostSeeds
    from esper_run.engines import PoolRequest
    from esper_scale.engines.protocol import Engine, PackedState, Reply

    StageChanges: TypeAlias = list[tuple[int, Transition]]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("esper")


SNAPSHOT_SHARE: Final = 0.02
"""Share of the run's time that snapshots may take."""


class WorkerPool(StudyPool[EnvironmentStatus]):
    """The environments in several workers; ``environments`` holds their status.

    Args:
        engine: Starts the workers.
        request: Which environments a study asks for.
        environments: How many each arm has.
        workers: How many workers there are.
        warn: Gets each warning of the workers: what failed, and why.
        patience: Seconds that a worker may take for a request; None: many times what others took.
    """

    def __init__(
        self,
        engine: Engine,
        request: PoolRequest,
        environments: int,
        *,
        workers: int,
        warn: Callable[[str, str], None],
        patience: float | None = None,
    ) -> None:
        arms = tuple(request.arms)
        every = enumerate(product(range(environments), arms))
        statuses = [EnvironmentStatus(pool_index, arm, index) for pool_index, (index, arm) in every]
        super().__init__(statuses, len(statuses))
        self._warn = warn
        self._snapshot_due = 0.0
        self._arms = len(arms)
        self._workers: list[SupervisedWorker] = []
        shared = Patience(patience)
        try:
            for indices in split(environments, workers):
                order = Order(arms, environments, indices, request.twin, request.implants)
                self._workers.append(SupervisedWorker(engine, order, shared, partial(request.heartbeat, -1)))
            self._receive_all(self._workers)  # after all were started, so that they prepare side by side
        # Processes that were started would outlive an error here, or Ctrl-C.
        except BaseException:
            self.close()
            raise

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round."""
        self._call(Shard.reset, round_, first_seed)

    def train(self, step: int) -> StageChanges:
        """Train every environment for one step, and return the seeds' changes of stage."""
        # Between two steps nothing is half done: that is the one moment at which a state can be restored.
        if len(self.latest) == len(self.environments) and time.monotonic() >= self._snapshot_due:
            self._packed_states()
        # Workers train side by side; events are in the order of turns that threads have.
        turns = [environment.pool_index for environment in self.turns(step)]
        changes = self._call(Shard.train, step)
        return sorted(changes, key=lambda change: turns.index(change[0]))

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split."""
        self._call(Shard.evaluate, step)

    def synchronise(self, step: int) -> None:
        """Read what was measured."""
        self._call(Shard.synchronise, step)

    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss."""
        return self._counted(self._call(Shard.heal, step))

    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, GovernorDecision]:
        """Return the governor's decisions."""
        # An opinion that is calm changes nothing, so it need not be sent.
        doubts = {pool_index: opinion for pool_index, opinion in opinions.items() if opinion != CALM}
        return self._call_each(Shard.judge, lambda order: (self._of_worker(order, doubts),), {})

    def carry_out(
        self, decisions: Mapping[int, GovernorDecision], step: int
    ) -> tuple[dict[int, RolledBack], StageChanges]:
        """Roll environments back, and end episodes, as the governor decided."""
        active = {
            pool_index: decision
            for pool_index, decision in decisions.items()
            if decision.act == "roll-back" or decision.truncated
        }

        def arguments_for(order: Order) -> tuple[Any, ...] | None:
            return (assigned, step) if (assigned := self._of_worker(order, active)) else None

        rolled, changes = self._call_each(Shard.carry_out, arguments_for, ({}, []))
        counted = {
            # Counted here, because faults withdraw a blueprint from the whole run, and a worker has only some of them.
            pool_index: replace(rolled_back, withdrawn=decisions[pool_index].counted(self.faults))
            for pool_index, rolled_back in rolled.items()
        }
        return counted, changes

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        return self._call(Shard.masks)

    def apply(self, actions: Sequence[Action] | Mapping[int, Action], step: int) -> tuple[StageChanges, LostSeeds]:
        """Carry out one action in each environment."""
        by_index = actions if isinstance(actions, dict) else dict(enumerate(actions))

        def arguments_for(order: Order) -> tuple[Any, ...] | None:
            assigned = self._of_worker(order, by_index)
            return (assigned, step) if any(action.op is not Op.WAIT for action in assigned.values()) else None

        changes, lost = self._call_each(Shard.apply, arguments_for, ([], []))
        return changes, self._counted(lost)

    def conclude(self, step: int) -> tuple[StageChanges, list[Ending]]:
        """End the episodes."""
        return self._call(Shard.conclude, step)

    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its pool index."""
        return {pool_index: unpack(state) for pool_index, state in self._packed_states().items()}

    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its pool index."""
        packed = {pool_index: pack(state) for pool_index, state in states.items()}
        self._call_each(Shard.load_packed_states, lambda order: (self._of_worker(order, packed), latest), None)

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
        self.environments = []

    def _call(self, method: Callable[Concatenate[Shard, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method of every worker's shard, and return what they return, joined in the order of indices."""
        return self._call_each(method, lambda order: arguments, None)

    def _call_each(
        self,
        method: Callable[..., T],
        arguments: Callable[[Order], tuple[Any, ...] | None],
        idle: Any,
    ) -> T:
        """Call a method of each worker's shard with its own arguments. Where these are None, ``idle`` is its value."""
        busy = []
        for worker in self._workers:
            if (worker_arguments := arguments(worker.order)) is not None:
                worker.send(Request(method.__name__, worker_arguments, self.faults.state_dict()))
                busy.append(worker)
        values = iter(self._receive_all(busy))
        result: T = joined([next(values) if worker in busy else idle for worker in self._workers])
        return result

    def _of_worker(self, order: Order, by_index: Mapping[int, T]) -> dict[int, T]:
        """Return what belongs to the environments of a worker."""
        return {
            pool_index: value for pool_index, value in by_index.items() if pool_index // self._arms in order.indices
        }

    def _packed_states(self) -> dict[int, PackedState]:
        """Return the packed state of each environment, and let the workers keep them as snapshots."""
        began = time.monotonic()
        for worker in self._workers:
            worker.send(Request(Shard.packed_states.__name__, (), self.faults.state_dict()))
        parts = self._receive_all(self._workers)
        if len(latest := self.latest) == len(self.environments):  # before the first step no state is complete
            for worker, part in zip(self._workers, parts, strict=True):
                worker.keep(WorkerSnapshot(part, latest))
        # The longer a snapshot takes, the longer the next one waits. What is repeated after a loss grows with that.
        self._snapshot_due = time.monotonic() + (time.monotonic() - began) / SNAPSHOT_SHARE
        return {pool_index: state for part in parts for pool_index, state in part.items()}

    def _receive_all(self, workers: Sequence[SupervisedWorker]) -> list[Any]:
        """Wait for the replies of workers, and return their values; if several raised an error, raise the first one."""
        # All are received before an error is raised: a reply that waits in its pipe would answer the next request.
        replies: list[Reply] = [worker.receive() for worker in workers]
        for reply in replies:
            for status in reply.statuses:
                self.environments[status.pool_index] = status
            for level, message in reply.logged:
                log.log(level, "%s", message)
            for warning in reply.warnings:
                self._warn(*warning)
        for reply in replies:
            if reply.error is not None:
                raise reply.error from WorkerTraceback(reply.trace)
        return [reply.value for reply in replies]

    def _counted(self, lost: LostSeeds) -> LostSeeds:
        """Count lost seeds over the whole run: a worker knows only its own."""
        return [(pool_index, lost_seed.counted(self.faults)) for pool_index, lost_seed in lost]


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as text."""


def joined(values: Sequence[Any]) -> Any:
    """Join what several workers returned: lists and dictionaries one after the other, tuples item by item.

    >>> joined([([1], {0: "a"}), ([2, 3], {1: "b"})])
    ([1, 2, 3], {0: 'a', 1: 'b'})
    """
    if isinstance(values[0], tuple):
        return tuple(map(joined, zip(*values, strict=True)))
    if isinstance(values[0], dict):
        return {pool_index: member for value in values for pool_index, member in value.items()}
    return None if values[0] is None else list(chain(*values))


def split(environments: int, workers: int) -> list[range]:
    """Return the indices of each worker, in order: as many as the others have, or one more."""
    count = min(environments, workers)
    ends = [-(-environments * number // count) for number in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]
