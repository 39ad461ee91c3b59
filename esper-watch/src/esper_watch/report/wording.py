"""How are the figures of a run told in words? In the metric's unit, with the interval, and no more than they show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from esper_watch.report.scale import LARGEST

Metric = Mapping[str, Any]

UNKNOWN = "unknown"
NO_DIFFERENCE = "no difference shown"

LONGEST = 1e12
"""Seconds, some 30,000 years: a time that says more is no time."""


def value(metric: Metric, number: float | None) -> str:
    """A figure in the metric's unit.

    >>> value({"unit": "%"}, 0.8197), value({}, 2.34567), value({}, None)
    ('82.0 %', '2.346', 'unknown')
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    return f"{100 * number:.1f} %" if metric.get("unit") == "%" else f"{number:.4g}"


def tick(metric: Metric, number: float) -> str:
    """A figure beside an axis, with no more digits than it has.

    >>> tick({"unit": "%"}, 0.8), tick({}, 2.5)
    ('80 %', '2.5')
    """
    return f"{100 * number:.4g} %" if metric.get("unit") == "%" else f"{number:.4g}"


def difference(metric: Metric, number: float | None, *, signed: bool = True) -> str:
    """A difference of figures: of percentages in points.

    >>> difference({"unit": "%"}, 0.059), difference({"unit": "%"}, -0.059, signed=False)
    ('+5.9 points', '5.9 points')
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    number = number if signed else abs(number)
    sign = "+" if signed else ""
    return f"{100 * number:{sign}.1f} points" if metric.get("unit") == "%" else f"{number:{sign}.4g}"


def interval(metric: Metric, low: float | None, high: float | None) -> str:
    """From where to where; ``unknown`` where one end is."""
    if low is None or high is None:
        return UNKNOWN
    return f"{value(metric, low)} to {value(metric, high)}"


def difference_interval(metric: Metric, low: float | None, high: float | None) -> str:
    """The same of a difference, with signs.

    >>> difference_interval({"unit": "%"}, 0.021, 0.098)
    '+2.1 to +9.8 points'
    """
    if low is None or high is None:
        return UNKNOWN
    return f"{difference(metric, low).removesuffix(' points')} to {difference(metric, high)}"


def probability(p: float | None) -> str:
    """A p as it is told: two digits of it."""
    if p is None:
        return UNKNOWN
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def count(number: int, one: str, more: str = "") -> str:
    """So many of something.

    >>> count(1, "seed"), count(1200, "seed"), count(0, "life", "lives")
    ('1 seed', '1,200 seeds', '0 lives')
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def plainly(name: str) -> str:
    """A component's name without its plugin's.

    >>> plainly("blueprints/conv_light")
    'conv_light'
    """
    return name.rpartition("/")[2]


def finite(told: Any) -> float | None:
    """What a file holds, where it is a number that can be reckoned with; None where it is not.

    >>> finite(3), finite("NaN"), finite(math.inf), finite(True)
    (3.0, None, None, None)
    """
    if not isinstance(told, int | float) or isinstance(told, bool) or not abs(told) < LARGEST:
        return None
    return float(told)


def seconds(spent: float) -> str:
    """A time as people say it.

    >>> seconds(0.032), seconds(56.7), seconds(3725), seconds(math.nan)
    ('0.032 s', '57 s', '1 h 2 min', 'unknown')
    """
    if not abs(spent) < LONGEST:
        return UNKNOWN
    if spent < 10:
        return f"{spent:.2g} s"
    if spent < 90:
        return f"{spent:.0f} s"
    minutes = round(spent / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
