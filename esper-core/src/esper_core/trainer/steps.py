"""The order of a decision step.

``Stepper.advance`` trains, measures and rewards a pool of environments; then somebody decides what grows; then
``Stepper.act`` carries it out. The training loop decides by policies (``trainer.loop``), and whoever steps through an
episode manually decides by hand (``app.episode``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.governor import Act
from esper_core.leyline.actions import WAIT
from esper_core.leyline.errors import GovernorStop, Problem
from esper_core.leyline.signals import HealthSnapshot
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.event_records import governor_acted, seeds_lost, stages_changed, steps_finished

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.governor import Decision, RolledBack
    from esper_core.leyline.actions import Action
    from esper_core.leyline.signals import RewardBreakdown, Signals, Verdict
    from esper_core.trainer.study import AnyPool

    Score = Callable[[Sequence[Signals], Mapping[int, Decision]], Sequence[RewardBreakdown | None]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought, before anything is decided.

    Attributes:
        step: Number of the step.
        signals: Signals of each environment, as they are after healing and rollbacks.
        rewards: What the step was worth, and so the action before it; None where that is unknown.
        decisions: The governor's decision, by the places of the environments whose episode goes on.
        rolled: What was rolled back, by place.
    """

    step: int
    signals: Sequence[Signals]
    rewards: Sequence[RewardBreakdown | None]
    decisions: Mapping[int, Decision]
    rolled: Mapping[int, RolledBack]


class Stepper:
    """Takes the environments of a pool through decision steps, and publishes what happens.

    Args:
        pool: The environments.
        score: Rewards the signals of a step; None: nothing is rewarded.
        check_health: A second opinion on an environment, which can raise the alarm and not call it off.
        bus: Where events are published.
        clock: Measures where the time goes.
        packages: The package behind each blueprint.
    """

    def __init__(
        self,
        pool: AnyPool,
        score: Score | None,
        check_health: Callable[[HealthSnapshot], Verdict],
        *,
        bus: Bus | None = None,
        clock: Clock | None = None,
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self._pool = pool
        self._score = score
        self._check_health = check_health
        self._bus = Bus() if bus is None else bus
        self._clock = Clock() if clock is None else clock
        self._packages = packages or {}

    def advance(self, step: int) -> StepResult:
        """Train every environment for one step, measure, heal, judge, roll back where necessary, and reward.

        Raises:
            GovernorStop: An environment cannot be rolled back.
        """
        pool, bus, clock = self._pool, self._bus, self._clock
        with clock.region("train"):
            passed = pool.train(step)
        clock.split("train", "shadow", pool.incubation_share)
        with clock.region("evaluate"):
            pool.evaluate(step)
            pool.synchronise(step)  # the one sync of the step
            lost = pool.heal(step)
        with clock.region("telemetry"):
            members = pool.environments
            bus.publish(*stages_changed(members, passed, step), *seeds_lost(members, lost, step, self._packages))

        with clock.region("govern"):
            decisions = pool.judge(self._opinions())
            self._stop_if_hopeless(decisions, step)
            rolled, pruned = pool.carry_out(decisions, step)
            bus.publish(*governor_acted(members, decisions, rolled), *stages_changed(members, pruned, step))
        signals_E = pool.latest
        with clock.region("policy"):
            rewards_E = [None] * len(signals_E) if self._score is None else self._score(signals_E, decisions)
        return StepResult(step, signals_E, rewards_E, decisions, rolled)

    def act(self, result: StepResult, actions_E: Sequence[Action]) -> None:
        """Carry out one action in each environment, and end the step."""
        step, members = result.step, self._pool.environments
        with self._clock.region("grow"):
            changes, unborn = self._pool.apply(actions_E, step)
        with self._clock.region("telemetry"):
            self._bus.publish(
                *stages_changed(members, changes, step),
                *seeds_lost(members, unborn, step, self._packages),
                *steps_finished(members, result.signals, result.rewards, actions_E, step),
            )
            self._bus.settle()

    def _opinions(self) -> dict[int, Verdict]:
        """Return the second opinion on each environment whose episode goes on, by its place."""
        latest = self._pool.latest
        return {
            one.place: self._check_health(HealthSnapshot(one.round, one.arm, one.seed, latest[one.place]))
            for one in self._pool.running()
        }

    def _stop_if_hopeless(self, decisions: Mapping[int, Decision], step: int) -> None:
        """Raise GovernorStop for the first environment that cannot be rolled back."""
        hopeless = {place: decision for place, decision in decisions.items() if decision.act is Act.STOP}
        for place, decision in hopeless.items():
            members, signals_E = self._pool.environments, self._pool.latest
            nothing = [None] * len(members), [WAIT] * len(members)
            self._bus.publish(*steps_finished(members, signals_E, *nothing, step))
            self._bus.publish(*governor_acted(members, hopeless, {}))
            self._bus.settle()
            where = f'arm "{members[place].arm}", seed {members[place].seed}, step {decision.step}'
            hint = "A smaller optimizer.host.learning_rate or a clip_norm may help."
            problem = Problem("E402", f"{where}: {decision.reason}", hint=None if decision.second_opinion else hint)
            raise GovernorStop(problem)
