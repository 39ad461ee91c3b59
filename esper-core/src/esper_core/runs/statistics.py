"""How sure can one be of a figure, and of a difference? Intervals and comparisons over environment seeds.

Everything here is a pure function of numbers, without scipy. What several comparisons of one study mean together is
told by ``multiplicity``; two samples that are no pairs by ``unpaired``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from esper_core.leyline.constants import EXACT_SIGN_FLIP_BELOW, MIN_SEEDS_FOR_VERDICT
from esper_core.runs.ranks import RankTest, mann_whitney
from esper_core.runs.resampling import bootstrap_interval, sign_flip_p
from esper_core.runs.student import t_quantile, t_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST: Final = 1e150
"""Where the squares of numbers end."""

Direction = Literal["up", "down"]
Verdict = Literal["better", "worse", "no difference shown"]
Why = Literal["too few seeds", "too few seeds for so many comparisons", "interval", "p"]
"""What a verdict lacks: seeds; an interval that clears the margin; a p that is small enough."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where the true mean is likely to be. ``low`` and ``high`` are None where one value says nothing."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """By how much a was better than b; positive is better, whatever the metric's direction.

    difference: of the means, with its interval ``low`` to ``high``: Student's t of the pairs, or Welch's without pairs.
    p: how often chance alone would give a difference at least as large, in either direction: sign flips or t test of
    the pairs, Mann-Whitney without. p_margin: the same against a difference that is no larger than the margin.
    n: pairs; or values of the arm that has fewer.
    effect_size: the difference in standard deviations: of the differences, or of the values where there are no pairs;
    None where these do not vary.
    boot_low, boot_high: a bootstrap interval of the same level; None where there are no pairs, few, or very many.
    ranks: who is ahead of whom, the seeds set aside.
    p_holm: p_margin adjusted for all comparisons that were made together; alone, it is p_margin.
    verdict: of a against b, told only where n is large enough, the interval clears the margin and p_holm is small
    enough; ``why``: what it lacks.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    n: int
    verdict: Verdict
    effect_size: float | None
    p_margin: float
    p_holm: float
    why: Why | None
    ranks: RankTest
    boot_low: float | None = None
    boot_high: float | None = None
    paired: bool = True


def mean_interval(values: Sequence[float], confidence: float, *, share: bool = False) -> Interval:
    """The mean of ``values`` and its interval at level ``confidence``, by Student's t with n − 1 degrees of freedom.

    Formula: mean ± t · s / √n, s² = Σ (x − mean)² / (n − 1). share: whether these are shares of a whole: the interval
    then ends at 0 and 1, since what is beyond cannot be the true mean; where a value is beyond, they are none.

    >>> interval = mean_interval([1.0, 2.0, 3.0], 0.95)
    >>> round(interval.low, 3), interval.mean, round(interval.high, 3)
    (-0.484, 2.0, 4.484)
    """
    check_level(confidence)
    check_numbers(values)
    mean, deviation = moments(values)
    n = len(values)
    if deviation is None:
        return Interval(mean, None, None, n)
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    least, most = (0.0, 1.0) if share and min(values) >= 0.0 and max(values) <= 1.0 else (-math.inf, math.inf)
    return Interval(mean, max(least, mean - half), min(most, mean + half), n)


def paired_comparison(
    a: Sequence[float],
    b: Sequence[float],
    *,
    direction: Direction,
    margin: float,
    confidence: float,
) -> Comparison:
    """Compare ``a`` with ``b``, whose values belong together place by place: the same environment seed in two arms.

    direction: whether more or less is better. margin: difference below which both count as equal, in the metric's
    unit. confidence: level of the interval. p comes from the exact sign-flip test below 20 pairs, else from the t test.
    The verdict is that of a study that makes no other comparison.

    >>> paired_comparison([.8] * 7 + [.9], [.6] * 8, direction="up", margin=0.0, confidence=0.95).verdict
    'better'
    """
    if len(a) != len(b):
        msg = f"a paired comparison needs as many values of one as of the other. Received: {len(a)} and {len(b)}"
        raise ValueError(msg)
    check_margin(margin)
    differences = [x - y if direction == "up" else y - x for x, y in zip(a, b, strict=True)]
    interval = mean_interval(differences, confidence)
    _, deviation = moments(differences)
    p = paired_p(differences)
    p_margin = p if margin == 0 else _beyond(differences, interval.mean, margin)
    verdict, why = decided(interval, p_margin, margin=margin, confidence=confidence)
    enough = interval.n >= MIN_SEEDS_FOR_VERDICT  # the means of a few values never reach as far as they should
    boot = (bootstrap_interval(differences, confidence) if enough else None) or (None, None)
    return Comparison(
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        p=p,
        n=interval.n,
        verdict=verdict,
        effect_size=interval.mean / deviation if deviation else None,
        p_margin=p_margin,
        p_holm=p_margin,
        why=why,
        ranks=mann_whitney(*better_is_more(a, b, direction)),
        boot_low=boot[0],
        boot_high=boot[1],
    )


def decided(
    interval: Interval, p: float, *, margin: float, confidence: float, comparisons: int = 1
) -> tuple[Verdict, Why | None]:
    """The verdict that ``interval`` and ``p`` carry, and what it lacks where no difference is shown.

    p: against a difference within the margin, adjusted for the ``comparisons`` that were made.
    """
    if interval.n < MIN_SEEDS_FOR_VERDICT or interval.low is None or interval.high is None:
        return "no difference shown", "too few seeds"
    verdict: Verdict = "better" if interval.low > margin else "worse"
    if not (interval.low > margin or interval.high < -margin):
        return "no difference shown", "interval"
    if p <= 1 - confidence + _LEVEL_ROUNDING:
        return verdict, None
    lacking = interval.n < seeds_needed(comparisons, confidence)
    return "no difference shown", "too few seeds for so many comparisons" if lacking else "p"


def seeds_needed(comparisons: int, confidence: float) -> int:
    """Pairs below which no verdict can be had of any of that many comparisons, however large the differences are.

    Of n pairs the exact test gives 2 / 2ⁿ at the least, and Holm's adjustment multiplies the least by how many there
    are.

    >>> seeds_needed(1, 0.95), seeds_needed(6, 0.95), seeds_needed(10, 0.95)
    (8, 8, 9)
    """
    n = MIN_SEEDS_FOR_VERDICT
    while n < EXACT_SIGN_FLIP_BELOW and comparisons * 2 / 2**n > 1 - confidence + _LEVEL_ROUNDING:
        n += 1
    return n


_LEVEL_ROUNDING = 1e-12
"""1 − 0.95 is not 0.05 in binary; a p that is 0.05 counts as no larger."""


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of paired differences: exact below 20 pairs, else that of the t test."""
    return sign_flip_p(differences) if len(differences) < EXACT_SIGN_FLIP_BELOW else t_test_p(differences)


