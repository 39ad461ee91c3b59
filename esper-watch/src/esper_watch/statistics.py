"""Statistics for comparisons of runs that the core does not need, with scipy: Welch, Mann-Whitney and the bootstrap.

scipy is imported when a function is called: it takes more than half a second.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from esper_core.leyline.constants import CONFIDENCE
from esper_run.runs.statistics import Comparison, Direction, Interval, check_numbers, moments

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES: Final = 10_000

MAX_BOOTSTRAP: Final = 400
"""Values up to which there is a bootstrap interval; with more, that of Student's t is no different."""

_SEED: Final = 20_130
"""Seed of the bootstrap's draws: the same numbers give the same interval."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """The Mann-Whitney test of two samples."""

    u: float
    """Pairs of one value of each sample in which a is ahead; a tie counts half."""
    p: float
    """Two-sided."""
    cliffs_delta: float
    """Share of pairs in which a is ahead less the share in which b is, from −1 to 1."""


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> RankTest:
    """Test whether one sample tends to larger values than the other.

    p is exact without ties if one sample has at most 8 values, else that of the normal distribution, with corrections
    for ties and for continuity.

    >>> mann_whitney([3.0, 4.0, 5.0], [1.0, 2.0])
    RankTest(u=6.0, p=0.2, cliffs_delta=1.0)
    """
    from scipy import stats

    check_numbers(a)
    check_numbers(b)
    test = stats.mannwhitneyu(a, b)
    u = float(test.statistic)
    p = 1.0 if len({*a, *b}) == 1 else float(test.pvalue)
    return RankTest(u, p, 2 * u / (len(a) * len(b)) - 1)


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


def bootstrap_interval(differences: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return a bootstrap interval for the mean of ``differences``, by percentiles.

    A small sample underestimates the spread, so the percentiles are taken further out, at
    Φ(−t √(n / (n − 1))) with Student's t of n − 1 degrees of freedom. None for one value, and for very many.

    >>> bootstrap_interval([1.0, 1.0, 1.0], 0.95)
    (1.0, 1.0)
    """
    from scipy import stats

    check_numbers(differences)
    n = len(differences)
    if n == 1 or n > MAX_BOOTSTRAP:
        return None
    if len(set(differences)) == 1:
        return float(differences[0]), float(differences[0])
    t = stats.t.ppf((1 + confidence) / 2, n - 1)
    level = 1 - 2 * float(stats.norm.cdf(-t * math.sqrt(n / (n - 1))))
    interval = stats.bootstrap(
        (np.asarray(differences, dtype=np.float64),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def unpaired_comparison(a: Sequence[float], b: Sequence[float], *, direction: Direction, margin: float) -> Comparison:
    """Compare two samples without pairs: Welch's interval, and p of the Mann-Whitney test.

    Variation between RNG seeds does not cancel out, so this needs many more of them than pairs do. Arguments are
    those of ``esper_run.runs.statistics.paired_comparison``. The effect size is in units of the root of the mean of
    both variances.
    """
    if direction == "down":
        a, b = [-value for value in a], [-value for value in b]
    interval = welch_interval(a, b, CONFIDENCE)
    p = p_margin = mann_whitney(a, b).p
    if margin:
        shift = math.copysign(margin, interval.mean)
        p_margin = 1.0 if abs(interval.mean) <= margin else mann_whitney([value - shift for value in a], b).p
    (_, spread_a), (_, spread_b) = moments(a), moments(b)
    spread = None if spread_a is None or spread_b is None else math.sqrt((spread_a**2 + spread_b**2) / 2)
    return Comparison.of(interval, p=p, p_margin=p_margin, spread=spread, margin=margin, paired=False)
