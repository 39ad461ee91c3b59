"""A study: a pool of environments, the arms that decide in it, the rewards, and how often it is repeated."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.lifecycle import Action
from esper_core.leyline.protocols import Concludes, FollowsPlan
from esper_core.leyline.signals import CALM, HealthSnapshot, Observation, RewardBreakdown
from esper_core.plugins.isolation import attributed_to, definition_of
from esper_core.plugins.process_state import Scope
from esper_core.plugins.returned_values import describe_value, finite, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from esper_core.leyline import ActionMask, Policy, Reward, Signals, Verdict
    from esper_core.settings import EpisodeConfig
    from esper_core.telemetry import Bus, Clock
    from esper_core.trainer.event_records import AnyEnvironment
    from esper_core.trainer.roster import StudyPool

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a study: a policy in environments of its own.

    Attributes:
        label: The policy and its package, as messages name them.
    """

    name: str
    policy: Policy
    label: str

    def impossible(self, steps: int) -> tuple[str, ...]:
        """Return what its policy cannot carry out in an episode of so many steps, if the policy can tell."""
        find = getattr(self.policy, "impossible", None)
        if find is None:
            return ()
        with attributed_to(self.label, "when it examined its plan", Scope.RUN):
            return tuple(map(str, find(steps)))

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> Sequence[Action]:
        """Return the policy's actions; PluginError if they are not one legal action for each environment."""
        with attributed_to(self.label, "when it chose actions", Scope.RUN):
            actions = self.policy.act(observations, masks)
        hint = "Policy.act returns a list with one Action for each observation."
        # A generator is refused because these checks would use it up.
        if not isinstance(actions, Sequence) or not all(isinstance(action, Action) for action in actions):
            refuse(self.label, self.policy.act, f"{describe_value(actions)} in place of Actions", hint)
        if len(actions) != len(observations):
            what = f"{len(actions)} actions for {len(observations)} environments"
            refuse(self.label, self.policy.act, what, hint)
        for action, mask in zip(actions, masks, strict=True):
            if not mask.allows(action):
                message = f"{self.label} chose an action that its mask forbids: {action.title}"
                legal = [f"{op.value} {slot}" for slot, ops in mask.ops.items() for op in sorted(ops)]
                hint = f"Allowed: wait, {', '.join(legal) or 'nothing else'}"
                raise PluginError(Problem("E233", message, *definition_of(self.policy.act), hint=hint))
        return actions

    def conclusions(self) -> list[str]:
        """Return what its policy concludes of each of its environments; nothing if it does not say."""
        if not isinstance(self.policy, Concludes):
            return []
        with attributed_to(self.label, "when it said what it concludes", Scope.RUN):
            return list(map(str, self.policy.conclusions()))


@dataclass(frozen=True, slots=True)
class RunReward:
    """A reward of a run, with its package as messages name it."""

    reward: Reward
    label: str

    @property
    def price(self) -> float | None:
        """The reward's price for growth: its attribute ``price``, if it has one."""
        return finite(getattr(self.reward, "price", None))

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None, when: str = "for a step"
    ) -> RewardBreakdown:
        """Return the breakdown of a step; PluginError if a term, or the sum of all, is not a finite number.

        Who scores many steps guards the state of the process around all of them.
        """
        with attributed_to(self.label, when, Scope.SETTINGS):
            breakdown = self.reward.score(now, before, twin, twin_before)
        terms = breakdown.terms if isinstance(breakdown, RewardBreakdown) else None
        hint = 'Reward.score returns RewardBreakdown({"accuracy": 0.5}): finite numbers, by name.'
        if not isinstance(terms, Mapping):
            refuse(self.label, self.reward.score, f"{describe_value(breakdown)} {when}", hint)
        wrong = {
            name: value
            for name, value in terms.items()
            if finite(value) is None or not name or not isinstance(name, str)
        }
        if wrong or finite(sum(map(float, terms.values()))) is None:  # finite terms may have a sum that is too large
            refuse(self.label, self.reward.score, f"{describe_value(wrong or terms)} {when}", hint)
        return breakdown


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that the loop works with.

    Attributes:
        arms: The arms that have a policy.
        twin: The arm that never grows, with which the others are compared; None without one.
        first_seeds: RNG seed of the first environment in each round, of which there are as many.
        packages: The package behind each blueprint, by the blueprint's full id.
        check_health: A second opinion on each environment after each step, which can only raise the verdict.
    """

    pool: StudyPool[Any]
    arms: Sequence[Arm]
    twin: str | None
    reward: RunReward
    episode: EpisodeConfig
    first_seeds: Sequence[int]
    bus: Bus
    clock: Clock
    packages: Mapping[str, str]
    check_health: Callable[[HealthSnapshot], Verdict] = field(default=lambda snapshot: CALM)

    def twins(self) -> list[int | None]:
        """Return the pool index of each environment's twin; None where it has none."""
        twin_places = [] if self.twin is None else self.pool.of_arm(self.twin)
        return [twin_places[environment.index] if twin_places else None for environment in self.pool.environments]

    def observe(self, signals_E: Sequence[Signals], rolled: Collection[int] = ()) -> list[Observation]:
        """Return what a policy sees of each environment: its signals, those of its twin, and the reward's price."""
        twins_E = [None if twin is None else signals_E[twin] for twin in self.twins()]
        steps, batches, price = self.episode.steps, self.episode.batches, self.reward.price
        return [
            Observation(signals.step, steps, signals, twin, price, pool_index in rolled, batches=batches)
            for pool_index, (signals, twin) in enumerate(zip(signals_E, twins_E, strict=True))
        ]

    def warn_of_unfinished_plans(self) -> None:
        """Log a warning for each entry of a plan that was never carried out, which is a mistake in the plan."""
        for arm in self.arms:
            if isinstance(arm.policy, FollowsPlan):
                with attributed_to(arm.label, "when it said what it had not carried out", Scope.RUN):
                    left = [str(note) for notes in arm.policy.unfinished() for note in notes]
                for note, count in Counter(left).items():
                    share = f"{count} of {len(self.pool.of_arm(arm.name))} episodes"
                    log.warning("arm %s: not carried out in %s: %s", arm.name, share, note)


def warn_of_loss_scales(environments: Sequence[AnyEnvironment], signals_E: Sequence[Signals]) -> None:
    """Log a warning if arms of one RNG seed ended a round with different loss scales (float16).

    A step that overflows is left out and halves the scale, so these arms were not trained on the same batches.
    """
    scales: dict[int, dict[str, float]] = {}
    for environment, signals in zip(environments, signals_E, strict=True):
        if signals.loss_scale is not None:
            scales.setdefault(environment.seed, {})[environment.arm] = signals.loss_scale
    for seed, by_arm in scales.items():
        if len(set(by_arm.values())) > 1:
            message = "the loss scales (float16) differ between arms, which were not trained on the same batches"
            log.warning(
                "%s: RNG seed %s: %s", message, seed, ", ".join(f"{arm} {scale:g}" for arm, scale in by_arm.items())
            )
