"""Statistics of runs: means with intervals, and paired comparisons of arms.

Everything is a pure function of numbers. Arms share their seeds, so they are compared in pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from esper_core.leyline.constants import CONFIDENCE, EXACT_SIGN_FLIP_BELOW, MIN_SEEDS_FOR_VERDICT
from esper_run.formats import MAX_FIGURE as MAX_FIGURE, is_usable as is_usable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline.events import EpisodeFinished
    from esper_core.leyline.signals import Metric


Direction = Literal["up", "down"]
Verdict = Literal["better", "worse", "no difference shown"]
Why = Literal["too few seeds", "too few seeds for so many comparisons", "interval", "p"]
"""What a verdict lacks: seeds, an interval that clears 0, or a p that is small enough."""

_ROUNDING: Final = 1e-12
"""Sums of the same numbers in another order, and 1 − 0.95 and 0.05, differ by less."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its confidence interval. ``low`` and ``high`` are None for a single value."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """By how much a was better than b. Positive is better, whatever the metric's direction."""

    difference: float
    """Difference of the means."""
    low: float | None
    """Ends of its interval, by Student's t."""
    high: float | None
    n: int
    """Number of pairs."""
    p: float
    """Two-sided p of the sign-flip test or the paired t test."""
    p_holm: float
    """``p`` adjusted for all comparisons that are made together."""
    verdict: Verdict
    """Only given if n is large enough, the interval clears 0, and ``p_holm`` is small enough."""
    why: Why | None
    """What the verdict lacks."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one arm by environment seed."""

    name: str
    by_seed: Mapping[int, float]


# --- one sample


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE, *, share: bool = False) -> Interval:
    """Return the mean and its interval, by Student's t with n − 1 degrees of freedom.

    Formula: mean ± t · s / √n, s² = Σ (x − mean)² / (n − 1).

    Examples:
        >>> interval = mean_interval([1.0, 2.0, 3.0])
        >>> round(interval.low, 3), interval.mean, round(interval.high, 3)
        (-0.484, 2.0, 4.484)

        If the values are shares of a whole, the interval ends at 0 and 1, unless a value is beyond.
    """
    if not values or not all(map(is_usable, values)):
        msg = f"at least one value is needed, all finite. Received: {list(values)[:4]}"
        raise ValueError(msg)
    mean, deviation = moments(values)
    n = len(values)
    if deviation is None:
        return Interval(mean, None, None, n)
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    least, most = (0.0, 1.0) if share and min(values) >= 0.0 and max(values) <= 1.0 else (-math.inf, math.inf)
    return Interval(mean, max(least, mean - half), min(most, mean + half), n)


