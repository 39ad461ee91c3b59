"""Statistics for comparisons of runs that the core does not need, with scipy: Welch and Mann-Whitney.

scipy is imported when a function is called: it takes more than half a second.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from esper_core.leyline.constants import CONFIDENCE
from esper_run.runs.statistics import Comparison, Direction, Interval, check_numbers, moments

if TYPE_CHECKING:
    from collections.abc import Sequence


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p of the Mann-Whitney test: whether one sample tends to larger values than the other.

    It is exact without ties if one sample has at most 8 values, else that of the normal distribution, with corrections
    for ties and for continuity.

    >>> mann_whitney([3.0, 4.0, 5.0], [1.0, 2.0])
    0.2
    """
    from scipy import stats

    check_numbers(a)
    check_numbers(b)
    return 1.0 if len({*a, *b}) == 1 else float(stats.mannwhitneyu(a, b).pvalue)


def welch_interval(a: Sequence[float], b: Sequence[float], confidence: float) -> Interval:
    """Return the difference of two means and Welch's interval, for variances that need not be equal.

    Formula: mean(a) − mean(b) ± t · √(u + v), u = s²(a) / n(a), v = s²(b) / n(b), t Student's with
    (u + v)² / (u² / (n(a) − 1) + v² / (n(b) − 1)) degrees of freedom; n is the smaller sample's.
    """
    from scipy import stats

    check_numbers(a)
    check_numbers(b)
    (mean_a, spread_a), (mean_b, spread_b) = moments(a), moments(b)
    difference, n = mean_a - mean_b, min(len(a), len(b))
    if spread_a is None or spread_b is None:
        return Interval(difference, None, None, n)
    u, v = spread_a**2 / len(a), spread_b**2 / len(b)
    if u + v == 0:
        return Interval(difference, difference, difference, n)
    share = u / (u + v)
    degrees = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, degrees)) * math.sqrt(u + v)
    return Interval(difference, difference - half, difference + half, n)


def unpaired_comparison(a: Sequence[float], b: Sequence[float], *, direction: Direction) -> Comparison:
    """Compare two samples without pairs: Welch's interval, and p of the Mann-Whitney test.

    Variation between RNG seeds does not cancel out, so this needs many more of them than pairs do. Arguments are
    those of ``esper_run.runs.statistics.paired_comparison``. The effect size is in units of the root of the mean of
    both variances.
    """
    if direction == "down":
        a, b = [-value for value in a], [-value for value in b]
    interval = welch_interval(a, b, CONFIDENCE)
    (_, spread_a), (_, spread_b) = moments(a), moments(b)
    spread = None if spread_a is None or spread_b is None else math.sqrt((spread_a**2 + spread_b**2) / 2)
    return Comparison.of(interval, p=mann_whitney(a, b), spread=spread, paired=False)
