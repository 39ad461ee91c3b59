"""Does a reward judge as it should? It is pure, finite, knows which way is better, and cannot be cheated by a script.

Each check takes what builds the reward for a metric, and the metric; AssertionError where a promise is broken.

A reward that is open to a cheat by nature may say so: ``exploitable`` maps the name of a check, such as
``hoarding_does_not_pay``, to the reason why. Then the check is skipped with that reason, as long as the cheat does pay.
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
from esper_testing import reward_scripts
from esper_testing.checks import NotApplicable
from esper_testing.reward_probes import SANE, probed
from esper_testing.reward_scripts import HOST, LIVING, Moment, extreme_episode, idle_episode, random_episode, slot_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Reward, RewardBreakdown, Signals

Maker = Callable[..., Any]

METRICS: Final[Mapping[str, Metric]] = {"up": Metric("accuracy", "up", "%"), "down": Metric("error", "down")}
EPISODES: Final = 5


def is_pure(make: Maker, metric: Metric) -> None:
    """The same step is worth the same when it is asked for twice, and what is handed in stays what it was."""
    reward = _made(make, metric)
    for moment in random_episode(metric, 0):
        kept = copy.deepcopy(moment)
        first, second = _terms(reward, moment), _terms(reward, moment)
        if first != second:
            msg = f"step {moment.now.step} is worth {first}, then {second}"
            raise AssertionError(msg)
        if moment != kept:
            msg = f"changes the signals of step {moment.now.step} that it is handed"
            raise AssertionError(msg)


def terms_add_up(make: Maker, metric: Metric) -> None:
    """The terms are named, finite numbers, and their sum is the total."""
    reward = _made(make, metric)
    for seed in range(EPISODES):
        for moment in random_episode(metric, seed):
            breakdown = _score(reward, moment)
            terms = dict(breakdown.terms)
            odd = {name: value for name, value in terms.items() if not _is_number(name, value)}
            if odd:
                msg = f"terms are finite numbers with names. Received: {odd} for {moment.now}"
                raise AssertionError(msg)
            if not math.isclose(breakdown.total, math.fsum(terms.values()), rel_tol=1e-9, abs_tol=1e-9):
                msg = f"the terms {terms} add up to {math.fsum(terms.values()):g}. Received: total {breakdown.total:g}"
                raise AssertionError(msg)


def stays_finite(make: Maker, metric: Metric) -> None:
    """Whatever is measured, as long as the losses are numbers, the step is worth a number; a gain may be none."""
    reward = _made(make, metric)
    for seed in range(EPISODES):
        for moment in extreme_episode(metric, seed):
            total = _score(reward, moment).total
            if not math.isfinite(total):
                msg = f"a step is worth a finite number. Received: {total} for {moment.now}"
                raise AssertionError(msg)


def carries_nothing_over(make: Maker, metric: Metric) -> None:
    """An episode is worth the same to a fresh reward and to one that has judged other episodes before."""
    fresh, used = _made(make, metric), _made(make, metric)
    for seed in range(1, EPISODES):
        _total(used, random_episode(metric, seed))
    episode = random_episode(metric, 0)
    _demand_same(_all_terms(used, episode), _all_terms(fresh, episode), "after other episodes")


def order_does_not_matter(make: Maker, metric: Metric) -> None:
    """The steps of an episode may be asked for in any order."""
    later = random_episode(metric, 0)[1:]
    shuffled = list(range(len(later)))
    random.Random(0).shuffle(shuffled)
    reward, in_order = _made(make, metric), _all_terms(_made(make, metric), later)
    out_of_order = {place: _terms(reward, later[place]) for place in shuffled}
    _demand_same([out_of_order[place] for place in range(len(later))], in_order, "in another order")


def takes_every_stage(make: Maker, metric: Metric) -> None:
    """Whatever stage a seed is in, or was in a step before, the step is worth something."""
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
    """Where nothing but the metric is better, the step is worth no less."""
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
    """Where nothing but the validation loss is lower, the step is worth no less."""
    for moment in random_episode(metric, 0):
        loss = moment.now.validation_loss
        lower = replace(moment, now=replace(moment.now, validation_loss=loss - min(0.5, loss)))
        _demand_no_less(
            _made(make, metric), lower, moment, f"for a loss of {lower.now.validation_loss:g}, not {loss:g}"
        )


def larger_never_pays_more(make: Maker, metric: Metric) -> None:
    """Where nothing but the network is larger, the step is worth no more."""
    for moment in random_episode(metric, 0):
        larger = replace(moment, now=replace(moment.now, parameters=moment.now.parameters + HOST))
        _demand_no_less(_made(make, metric), moment, larger, f"for {HOST} parameters less")


def nothing_grown_earns_nothing(make: Maker, metric: Metric) -> None:
    """What the host learns anyway is not paid for: as long as nothing has grown every step is worth 0."""
    reward = _made(make, metric)
    for moment in idle_episode(metric, 0):
        total = _score(reward, moment).total
        if abs(total) > 1e-9:
            msg = f"pays {total:g} where nothing grew and the network is its twin. Received: {moment.now}"
            raise AssertionError(msg)


def its_potential_telescopes(make: Maker, metric: Metric) -> None:
    """Where it has a ``potential(signals, twin)``, an episode adds up to its value at the end, whatever happened."""
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
    """Who germinates and prunes without end earns less than who grows one seed with care."""
    _demand_sane_wins(make, metric, churning_does_not_pay, "churner")


def hoarding_does_not_pay(make: Maker, metric: Metric) -> None:
    """Who keeps many seeds that do no more than one earns less than who keeps one."""
    _demand_sane_wins(make, metric, hoarding_does_not_pay, "hoarder")


def doing_nothing_does_not_pay(make: Maker, metric: Metric) -> None:
    """Who grows nothing earns less than who makes the metric better by 0.25 for an eighth more size."""
    _demand_sane_wins(make, metric, doing_nothing_does_not_pay, "never_acter")


def acting_at_the_last_moment_does_not_pay(make: Maker, metric: Metric) -> None:
    """Who keeps at the last step what brought nothing earns less than who grew a seed that did."""
    _demand_sane_wins(make, metric, acting_at_the_last_moment_does_not_pay, "last_moment_actor")


def abandoning_does_not_pay(make: Maker, metric: Metric) -> None:
    """Who plants in every slot and never looks again earns less than who keeps one good seed."""
    found = probed(make, metric)
    other, sane = found["germinate-and-abandon"], found[SANE]
    told = f"who germinates and abandons earns {other:g} over an episode, and who keeps one good seed {sane:g}"
    _demand(other < sane, told, _made(make, metric), abandoning_does_not_pay)


PROMISES: Final[tuple[Callable[[Maker, Metric], None], ...]] = (
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
            msg = f"step {step} is worth {usual}, but {when} {terms}"
            raise AssertionError(msg)


def _demand_sane_wins(make: Maker, metric: Metric, check: Callable[..., None], script: str) -> None:
    reward = _made(make, metric)
    sane = _total(reward, reward_scripts.sane(metric))
    other = _total(reward, getattr(reward_scripts, script)(metric))
    name = script.replace("_", "-")
    told = f"the {name} earns {other:g} over an episode, and who grows one good seed with care {sane:g}"
    _demand(other < sane, told, reward, check)


def _demand(sane_wins: bool, told: str, reward: Reward, check: Callable[..., None]) -> None:
    """AssertionError where a cheat wins, unless the reward says so itself; and where it says so, and none does."""
    admitted = getattr(reward, "exploitable", {}).get(check.__name__)
    if admitted is not None and sane_wins:
        msg = f"its exploitable names {check.__name__}, but {told}"
        raise AssertionError(msg)
    if admitted is not None:
        reason = f"exploitable, as it says itself: {admitted}"
        raise NotApplicable(reason)
    if not sane_wins:
        raise AssertionError(told)
