"""What would other seeds, or other luck, have shown? Paired differences drawn anew, and with their signs turned.

No distribution is assumed. The draws are the same each time: whoever computes a summary anew gets the same numbers.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from esper_core.runs.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES: Final = 10_000
"""Samples that a bootstrap interval is made of."""

BOOTSTRAP_UP_TO: Final = 400
"""Values up to which there is a bootstrap interval; with more, that of Student's t is no different."""

_SEED: Final = 20_130
"""Where the draws begin. Any number would do; it must stay the same."""

_DRAWS_AT_ONCE: Final = 1 << 20
"""Values that are held in memory at a time."""

_ROUNDING: Final = 1e-12
"""Relative difference below which two sums count as equal: the same flips added up in another order."""


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the exact sign-flip test: the share of all 2ⁿ choices of signs with a sum as large as this one.

    Under the hypothesis that a and b are interchangeable each difference could as well have had the other sign. The
    sums are built up one difference at a time; as a choice and its opposite have the same size, half of them do.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    """
    _check(differences)
    sums = np.array([differences[0]])
    for difference in differences[1:]:
        sums = np.concatenate((sums - difference, sums + difference))
    observed = abs(math.fsum(differences))
    slack = _ROUNDING * math.fsum(abs(difference) for difference in differences)
    return float(np.mean(np.abs(sums) >= observed - slack))


def bootstrap_interval(differences: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Where the true mean of ``differences`` lies, by the percentiles of the means of samples drawn from them.

    The percentiles are further out than ``confidence`` says, by as much as the spread of n values falls short of the
    truth, and as Student's t is wider than the normal distribution: as they stand, of 95 % intervals over 8 values
    less than 90 % hold the mean.

    Formula: the percentiles at Φ(−t √(n / (n − 1))) and one less it, t Student's with n − 1 degrees of freedom.
    None for one value, and for more than 400.

    >>> bootstrap_interval([1.0, 1.0, 1.0], 0.95)
    (1.0, 1.0)
    """
    _check(differences)
    n = len(differences)
    if n == 1 or n > BOOTSTRAP_UP_TO:
        return None
    if len(set(differences)) == 1:
        return float(differences[0]), float(differences[0])
    means = np.sort(_resampled_means(np.asarray(differences, dtype=np.float64)))
    outside = NormalDist().cdf(-t_quantile((1 + confidence) / 2, n - 1) * math.sqrt(n / (n - 1)))
    place = max(0, round(outside * (RESAMPLES + 1)) - 1)
    return float(means[place]), float(means[-1 - place])


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """The mean of each of the samples. RandomState's stream stays what it is in every version of numpy."""
    draw = np.random.RandomState(_SEED)
    chunk = max(1, _DRAWS_AT_ONCE // len(values))
    sizes = [min(chunk, RESAMPLES - done) for done in range(0, RESAMPLES, chunk)]
    return np.concatenate([values[draw.randint(0, len(values), (size, len(values)))].mean(axis=1) for size in sizes])


def _check(differences: Sequence[float]) -> None:
    if not differences or not all(map(math.isfinite, differences)):
        msg = f"differences have to be finite numbers, one at least. Received: {list(differences)[:4]}"
        raise ValueError(msg)
