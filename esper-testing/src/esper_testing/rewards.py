"""Checks of rewards: purity, finite values and monotonicity.

Each check takes a function that builds the reward for a metric, and the metric.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import Metric, Signals
from esper_core.trainer import RunReward
from esper_testing.checks import applies_if, demand, demand_no_error
from esper_testing.reward_episodes import (
    HOST,
    LIVING,
    Moment,
    earned,
    extreme_episode,
    idle_episode,
    random_episode,
    slot_in,
)

if TYPE_CHECKING:
    from esper_core.leyline import Reward

Maker = Callable[..., Any]

METRICS: Final[Mapping[str, Metric]] = {"up": Metric("accuracy", "up", "%"), "down": Metric("error", "down")}
EPISODES: Final = 5


def is_pure(make: Maker, metric: Metric) -> None:
    """Check that equal arguments give equal rewards, and that the arguments are not modified."""
    reward = make(metric=metric)
    for moment in random_episode(metric, 0):
        kept = copy.deepcopy(moment)
        first, second = _terms(reward, moment), _terms(reward, moment)
        demand(first == second, f"step {moment.now.step} scores {first}, then {second}")
        demand(moment == kept, f"modifies the signals of step {moment.now.step}")


def terms_add_up(make: Maker, metric: Metric) -> None:
    """Check that terms have names and finite values, and that their sum is the total."""
    reward = RunReward(make(metric=metric), "the reward")  # with the checks that a run makes
    for seed in range(EPISODES):
        for moment in random_episode(metric, seed):
            breakdown = reward.score(*moment, f"for {moment.now}")
            total, expected = breakdown.total, math.fsum(breakdown.terms.values())
            adds_up = math.isclose(total, expected, rel_tol=1e-9, abs_tol=1e-9)
            demand(adds_up, f"the terms {breakdown.terms} add up to {expected:g}. Received: total {total:g}")


def stays_finite(make: Maker, metric: Metric) -> None:
    """Check that the reward is finite as long as the losses are; a gain may be missing or NaN."""
    reward = make(metric=metric)
    for seed in range(EPISODES):
        for moment in extreme_episode(metric, seed):
            total = reward.score(*moment).total
            demand(math.isfinite(total), f"the reward must be finite. Received: {total} for {moment.now}")


def carries_nothing_over(make: Maker, metric: Metric) -> None:
    """Check that rewards do not depend on earlier calls: on other episodes, or on the order of the steps."""
    used, later = make(metric=metric), random_episode(metric, 0)[1:]
    for seed in range(1, EPISODES):
        earned(used, random_episode(metric, seed))
    shuffled = list(range(len(later)))
    random.Random(0).shuffle(shuffled)
    after_others = {place: _terms(used, later[place]) for place in shuffled}
    fresh = make(metric=metric)
    for place, moment in enumerate(later):
        terms, usual = after_others[place], _terms(fresh, moment)
        demand(terms == usual, f"step {place} scores {usual}, but {terms} after other steps")


def takes_every_stage(make: Maker, metric: Metric) -> None:
    """Check that the reward accepts every stage that a seed can be in now and in the step before."""
    reward = make(metric=metric)
    (_, plain, *_) = random_episode(metric, 0)
    for stage in (None, *LIVING):
        for earlier in (None, *LIVING):
            now = _with_slot(plain.now, stage)
            before = _with_slot(plain.before or plain.now, earlier)
            with demand_no_error(f"where a seed is {stage} and was {earlier}"):
                reward.score(*plain._replace(now=now, before=before))


def better_never_pays_less(make: Maker, metric: Metric) -> None:
    """Check that a better metric, everything else equal, does not lower the reward."""
    reward = make(metric=metric)
    for moment in random_episode(metric, 0):
        value = moment.now.validation_metric
        for better_by in (1e-3, 0.05, 0.5):
            improved = value + better_by if metric.direction == "up" else value - better_by
            better = moment._replace(now=replace(moment.now, validation_metric=improved))
            why = f"for {metric.name} {improved:g}, which is better than {value:g}"
            _demand_no_less(reward, better, moment, why)


def lower_loss_never_pays_less(make: Maker, metric: Metric) -> None:
    """Check that a lower validation loss, everything else equal, does not lower the reward."""
    for moment in random_episode(metric, 0):
        loss = moment.now.validation_loss
        lower = moment._replace(now=replace(moment.now, validation_loss=loss - min(0.5, loss)))
        why = f"for a loss of {lower.now.validation_loss:g}, not {loss:g}"
        _demand_no_less(make(metric=metric), lower, moment, why)


def larger_never_pays_more(make: Maker, metric: Metric) -> None:
    """Check that a larger network, everything else equal, does not raise the reward."""
    for moment in random_episode(metric, 0):
        larger = moment._replace(now=replace(moment.now, parameters=moment.now.parameters + HOST))
        _demand_no_less(make(metric=metric), moment, larger, f"for {HOST} parameters less")


def nothing_grown_earns_nothing(make: Maker, metric: Metric) -> None:
    """Check that the reward is 0 while nothing has grown: what the host learns by itself is not rewarded."""
    reward = make(metric=metric)
    for moment in idle_episode(metric, 0):
        total = reward.score(*moment).total
        condition = "where nothing has grown and the network equals its twin"
        demand(not abs(total) > 1e-9, f"pays {total:g} {condition}. Received: {moment.now}")


def _has_potential(make: Maker, metric: Metric) -> bool:
    potential = getattr(make(metric=metric), "potential", None)
    return callable(potential) and list(signature(potential).parameters) == ["signals", "twin"]


@applies_if(_has_potential)
def its_potential_telescopes(make: Maker, metric: Metric) -> None:
    """Check that, with a ``potential(signals, twin)``, an episode's rewards add up to its final value."""
    reward: Any = make(metric=metric)
    for seed in range(EPISODES):
        episode = random_episode(metric, seed)
        final = reward.potential(episode[-1].now, episode[-1].twin)
        total, expected = earned(reward, episode), math.fsum(final.values() if isinstance(final, Mapping) else [final])
        telescopes = math.isclose(total, expected, rel_tol=1e-6, abs_tol=1e-6)
        demand(telescopes, f"an episode adds up to {total:g}, and the potential at its end is {expected:g}")


CHECKS: Final = (
    is_pure,
    terms_add_up,
    stays_finite,
    carries_nothing_over,
    takes_every_stage,
    better_never_pays_less,
    lower_loss_never_pays_less,
    larger_never_pays_more,
    nothing_grown_earns_nothing,
    its_potential_telescopes,
)


def _demand_no_less(reward: Reward, better: Moment, worse: Moment, why: str) -> None:
    high, low = reward.score(*better).total, reward.score(*worse).total
    if high < low - 1e-9:
        msg = f"pays {high:g} {why}, and {low:g} otherwise"
        raise AssertionError(msg)


def _terms(reward: Reward, moment: Moment) -> dict[str, float]:
    return dict(reward.score(*moment).terms)


def _with_slot(signals: Signals, stage: Any) -> Signals:
    slot = slot_in("slot-0", stage, fossils=1, draw=random.Random(0))
    return replace(signals, slots=(slot,), parameters=HOST + 240)
