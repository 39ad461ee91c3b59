"""Checks of rewards: purity, finite values, monotonicity, and no pay for known exploits.

Each check takes what builds the reward for a metric, and the metric. A reward that is exploitable by design may
declare so: ``exploitable`` maps the name of a check, such as ``hoarding_does_not_pay``, to the reason. Then the check
is skipped with that reason, and fails if the exploit does not pay.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import Metric
from esper_testing.checks import NotApplicable
from esper_testing.reward_episodes import (
    HOST,
    LIVING,
    PROBES,
    SANE,
    Moment,
    earned,
    extreme_episode,
    idle_episode,
    play,
    random_episode,
    slot_in,
)
from esper_testing.reward_scripts import scripted_episode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Reward, RewardBreakdown, Signals

Maker = Callable[..., Any]

METRICS: Final[Mapping[str, Metric]] = {"up": Metric("accuracy", "up", "%"), "down": Metric("error", "down")}
EPISODES: Final = 5


def is_pure(make: Maker, metric: Metric) -> None:
    """Equal arguments give equal rewards, and the arguments are not modified."""
    reward = _made(make, metric)
    for moment in random_episode(metric, 0):
        kept = copy.deepcopy(moment)
        first, second = _terms(reward, moment), _terms(reward, moment)
        if first != second:
            msg = f"step {moment.now.step} scores {first}, then {second}"
            raise AssertionError(msg)
        if moment != kept:
            msg = f"modifies the signals of step {moment.now.step}"
            raise AssertionError(msg)


def terms_add_up(make: Maker, metric: Metric) -> None:
    """Terms have names and finite values, and their sum is the total."""
    reward = _made(make, metric)
    for seed in range(EPISODES):
        for moment in random_episode(metric, seed):
            breakdown = _score(reward, moment)
            terms = dict(breakdown.terms)
            odd = {name: value for name, value in terms.items() if not _is_number(name, value)}
            if odd:
                msg = f"terms must be finite numbers with names. Received: {odd} for {moment.now}"
                raise AssertionError(msg)
            if not math.isclose(breakdown.total, math.fsum(terms.values()), rel_tol=1e-9, abs_tol=1e-9):
                msg = f"the terms {terms} add up to {math.fsum(terms.values()):g}. Received: total {breakdown.total:g}"
                raise AssertionError(msg)


def stays_finite(make: Maker, metric: Metric) -> None:
    """The reward is finite as long as the losses are; a gain may be missing or NaN."""
    reward = _made(make, metric)
    for seed in range(EPISODES):
        for moment in extreme_episode(metric, seed):
            total = _score(reward, moment).total
            if not math.isfinite(total):
                msg = f"the reward must be finite. Received: {total} for {moment.now}"
                raise AssertionError(msg)


def carries_nothing_over(make: Maker, metric: Metric) -> None:
    """Earlier episodes do not change the rewards of an episode."""
    fresh, used = _made(make, metric), _made(make, metric)
    for seed in range(1, EPISODES):
        _total(used, random_episode(metric, seed))
    episode = random_episode(metric, 0)
    _demand_same(_all_terms(used, episode), _all_terms(fresh, episode), "after other episodes")


def order_does_not_matter(make: Maker, metric: Metric) -> None:
    """The rewards do not depend on the order of the calls."""
    later = random_episode(metric, 0)[1:]
    shuffled = list(range(len(later)))
    random.Random(0).shuffle(shuffled)
    reward, in_order = _made(make, metric), _all_terms(_made(make, metric), later)
    out_of_order = {place: _terms(reward, later[place]) for place in shuffled}
    _demand_same([out_of_order[place] for place in range(len(later))], in_order, "in another order")


def takes_every_stage(make: Maker, metric: Metric) -> None:
    """It accepts every stage that a seed can be in now and can have been in a step before."""
    reward = _made(make, metric)
    (_, plain, *_) = random_episode(metric, 0)
    for stage in (None, *LIVING):
        for earlier in (None, *LIVING):
            now = _with_slot(plain.now, stage)
            before = _with_slot(plain.before or plain.now, earlier)
            try:
                _score(reward, replace(plain, now=now, before=before))
            except Exception as error:
                msg = f"raised {type(error).__name__} where a seed is {stage} and was {earlier}: {error}"
                raise AssertionError(msg) from error


def better_never_pays_less(make: Maker, metric: Metric) -> None:
    """A better metric, everything else equal, does not lower the reward."""
    reward = _made(make, metric)
    for moment in random_episode(metric, 0):
        value = moment.now.validation_metric
        for better_by in (1e-3, 0.05, 0.5):
            improved = value + better_by if metric.direction == "up" else value - better_by
            better = replace(moment, now=replace(moment.now, validation_metric=improved))
            low, high = _score(reward, moment).total, _score(reward, better).total
            if high < low - 1e-9:
                msg = f"pays {low:g} for {metric.name} {value:g}, but {high:g} for {improved:g}, which is better"
                raise AssertionError(msg)


def lower_loss_never_pays_less(make: Maker, metric: Metric) -> None:
    """A lower validation loss, everything else equal, does not lower the reward."""
    for moment in random_episode(metric, 0):
        loss = moment.now.validation_loss
        lower = replace(moment, now=replace(moment.now, validation_loss=loss - min(0.5, loss)))
        _demand_no_less(
            _made(make, metric), lower, moment, f"for a loss of {lower.now.validation_loss:g}, not {loss:g}"
        )


def larger_never_pays_more(make: Maker, metric: Metric) -> None:
    """A larger network, everything else equal, does not raise the reward."""
    for moment in random_episode(metric, 0):
        larger = replace(moment, now=replace(moment.now, parameters=moment.now.parameters + HOST))
        _demand_no_less(_made(make, metric), moment, larger, f"for {HOST} parameters less")


def nothing_grown_earns_nothing(make: Maker, metric: Metric) -> None:
    """The reward is 0 as long as nothing has grown: what the host learns by itself is not rewarded."""
    reward = _made(make, metric)
    for moment in idle_episode(metric, 0):
        total = _score(reward, moment).total
        if abs(total) > 1e-9:
            msg = f"pays {total:g} where nothing has grown and the network equals its twin. Received: {moment.now}"
            raise AssertionError(msg)


def its_potential_telescopes(make: Maker, metric: Metric) -> None:
    """If it has a ``potential(signals, twin)``, the rewards of an episode add up to its final value."""
    reward = _made(make, metric)
    potential = getattr(reward, "potential", None)
    if not callable(potential) or list(signature(potential).parameters) != ["signals", "twin"]:
        reason = "it has no potential(signals, twin)"
        raise NotApplicable(reason)
    for seed in range(EPISODES):
        episode = random_episode(metric, seed)
        told = potential(episode[-1].now, episode[-1].twin)
        parts = list(told.values()) if isinstance(told, Mapping) else [told]
        total, wanted = _total(reward, episode), math.fsum(parts)
        if not math.isclose(total, wanted, rel_tol=1e-6, abs_tol=1e-6):
            msg = f"an episode adds up to {total:g}, and the potential at its end is {wanted:g}"
            raise AssertionError(msg)


def churning_does_not_pay(make: Maker, metric: Metric) -> None:
    """Germinating and pruning again and again earns less than growing one useful seed."""
    _demand_sane_wins(make, metric, churning_does_not_pay, "churner")


def hoarding_does_not_pay(make: Maker, metric: Metric) -> None:
    """Fossilising many redundant seeds earns less than growing one useful seed."""
    _demand_sane_wins(make, metric, hoarding_does_not_pay, "hoarder")


def doing_nothing_does_not_pay(make: Maker, metric: Metric) -> None:
    """Growing nothing earns less than growing one useful seed."""
    _demand_sane_wins(make, metric, doing_nothing_does_not_pay, "never-act")


def acting_at_the_last_moment_does_not_pay(make: Maker, metric: Metric) -> None:
    """Fossilising a half-trained seed in the last step earns less than growing one useful seed."""
    _demand_sane_wins(make, metric, acting_at_the_last_moment_does_not_pay, "last-moment")


def abandoning_does_not_pay(make: Maker, metric: Metric) -> None:
    """Germinating in every slot and abandoning the seeds earns less than growing one useful seed."""
    probe = "germinate-and-abandon"
    exploit, sane = (earned(_made(make, metric), play(metric, PROBES[name].moves)) for name in (probe, SANE))
    _demand(exploit, sane, _made(make, metric), abandoning_does_not_pay, probe)


CHECKS: Final[tuple[Callable[[Maker, Metric], None], ...]] = (
    is_pure,
    terms_add_up,
    stays_finite,
    carries_nothing_over,
    order_does_not_matter,
    takes_every_stage,
    better_never_pays_less,
    lower_loss_never_pays_less,
    larger_never_pays_more,
    nothing_grown_earns_nothing,
    its_potential_telescopes,
    churning_does_not_pay,
    hoarding_does_not_pay,
    doing_nothing_does_not_pay,
    acting_at_the_last_moment_does_not_pay,
    abandoning_does_not_pay,
)


def _made(make: Maker, metric: Metric) -> Reward:
    reward: Reward = make(metric=metric)
    return reward


def _score(reward: Reward, moment: Moment) -> RewardBreakdown:
    return reward.score(moment.now, moment.before, moment.twin, moment.twin_before)


def _demand_no_less(reward: Reward, better: Moment, worse: Moment, why: str) -> None:
    high, low = _score(reward, better).total, _score(reward, worse).total
    if high < low - 1e-9:
        msg = f"pays {high:g} {why}, and {low:g} otherwise"
        raise AssertionError(msg)


def _terms(reward: Reward, moment: Moment) -> dict[str, float]:
    return dict(_score(reward, moment).terms)


def _all_terms(reward: Reward, episode: Sequence[Moment]) -> list[dict[str, float]]:
    return [_terms(reward, moment) for moment in episode]


def _total(reward: Reward, episode: Sequence[Moment]) -> float:
    return math.fsum(_score(reward, moment).total for moment in episode)


def _is_number(name: object, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(name, str) and bool(name) and number and math.isfinite(float(value))  # type: ignore[arg-type]


def _with_slot(signals: Signals, stage: Any) -> Signals:
    slot = slot_in("slot-0", stage, fossils=1, draw=random.Random(0))
    return replace(signals, slots=(slot,), parameters=HOST + 240)


def _demand_same(received: Sequence[Any], wanted: Sequence[Any], when: str) -> None:
    for step, (terms, usual) in enumerate(zip(received, wanted, strict=True)):
        if terms != usual:
            msg = f"step {step} scores {usual}, but {terms} {when}"
            raise AssertionError(msg)


def _demand_sane_wins(make: Maker, metric: Metric, check: Callable[..., None], probe: str) -> None:
    """Compare what a scripted exploit earns with the sane script; a reward may declare that it is exploitable."""
    exploit, sane = (_total(_made(make, metric), scripted_episode(metric, name)) for name in (probe, SANE))
    _demand(exploit, sane, _made(make, metric), check, probe)


def _demand(exploit: float, sane: float, reward: Reward, check: Callable[..., None], probe: str) -> None:
    sane_wins = exploit < sane
    returns = f"the probe {probe} earns {exploit:g} per episode, the sane one {sane:g}"
    declared = getattr(reward, "exploitable", {}).get(check.__name__)
    if declared is not None and sane_wins:
        msg = f"exploitable names {check.__name__}, but {returns}"
        raise AssertionError(msg)
    if declared is not None:
        reason = f"declared as exploitable: {declared}"
        raise NotApplicable(reason)
    if not sane_wins:
        raise AssertionError(returns)
