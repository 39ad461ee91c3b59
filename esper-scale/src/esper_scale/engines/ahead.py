"""Running ahead: let workers decide by themselves for some steps, where policies do not learn.

Several requests for each step cost a run with many workers, or distant ones, much of its time. So a worker has policies
of its own, as new as those of the run, and takes its environments through some steps at once. It returns each request
that it expects, with the reply. The run goes through these steps as always and takes the replies from there. Where a
request is not the one that the worker expected, the worker returns to that moment, and expects nothing any more. So
running ahead changes no number, whatever a policy depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core.leyline.actions import WAIT, Op
from esper_core.leyline.constants import FAULTS_UNTIL_WITHDRAWN
from esper_core.leyline.protocols import Learner
from esper_core.leyline.signals import Observation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from esper_core.leyline import Signals
    from esper_core.leyline.actions import Action, ActionMask
    from esper_core.trainer import Arm, Pool
    from esper_scale.engines.protocol import Order, Request

SECONDS_AHEAD: Final = 1.0
"""How far workers run ahead: the display and checkpoints of a run lag by as much."""


@dataclass(frozen=True, slots=True)
class Decider:
    """What a worker needs to choose actions as the run does.

    Attributes:
        arms: The arms that have a policy.
        prices: The price of growth that each of their environments' arms is rewarded by.
        steps: Length of an episode.
        batches: Batches of each of its steps.
    """

    arms: Sequence[Arm] = ()
    prices: Mapping[str, float | None] = field(default_factory=dict)
    steps: int = 0
    batches: int | None = None

    @property
    def learns(self) -> bool:
        """Whether a policy learns, from the episodes of all workers."""
        return any(isinstance(arm.policy, Learner) for arm in self.arms)

    def choose(
        self, shard: Pool, order: Order, masks: Sequence[ActionMask], rolled: Collection[int]
    ) -> dict[int, Action]:
        """Return the action in each environment of a shard, by its place.

        A policy may remember something of each environment, by its number in the list that it gets. So the list has
        the environments of other workers, too, which can only wait: it does not matter what the policy takes them for.
        """
        chosen = {environment.place: WAIT for environment in shard.environments}
        members = {(environment.index, environment.arm): environment for environment in shard.environments}
        own_masks = {environment.place: mask for environment, mask in zip(shard.environments, masks, strict=True)}
        for arm in self.arms:
            of_arm = [name for name in order.arms if name in arm.names]
            listed = [members.get((index, name)) for index in range(order.environments) for name in of_arm]
            if not any(listed):  # the arms are those of the controls
                continue
            seen, able = [], []
            for member in listed:
                environment = member or next(filter(None, listed))
                twin = members.get((environment.index, order.twin or ""))
                seen.append(
                    self._observe(
                        environment.arm,
                        environment.signals,
                        None if twin is None else twin.signals,
                        environment.place in rolled,
                    )
                )
                mask = own_masks[environment.place]
                able.append(mask if member is environment and member.place not in rolled else mask.shut())
            actions = arm.act(seen, able)
            chosen |= {
                member.place: action for member, action in zip(listed, actions, strict=True) if member is not None
            }
        return chosen

    def _observe(self, arm: str, signals: Signals | None, twin: Signals | None, rolled_back: bool) -> Observation:
        assert signals is not None
        price = self.prices.get(arm)
        return Observation(signals.step, self.steps, signals, twin, price, rolled_back, batches=self.batches)


class Ask(Protocol):
    """Answers a request as if the run had sent it, and returns the value; raises what the method raises."""

    def __call__(self, method: str, *arguments: Any) -> Any:
        """See above."""


def run_ahead(shard: Pool, order: Order, decider: Decider, first: int, end: int, ask: Ask) -> None:
    """Take a shard through the steps from ``first`` to before ``end``, with the requests of ``trainer.loop``."""
    for step in range(first, end):
        if not shard.running():
            return
        for method in ("train", "evaluate", "synchronise", "heal"):
            ask(method, step)
        decisions = ask("judge", {})
        if any(decision.act == "stop" for decision in decisions.values()):
            return
        active = {
            place: decision
            for place, decision in decisions.items()
            if decision.act == "roll-back" or decision.truncated
        }
        rolled = ask("carry_out", active, step)[0] if active else {}
        actions = decider.choose(shard, order, ask("masks"), rolled)
        if any(action.op is not Op.WAIT for action in actions.values()):
            ask("apply", actions, step)


def is_as_expected(expected: Request, request: Request) -> bool:
    """Return whether a request of the run has the effect of the one that a worker expected."""
    return (
        not request.condemned
        and (expected.method, expected.arguments) == (request.method, request.arguments)
        and _withdrawn(expected) == _withdrawn(request)
    )


def _withdrawn(request: Request) -> set[str]:
    """Return the blueprints that are withdrawn at the time of a request."""
    counts: Mapping[str, int] = request.faults.plain["counts"]
    return {name for name, count in counts.items() if count >= FAULTS_UNTIL_WITHDRAWN}
