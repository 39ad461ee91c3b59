"""How is Student's t distributed? Its tail and its quantiles, from the regularised incomplete beta function.

Pure functions of numbers, without scipy; the tests compare them with scipy's to 1e-8. Degrees of freedom need not be
whole: those of Welch's interval are not.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

_CONVERGED: Final = 1e-15
"""Relative change of the continued fraction below which it is done."""

_TINY: Final = 1e-300
"""Stands for 0 where Lentz's method would divide by it."""


def t_tail(t: float, degrees: float) -> float:
    """P(T > t) for t ≥ 0 and Student's T with ``degrees`` degrees of freedom.

    Formula: ½ · I(d / (d + t²); d / 2, ½), d degrees of freedom.
    """
    square = t * t
    return 0.5 * regularised_beta(degrees / (degrees + square), square / (degrees + square), degrees / 2, 0.5)


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """The t that Student's T with ``degrees`` degrees of freedom stays below with ``probability`` (½ to 1, without 1).

    Found by halving an interval until no number lies between its ends. A study asks for the same ones over and over.

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