def moments(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard deviation; the latter is None for one value, and exactly 0 for equal values."""
    if len(set(values)) == 1:
        return float(values[0]), None if len(values) == 1 else 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


# --- pairs


def paired_comparison(a: Sequence[float], b: Sequence[float], *, direction: Direction) -> Comparison:
    """Compare the values of two arms, in the same order of seeds, as the only comparison of its study.

    >>> paired_comparison([.8] * 7 + [.9], [.6] * 8, direction="up").verdict
    'better'
    """
    differences = [x - y if direction == "up" else y - x for x, y in zip(a, b, strict=True)]
    interval, p = mean_interval(differences), paired_p(differences)
    return Comparison(interval.mean, interval.low, interval.high, interval.n, p, p, *decide(interval, p))


def paired_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of paired differences: exact below 20 pairs, else that of the t test."""
    return sign_flip_p(differences) if len(differences) < EXACT_SIGN_FLIP_BELOW else t_test_p(differences)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the p of the exact sign-flip test: the share of all 2ⁿ choices of signs with a sum at least this large.

    If a and b are interchangeable, each difference could as well have the other sign. The sums are built up one
    difference at a time; a choice of signs and its opposite have the same size, so half of them are enough.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    """
    sums = np.array([differences[0]])
    for difference in differences[1:]:
        sums = np.concatenate((sums - difference, sums + difference))
    observed = abs(math.fsum(differences))
    slack = _ROUNDING * math.fsum(abs(difference) for difference in differences)
    return float(np.mean(np.abs(sums) >= observed - slack))


def t_test_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of the paired t test. It needs two differences."""
    mean, deviation = moments(differences)
    if not deviation:
        return 0.0 if mean else 1.0
    return 2 * t_tail(abs(mean) / (deviation / math.sqrt(len(differences))), len(differences) - 1)


# --- verdicts


def decide(interval: Interval | Comparison, p: float, *, comparisons: int = 1) -> tuple[Verdict, Why | None]:
    """Return the verdict of a comparison, and the reason if no difference is shown.

    A difference is shown if the interval excludes 0 and ``p`` is small, already adjusted for all ``comparisons``.
    """
    if interval.n < MIN_SEEDS_FOR_VERDICT or interval.low is None or interval.high is None:
        return "no difference shown", "too few seeds"
    if not (interval.low > 0 or interval.high < 0):
        return "no difference shown", "interval"
    if p <= 1 - CONFIDENCE + _ROUNDING:
        return "better" if interval.low > 0 else "worse", None
    lacking = interval.n < seeds_needed(comparisons)
    return "no difference shown", "too few seeds for so many comparisons" if lacking else "p"


def seeds_needed(comparisons: int) -> int:
    """Return the smallest number of pairs with which one of so many comparisons can have a verdict.

    The exact test of n pairs gives 2 / 2ⁿ at the least, which Holm's adjustment multiplies by the comparisons.

    >>> seeds_needed(1), seeds_needed(6), seeds_needed(10)
    (8, 8, 9)
    """
    n = MIN_SEEDS_FOR_VERDICT
    while n < EXACT_SIGN_FLIP_BELOW and comparisons * 2 / 2**n > 1 - CONFIDENCE + _ROUNDING:
        n += 1
    return n


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for each other by Holm's method; they keep their order.

    Formula: the i-th of m sorted ones (from 1) becomes the largest of (m − j + 1) · p(j) for j up to i, and 1 at most.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for done, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - done) * ps[place]))
        adjusted[place] = largest
    return adjusted


def judge_together(comparisons: Sequence[Comparison | None]) -> list[Comparison | None]:
    """Return the comparisons of one study with adjusted p and verdict: any of them is wrong in 5 % of studies at most.

    A comparison that could not be made is None; it still counts for Holm's adjustment.
    """
    adjusted = holm([1.0 if comparison is None else comparison.p for comparison in comparisons])
    judged: list[Comparison | None] = []
    for comparison, p in zip(comparisons, adjusted, strict=True):
        if comparison is None:
            judged.append(None)
            continue
        verdict, why = decide(comparison, p, comparisons=len(comparisons))
        judged.append(replace(comparison, p_holm=p, verdict=verdict, why=why))
    return judged


# --- arms of a run


def results(metric: Metric, arms: Sequence[str], episodes: Sequence[EpisodeFinished]) -> dict[str, Any]:
    """Return the results of summary.json, which depend only on the seeds and the configuration.

    Every pair of arms is compared, including the twin, and all comparisons are judged together.
    """
    by_arm = {arm: sorted((e for e in episodes if e.arm == arm), key=lambda e: (e.round, e.seed)) for arm in arms}
    samples = [
        Sample(arm, {episode.seed: episode.test_metric for episode in arm_episodes})
        for arm, arm_episodes in by_arm.items()
    ]
    pairs = list(combinations(samples, 2))
    judged = judge_together([compare_paired(a, b, direction=metric.direction) for a, b in pairs])
    return {
        "metric": {"name": metric.name, "direction": metric.direction, "unit": metric.unit},
        "arms": {arm: _arm(arm_episodes, metric) for arm, arm_episodes in by_arm.items()},
        "comparisons": [as_record(a, b, comparison) for (a, b), comparison in zip(pairs, judged, strict=True)],
    }


def _arm(episodes: Sequence[EpisodeFinished], metric: Metric) -> dict[str, Any]:
    """Return the means of an arm."""
    interval = arm_interval(episodes, metric)
    return {
        "test": {"mean": interval.mean, "ci_low": interval.low, "ci_high": interval.high, "n": interval.n},
        "test_last": mean_known([episode.test_last for episode in episodes]),
        "params": fmean(episode.parameters for episode in episodes),
        "flops": mean_known([episode.flops for episode in episodes]),
        "fossils": fmean(episode.fossils for episode in episodes),
        "reward": mean_known([episode.reward for episode in episodes]),
        "conclusions": conclusions_of(episodes),
        "episodes": [
            {"seed": episode.seed, "test": episode.test_metric, "alone": episode.alone} for episode in episodes
        ],
    }


