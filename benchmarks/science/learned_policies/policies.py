"""The compared policies. They see only what a policy sees in a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import WAIT, Action, Op
from esper_policies.heuristic import Heuristic
from esper_policies.ppo.policy import Ppo
from esper_policies.random_policy import Random
from esper_study.growbench import CANDIDATES, Match
from esper_study.growbench.puzzles import DECIDE_EVERY, LAST_DECISION, RAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy as np

    from esper_core.leyline import ActionMask, Observation, Policy
    from esper_study.growbench import Bench

PRICES: Final = (10.0, 20.0, 40.0, 80.0)
"""Every policy is evaluated at each of these prices."""

TRAINING_PRICES: Final = (7.0, 110.0)
"""Policies are trained at log-uniform prices between these."""

MAIN_PRICE: Final = 40.0
"""The price of the main comparison, chosen beforehand."""

TRAININGS: Final = 3
"""Independent trainings of each learned policy."""

PPO: Final[dict[str, Any]] = {
    "decide_every": DECIDE_EVERY,
    "last": LAST_DECISION,
    "speeds": (RAMP,),
    "together": 256,
    "minibatch": 256,
    "passes": 4,
}
"""Settings that all trained policies share."""


def matches(puzzles: Iterable[int], prices: Sequence[float]) -> list[Match]:
    """Return every problem at every price."""
    return [Match(puzzle, price) for puzzle in puzzles for price in prices]


@dataclass(slots=True)
class InOrder:
    """A policy that sees blueprints in another order than that of the file, for heuristics that try them in turn."""

    policy: Policy
    order: tuple[str, ...]

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> Sequence[Action]:
        """Return the policy's actions for the reordered observations."""
        return self.policy.act(
            [self._seen(observation) for observation in observations], [self._mask(mask) for mask in masks]
        )

    def _seen(self, observation: Observation) -> Observation:
        slots = sorted(observation.signals.slots, key=lambda slot: self._rank_of_slot(slot.name))
        return replace(observation, signals=replace(observation.signals, slots=tuple(slots)))

    def _mask(self, mask: ActionMask) -> ActionMask:
        return replace(
            mask,
            blueprints={
                slot: tuple(sorted(blueprints, key=self.order.index)) for slot, blueprints in mask.blueprints.items()
            },
        )

    def _rank_of_slot(self, slot: str) -> int:
        first = self.order[0].endswith("mlp")
        return int((slot == "late") != first)


HEURISTIC: Final[dict[str, Any]] = {"patience": 0, "first": 0.0, "last": LAST_DECISION, "speed": RAMP}
"""Settings of the heuristic that are not tuned."""


def heuristic(bench: Bench, settings: dict[str, Any]) -> Policy:
    """Build the heuristic with its tuned settings."""
    tuned = dict(settings)
    order = tuple(tuned.pop("order"))
    return InOrder(Heuristic(bench.space, **HEURISTIC, **tuned), order)


@dataclass(frozen=True, slots=True)
class OnePreview:
    """A plan with one decision point.

    It germinates ``first`` at once. At decision number ``decision`` it blends the seed in if it gains at least ``gain``
    nats and the host's metric is at most ``metric``; else it prunes it. After that it germinates ``then``, if that is
    set and the metric is still at most ``metric``, and decides on it in the same way if there is time.
    """

    first: int
    decision: int
    gain: float
    metric: float
    then: int | None

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the plan's actions; WAIT where they are not possible."""
        actions = (self._one(*seen) for seen in zip(observations, masks, strict=True))
        return [action if mask.allows(action) else WAIT for action, mask in zip(actions, masks, strict=True)]

    def _one(self, seen: Observation, mask: ActionMask) -> Action:
        now, decision = seen.signals, seen.step // DECIDE_EVERY
        growing = next(((slot.name, seed) for slot in now.slots for seed in slot.seeds), None)
        is_good = now.validation_metric > self.metric
        if decision == 0:
            return Action(Op.GERMINATE, *CANDIDATES[self.first], speed=RAMP)
        if growing is not None:
            slot, seed = growing
            if decision < self.decision:
                return WAIT
            pays = seed.gain is not None and seed.gain.mean >= self.gain
            return Action(Op.ADVANCE if pays and not is_good else Op.PRUNE, slot, seed.blueprint)
        if decision == self.decision + 1 and self.then is not None and not is_good and now.fossils == 0:
            return Action(Op.GERMINATE, *CANDIDATES[self.then], speed=RAMP)
        return WAIT


def random_actions(bench: Bench, seed: int) -> Policy:
    """Build the policy that acts at random."""
    return Random(bench.space, seed=seed, speeds=(RAMP,))


def trained(bench: Bench, folder: Path) -> Ppo:
    """Load a trained policy without further learning."""
    return Ppo(bench.space, load=str(folder), learn=False, **PPO)


def draws(generator: np.random.RandomState, puzzles: Sequence[int], count: int) -> list[Match]:
    """Draw matches at log-uniform prices, so that policies do not specialise in four prices."""
    least, most = map(math.log, TRAINING_PRICES)
    chosen, sizes = generator.choice(len(puzzles), count), generator.uniform(least, most, count)
    return [Match(puzzles[int(n)], math.exp(size)) for n, size in zip(chosen, sizes, strict=True)]
