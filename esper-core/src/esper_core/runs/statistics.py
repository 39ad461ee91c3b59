"""How sure can one be of a figure, and of a difference? Intervals and paired comparisons over environment seeds.

Everything here is a pure function of numbers, without scipy and without random numbers. Distributions are computed
from the regularised incomplete beta function, which the tests compare with scipy's to 1e-8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from esper_core.leyline.constants import EXACT_SIGN_FLIP_BELOW, MIN_SEEDS_FOR_VERDICT

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["better", "worse", "no difference shown"]

_ROUNDING = 1e-12
"""Relative difference below which two sums count as equal: the same flips added up in another order."""

_CONVERGED = 1e-15
"""Relative change of the continued fraction below which it is done."""

_TINY = 1e-300
"""Stands for 0 where Lentz's method would divide by it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where the true mean is likely to be. ``low`` and ``high`` are None where one value says nothing."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """By how much a was better than b, pair by pair; positive is better, whatever the metric's direction.

    p: how often chance alone would give a mean difference at least as large, in either direction.
    effect_size: mean difference in standard deviations of the differences; None where these do not vary.
    verdict: of a against b, told only where there are enough pairs and the interval clears the margin.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    n: int
    verdict: Verdict
    effect_size: float | None


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """The mean of ``values`` and its interval at level ``confidence``, by Student's t with n − 1 degrees of freedom.

    Formula: mean ± t · s / √n, s² = Σ (x − mean)² / (n − 1).

    >>> interval = mean_interval([1.0, 2.0, 3.0], 0.95)
    >>> round(interval.low, 3), interval.mean, round(interval.high, 3)
    (-0.484, 2.0, 4.484)
    """
    _check_level(confidence)
    _check_numbers(values)
    mean, deviation = _moments(values)
    n = len(values)
    if deviation is None:
        return Interval(mean, None, None, n)
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired_comparison(
    a: Sequence[float],
    b: Sequence[float],
    *,
    direction: Literal["up", "down"],
    margin: float,
    confidence: float,
) -> Comparison:
    """Compare ``a`` with ``b``, whose values belong together place by place: the same environment seed in two arms.

    direction: whether more or less is better. margin: difference below which both count as equal, in the metric's
    unit. confidence: level of the interval. p comes from the exact sign-flip test below 20 pairs, else from the t test.

    >>> paired_comparison([.8] * 7 + [.9], [.6] * 8, direction="up", margin=0.0, confidence=0.95).verdict
    'better'
    """
    if len(a) != len(b):
        msg = f"a paired comparison needs as many values of one as of the other. Received: {len(a)} and {len(b)}"
        raise ValueError(msg)
    if not (margin >= 0 and math.isfinite(margin)):
        msg = f"margin must be a number from 0. Received: {margin}"
        raise ValueError(msg)
    differences = [x - y if direction == "up" else y - x for x, y in zip(a, b, strict=True)]
    interval = mean_interval(differences, confidence)
    _, deviation = _moments(differences)
    exact = len(differences) < EXACT_SIGN_FLIP_BELOW
    return Comparison(
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        p=sign_flip_p(differences) if exact else t_test_p(differences),
        n=interval.n,
        verdict=_verdict(interval, margin),
        effect_size=interval.mean / deviation if deviation else None,
    )


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the exact sign-flip test: the share of all 2ⁿ choices of signs with a sum as large as this one.

    Under the hypothesis that a and b are interchangeable each difference could as well have had the other sign. The
    sums are built up one difference at a time; as a choice and its opposite have the same size, half of them do.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    """
    _check_numbers(differences)
    sums = np.array([differences[0]])
    for difference in differences[1:]:
        sums = np.concatenate((sums - difference, sums + difference))
    observed = abs(math.fsum(differences))
    slack = _ROUNDING * math.fsum(abs(difference) for difference in differences)
    return float(np.mean(np.abs(sums) >= observed - slack))


def t_test_p(differences: Sequence[float]) -> float:
    """Two-sided p of the paired t test. For at least two differences."""
    _check_numbers(differences, at_least=2)
    mean, deviation = _moments(differences)
    if not deviation:
        return 0.0 if mean else 1.0
    return 2 * t_tail(abs(mean) / (deviation / math.sqrt(len(differences))), len(differences) - 1)


def t_tail(t: float, degrees: int) -> float:
    """P(T > t) for t ≥ 0 and Student's T with ``degrees`` degrees of freedom.

    Formula: ½ · I(d / (d + t²); d / 2, ½), d degrees of freedom.
    """
    square = t * t
    return 0.5 * regularised_beta(degrees / (degrees + square), square / (degrees + square), degrees / 2, 0.5)


def t_quantile(probability: float, degrees: int) -> float:
    """The t that Student's T with ``degrees`` degrees of freedom stays below with ``probability`` (½ to 1, without 1).

    Found by halving an interval until no number lies between its ends.

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


def regularised_beta(x: float, rest: float, a: float, b: float) -> float:
    """I(x; a, b), the share of the beta function that lies below x; ``rest`` is 1 − x, given for its precision.

    Formula: xᵃ (1 − x)ᵇ / (a B(a, b)) times a continued fraction, which converges fast for x < (a + 1) / (a + b + 2);
    beyond it I(x; a, b) = 1 − I(1 − x; b, a).
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - regularised_beta(rest, x, b, a)
    log_front = a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + …))) by Lentz's method, with the coefficients of the incomplete beta function.

    Formula: d(2m) = m (b − m) x / ((a + 2m − 1)(a + 2m)), d(2m + 1) = −(a + m)(a + b + m) x / ((a + 2m)(a + 2m + 1)).
    """
    value, numerator, denominator = _TINY, _TINY, 0.0
    for i in range(10_000):
        m = i // 2
        if i == 0:
            coefficient = 1.0
        elif i % 2 == 0:
            coefficient = m * (b - m) * x / ((a + i - 1) * (a + i))
        else:
            coefficient = -(a + m) * (a + b + m) * x / ((a + i - 1) * (a + i))
        denominator = 1 / ((1 + coefficient * denominator) or _TINY)
        numerator = (1 + coefficient / numerator) or _TINY
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < _CONVERGED:
            return value
    msg = f"the incomplete beta function did not converge. Received: x={x}, a={a}, b={b}"
    raise ArithmeticError(msg)


def _verdict(interval: Interval, margin: float) -> Verdict:
    if interval.n < MIN_SEEDS_FOR_VERDICT or interval.low is None or interval.high is None:
        return "no difference shown"
    if interval.low > margin:
        return "better"
    return "worse" if interval.high < -margin else "no difference shown"


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; the latter is None for a single value, and 0 where all values are the same."""
    if len(set(values)) == 1:
        return float(values[0]), None if len(values) == 1 else 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _check_level(confidence: float) -> None:
    if not 0 < confidence < 1:
        msg = f"confidence must lie between 0 and 1. Received: {confidence}"
        raise ValueError(msg)


def _check_numbers(values: Sequence[float], *, at_least: int = 1) -> None:
    if len(values) < at_least:
        msg = f"at least {at_least} value(s) are needed. Received: {len(values)}"
        raise ValueError(msg)
    if strange := [value for value in values if not math.isfinite(value)]:
        msg = f"every value must be a finite number. Received: {strange[0]} ({len(strange)} such of {len(values)})"
        raise ValueError(msg)