def arm_interval(episodes: Sequence[EpisodeFinished], metric: Metric) -> Interval:
    """Return the interval of the test metric; the mean is NaN if a value is not finite, as a perplexity can be."""
    values = [episode.test_metric for episode in episodes]
    if all(map(is_usable, values)):
        return mean_interval(values, share=metric.is_share)
    return Interval(math.nan, None, None, len(values))


def conclusions_of(episodes: Sequence[EpisodeFinished]) -> dict[str, int]:
    """Return what the policy of an arm concluded, and of how many networks."""
    return dict(Counter(episode.conclusion for episode in episodes if episode.conclusion))


def mean_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of what was measured in each episode of an arm; None if it is unknown for one of them."""
    measured = [value for value in values if value is not None]
    return fmean(measured) if len(measured) == len(values) else None


def compare_paired(a: Sample, b: Sample, *, direction: Direction) -> Comparison | None:
    """Compare two samples by the seeds that they share; None if a figure is not usable."""
    seeds = shared_seeds(a, b)
    values_a, values_b = ([sample.by_seed[seed] for seed in seeds] for sample in (a, b))
    if not seeds or not all(map(is_usable, values_a + values_b)):
        return None
    return paired_comparison(values_a, values_b, direction=direction)


def shared_seeds(a: Sample, b: Sample) -> list[int]:
    """Return the seeds by which samples are paired; none if they differ and too few are shared for a verdict."""
    shared = sorted(a.by_seed.keys() & b.by_seed.keys())
    return shared if len(shared) >= MIN_SEEDS_FOR_VERDICT or a.by_seed.keys() == b.by_seed.keys() else []


def as_record(a: Sample, b: Sample, comparison: Comparison | None) -> dict[str, Any]:
    """Return a comparison as summary.json has it; figures are None if it could not be made."""
    figures = {"verdict": "no difference shown", "why": "not finite"} if comparison is None else asdict(comparison)
    return {
        "a": a.name,
        "b": b.name,
        "difference": figures.get("difference"),
        "ci_low": figures.get("low"),
        "ci_high": figures.get("high"),
        "p": figures.get("p"),
        "p_holm": figures.get("p_holm"),
        "n": len(shared_seeds(a, b)),
        "verdict": figures["verdict"],
        "why": figures["why"],
    }


# --- Student's t, without scipy: the core stays light


def t_tail(t: float, degrees: float) -> float:
    """Return P(T > t) for t ≥ 0 and Student's T.

    Formula: ½ · I(d / (d + t²); d / 2, ½), d degrees of freedom.
    """
    square = t * t
    return 0.5 * regularised_beta(degrees / (degrees + square), square / (degrees + square), degrees / 2, 0.5)


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """Return the t below which Student's T stays with ``probability``, which is at least ½, by bisection.

    >>> round(t_quantile(0.975, 7), 6)
    2.364624
    """
    tail = 1 - probability
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_tail(middle, degrees) > tail else (low, middle)
    return high


def regularised_beta(x: float, complement: float, a: float, b: float) -> float:
    """Return I(x; a, b), the share of the beta function below x. complement: 1 − x, given for its precision.

    Formula: xᵃ (1 − x)ᵇ / (a B(a, b)) / (1 + d1 / (1 + d2 / (1 + …))), d(2m) = m (b − m) x / ((a + 2m − 1)(a + 2m)),
    d(2m + 1) = −(a + m)(a + b + m) x / ((a + 2m)(a + 2m + 1)), which converges fast for x < (a + 1) / (a + b + 2);
    beyond it I(x; a, b) = 1 − I(1 − x; b, a).
    """
    if x <= 0 or complement <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - regularised_beta(complement, x, b, a)
    fraction = 1.0
    for i in range(50 + 5 * math.isqrt(int(a + b)), 0, -1):  # as many terms as no further one changes
        m = i // 2
        factors = -(a + m) * (a + b + m) if i % 2 else m * (b - m)
        fraction = 1 + factors * x / ((a + i - 1) * (a + i)) / fraction
    log_front = a * math.log(x) + b * math.log(complement) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / (a * fraction)