def t_test_p(differences: Sequence[float]) -> float:
    """Two-sided p of the paired t test. For at least two differences."""
    check_numbers(differences, at_least=2)
    mean, deviation = moments(differences)
    if not deviation:
        return 0.0 if mean else 1.0
    return 2 * t_tail(abs(mean) / (deviation / math.sqrt(len(differences))), len(differences) - 1)


def better_is_more(
    a: Sequence[float], b: Sequence[float], direction: Direction
) -> tuple[Sequence[float], Sequence[float]]:
    """Both samples, turned round where less is better."""
    return (a, b) if direction == "up" else ([-value for value in a], [-value for value in b])


def moments(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; the latter is None for a single value, and 0 where all values are the same."""
    if len(set(values)) == 1:
        return float(values[0]), None if len(values) == 1 else 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _beyond(differences: Sequence[float], mean: float, margin: float) -> float:
    """p of what is left of the differences when the margin is taken off; 1 where their mean lies within it."""
    if abs(mean) <= margin:
        return 1.0
    return paired_p([difference - math.copysign(margin, mean) for difference in differences])


def check_level(confidence: float) -> None:
    """ValueError where ``confidence`` is no level of an interval."""
    if not 0 < confidence < 1:
        msg = f"confidence must lie between 0 and 1. Received: {confidence}"
        raise ValueError(msg)


def check_margin(margin: float) -> None:
    """ValueError where ``margin`` is none."""
    if not (margin >= 0 and math.isfinite(margin)):
        msg = f"margin must be a number from 0. Received: {margin}"
        raise ValueError(msg)


def can_be_reckoned_with(value: float) -> bool:
    """Whether a figure is a number whose square is one, too: nothing is shown by means of larger ones.

    >>> can_be_reckoned_with(0.82), can_be_reckoned_with(1e200), can_be_reckoned_with(math.nan)
    (True, False, False)
    """
    return abs(value) < LARGEST


def check_numbers(values: Sequence[float], *, at_least: int = 1) -> None:
    """ValueError where there are too few values, or some are not finite, or as good as infinite."""
    if len(values) < at_least:
        msg = f"at least {at_least} value(s) are needed. Received: {len(values)}"
        raise ValueError(msg)
    if strange := [value for value in values if not can_be_reckoned_with(value)]:
        msg = f"every value must be a finite number. Received: {strange[0]} ({len(strange)} such of {len(values)})"
        raise ValueError(msg)
