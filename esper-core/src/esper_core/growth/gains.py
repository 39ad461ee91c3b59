"""Gains: what the losses of the same examples with and without a seed show, and bounds on the gain that lasts.

The error of a mean has two parts. One is that of the examples; they are the same at each look, so that further looks do
not lessen it. The other is that weights move from step to step, and the gain with them; it lessens with further looks,
slowly where averages of weights overlap from look to look. docs/concepts/gates.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import torch

from esper_core.leyline.signals import Evidence, Gain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_BISECTIONS: Final = 60
"""Halvings that a float can resolve."""

NUMBERS: Final = 6
"""How many numbers ``paired`` returns."""


def paired(host: Tensor, trial: Tensor) -> Tensor:
    """Return the statistics of the differences host − trial, on the device in float64.

    Both are (n,): losses in nats, or scores of which a lower one is better. Six numbers: n, mean, variance with n − 1,
    third central moment with n, smallest, largest. A loss that is not finite shows in the mean, and with fewer than two
    examples the variance is NaN.
    """
    if host.shape != trial.shape or host.dim() != 1 or len(host) == 0:
        shapes = f"{tuple(host.shape)} and {tuple(trial.shape)}"
        msg = f"host and trial need one number each for every example, and at least one. Received: {shapes}"
        raise ValueError(msg)
    # In float64, because differences of nearly equal losses have few digits left.
    difference_N = host.detach().double() - trial.detach().double()
    n = torch.full((), float(len(difference_N)), dtype=torch.float64, device=difference_N.device)
    mean = difference_N.mean()
    centred_N = difference_N - mean
    variance = centred_N.square().sum() / (n - 1)
    return torch.stack([n, mean, variance, centred_N.pow(3).mean(), difference_N.min(), difference_N.max()])


def read_gain(numbers: Sequence[float]) -> Gain:
    """Return the Gain that the six numbers of ``paired`` describe; its skewness is 0 if all differences are equal."""
    n, mean, variance, third, worst, best = numbers
    deviation = math.sqrt(variance) if variance >= 0 else math.nan
    spread = deviation * math.sqrt((n - 1) / n)
    skewness = third / spread**3 if spread**3 > 0 else 0.0
    return Gain(int(n), mean, deviation, skewness, worst, best)


def lower_bound(gain: Gain, alpha: float) -> float:
    """Return what the true mean gain exceeds with probability 1 − ``alpha``; for alpha up to ½.

    Formula: m' − 3 s x / (1 + r + r²), with x = z(1 − alpha) / √n − γ / 6n, r³ = 1 + γ x, γ = min(skewness, 0) and s
    the deviation: Hall's bound, which is m' − s z / √n for γ = 0. It corrects the t statistic for a tail of examples
    that got far worse. A tail of those that got better may not raise it, and r is −½ at least, below which the bound
    would rise again as the tail grows. m' is the mean if one more example were as bad as the worst:
    (n · mean + worst) / (n + 1), for the tail that the sample has not shown.

    >>> round(lower_bound(Gain(800, 0.10, 0.5, skewness=0.0, worst=-1.5, best=1.5), 0.05), 4)
    0.0689
    """
    n, skewness = gain.n, min(gain.skewness, 0.0)
    mean = gain.mean + (gain.worst - gain.mean) / (n + 1)
    x = NormalDist().inv_cdf(1 - alpha) / math.sqrt(n) - skewness / (6 * n)
    root = max(math.cbrt(1 + skewness * x), -0.5)
    return mean - 3 * gain.deviation * x / (1 + root + root * root)


def upper_bound(gain: Gain, alpha: float) -> float:
    """Return what the true mean gain stays below with probability 1 − ``alpha``."""
    mirrored = Gain(gain.n, -gain.mean, gain.deviation, -gain.skewness, -gain.best, -gain.worst)
    return -lower_bound(mirrored, alpha)


def compare_losses(host: Tensor, trial: Tensor, alpha: float) -> Evidence:
    """Return what losses of the same examples show of the mean gain host − trial at one look, examples alone.

    Each bound is wrong with probability ``alpha``. How the gain moves from step to step is not in them.
    """
    gain = read_gain(paired(host, trial).tolist())
    lower, upper = lower_bound(gain, alpha), upper_bound(gain, alpha)
    return Evidence(gain.n, gain.mean, gain.standard_error, 0.0, lower, upper, alpha, 1)


def lasting_mean(means: Sequence[float], correlations: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a gain over several looks, and its standard error from step to step.

    What a step's weights add to the gain is taken as a stationary process of first order: at each look it is what it
    was at the look before, times a known correlation, and something new of its own. Weighted least squares on

        (mean now − correlation · mean before) / √(1 − correlation²)

    gives the mean with the smallest error. Two looks that correlate by 0.9 count little more than one. Needs two looks;
    the first correlation is not used.

    >>> lasting_mean([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    (2.0, 0.5773502691896257)
    """
    values, weights = [means[0]], [1.0]
    for before, now, correlation in zip(means, means[1:], correlations[1:], strict=False):
        new = math.sqrt(1 - correlation * correlation)
        values.append((now - correlation * before) / new)
        weights.append((1 - correlation) / new)
    information = math.fsum(weight * weight for weight in weights)
    mean = math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / information
    residual = math.fsum((value - mean * weight) ** 2 for value, weight in zip(values, weights, strict=True))
    return mean, math.sqrt(residual / (len(means) - 1) / information)


def lasting_evidence(
    gain: Gain, means: Sequence[float], correlations: Sequence[float], alpha: float, look: int
) -> Evidence:
    """Return what several looks show of the gain that lasts; each bound is wrong with probability ``alpha``.

    ``gain`` is that of the latest look, whose ``means`` come last. The distance of a bound from the mean is
    √(examples² + steps²): the first is that of ``lower_bound``, the second a quantile of Student's t times the
    standard error from step to step (the method of variance estimates recovery).
    """
    mean, between = lasting_mean(means, correlations)
    here = replace(gain, mean=mean, worst=mean + gain.worst - gain.mean, best=mean + gain.best - gain.mean)
    steps = students_quantile(alpha, len(means) - 1) * between
    lower = mean - math.hypot(mean - lower_bound(here, alpha), steps)
    upper = mean + math.hypot(upper_bound(here, alpha) - mean, steps)
    return Evidence(gain.n, mean, gain.standard_error, between, lower, upper, alpha, look)


@cache
def students_quantile(alpha: float, freedom: int) -> float:
    """Return what Student's t with so many degrees of freedom exceeds with probability ``alpha``, at most ½.

    Exact for one and two degrees; otherwise found by bisection on the distribution function, which for whole degrees
    of freedom is a finite sum.

    >>> round(students_quantile(0.025, 2), 3), round(students_quantile(0.025, 12), 3)
    (4.303, 2.179)
    """
    low, high = 0.0, 1.0
    while students_tail(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if students_tail(middle, freedom) > alpha else (low, middle)
    return high


def students_tail(value: float, freedom: int) -> float:
    """Return the probability that Student's t exceeds a ``value`` ≥ 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    cosine2 = freedom / (freedom + value * value)
    sine = value / math.sqrt(freedom + value * value)
    term, total = 1.0, 1.0 if freedom > 1 else 0.0
    for k in range(2 + freedom % 2, freedom - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    if freedom % 2:
        angle = math.atan(value / math.sqrt(freedom))
        inside = 2 / math.pi * (angle + sine * math.sqrt(cosine2) * total)
    else:
        inside = sine * total
    return (1 - inside) / 2
