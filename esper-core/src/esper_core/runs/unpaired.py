"""How do two arms compare that share no seeds? By Welch's interval for their means, and by the Mann-Whitney test.

What makes a seed easy or hard stays in the difference here: it takes many more seeds than a comparison of pairs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from esper_core.runs.ranks import mann_whitney
from esper_core.runs.statistics import (
    Comparison,
    Direction,
    Interval,
    better_is_more,
    check_level,
    check_margin,
    check_numbers,
    decided,
    moments,
)
from esper_core.runs.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence


def unpaired_comparison(
    a: Sequence[float], b: Sequence[float], *, direction: Direction, margin: float, confidence: float
) -> Comparison:
    """Compare ``a`` with ``b``, of which no value belongs to one of the other; arguments as ``paired_comparison``.

    p is that of the Mann-Whitney test, the interval Welch's, and the effect size is in units of the root of the mean
    of both variances.

    >>> found = unpaired_comparison([3.0, 4.0, 5.0], [1.0, 2.0, 1.5], direction="up", margin=0.0, confidence=0.95)
    >>> found.difference, found.p, found.why
    (2.5, 0.1, 'too few seeds')
    """
    check_level(confidence)
    check_margin(margin)
    check_numbers(a)
    check_numbers(b)
    up_a, up_b = better_is_more(a, b, direction)
    interval = welch_interval(up_a, up_b, confidence)
    ranks = mann_whitney(up_a, up_b)
    p_margin = 1.0 if margin and abs(interval.mean) <= margin else ranks.p
    if margin and p_margin < 1:
        shift = math.copysign(margin, interval.mean)
        p_margin = mann_whitney([value - shift for value in up_a], up_b).p
    verdict, why = decided(interval, p_margin, margin=margin, confidence=confidence)
    spread = _pooled(up_a, up_b)
    return Comparison(
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        p=ranks.p,
        n=interval.n,
        verdict=verdict,
        effect_size=interval.mean / spread if spread else None,
        p_margin=p_margin,
        p_holm=p_margin,
        why=why,
        ranks=ranks,
        paired=False,
    )


def welch_interval(a: Sequence[float], b: Sequence[float], confidence: float) -> Interval:
    """The difference of two means and its interval, for variances that need not be equal; n is the fewer of both.

    Formula: mean(a) − mean(b) ± t · √(u + v), u = s²(a) / n(a), v = s²(b) / n(b), t Student's with
    (u + v)² / (u² / (n(a) − 1) + v² / (n(b) − 1)) degrees of freedom.
    """
    (mean_a, spread_a), (mean_b, spread_b) = moments(a), moments(b)
    n = min(len(a), len(b))
    difference = mean_a - mean_b
    if spread_a is None or spread_b is None:
        return Interval(difference, None, None, n)
    u, v = spread_a**2 / len(a), spread_b**2 / len(b)
    if u + v == 0:
        return Interval(difference, difference, difference, n)
    share = u / (u + v)
    degrees = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    half = t_quantile((1 + confidence) / 2, degrees) * math.sqrt(u + v)
    return Interval(difference, difference - half, difference + half, n)


def _pooled(a: Sequence[float], b: Sequence[float]) -> float | None:
    (_, spread_a), (_, spread_b) = moments(a), moments(b)
    if spread_a is None or spread_b is None:
        return None
    return math.sqrt((spread_a**2 + spread_b**2) / 2)
