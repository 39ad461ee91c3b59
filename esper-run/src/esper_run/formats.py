"""Formatting of figures, the same in the terminal, on pages, in notebooks and in the documentation.

Three digits, percentages with one decimal, a true minus, and no-break spaces between a number and its unit. ``plain``
makes of them what any terminal can show.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline.signals import Metric, Reason

UNKNOWN: Final = "unknown"

MINUS: Final = "\N{MINUS SIGN}"
NO_BREAK: Final = "\N{NO-BREAK SPACE}"

MAX_SECONDS: Final = 1e12
"""Some 30,000 years. A larger number is not a duration."""

MAX_FIGURE: Final = 1e150
"""Squares of larger numbers overflow, so they have no standard deviation and no interval."""

STAGE_WORDS: Final = {stage: "kept" if stage is Stage.FOSSILISED else stage.value for stage in Stage}
"""How a reader is told of the stage of a seed."""

_HYPHEN: Final = re.compile(r"(?<![\w-])-(?=\d)")
"""A hyphen that stands for a minus."""

_PREFIXES: Final = ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"))


def is_usable(number: float) -> bool:
    """Return whether a number is finite, and so is its square.

    >>> is_usable(0.82), is_usable(1e200), is_usable(float("nan"))
    (True, False, False)
    """
    return abs(number) < MAX_FIGURE


def metric_of(results: Mapping[str, Any]) -> Metric:
    """Return the name, direction and unit of the metric in a summary's results."""
    metric = results["metric"]
    from esper_core.leyline.signals import Metric  # here, since commands that only list need none

    return Metric(metric["name"], metric.get("direction", "up"), metric.get("unit", ""))


def plain(text: str) -> str:
    """Return a text with ordinary spaces, as a terminal shows it: what is copied from there can be searched for.

    >>> plain(format_percent(0.817))
    '81.7 %'
    """
    return text.replace(NO_BREAK, " ")


def with_unit(number: str, unit: str) -> str:
    """Return a number and its unit, which stay in one line."""
    return f"{number}{NO_BREAK}{unit}"


def format_number(number: float | None, *, signed: bool = False, decimals: int | None = None) -> str:
    """Format a number with three digits, or with so many decimals.

    >>> format_number(2.34567), format_number(1234.5), format_number(-0.00263), format_number(-0.0, signed=True)
    ('2.35', '1,234', '−0.00263', '+0')
    >>> format_number(0.1, decimals=4), format_number(-0.00004, signed=True, decimals=3), format_number(None)
    ('0.1000', '+0.000', 'unknown')
    """
    if number is None or not is_usable(number):
        return UNKNOWN
    sign = "+" if signed else ""
    if decimals is not None:
        return f"{number:{sign}z,.{decimals}f}".replace("-", MINUS)
    if 999.5 <= abs(number) < 1e15:
        return f"{number:{sign},.0f}".replace("-", MINUS)
    return f"{number + 0.0:{sign}.3g}".replace("-", MINUS)


def decimals_of(error: float) -> int:
    """Return the decimals with which a measurement and its standard error are shown: three, more for a small error.

    >>> decimals_of(0.0123), decimals_of(0.00002), decimals_of(0.0)
    (3, 5, 3)
    """
    return min(6, max(3, math.ceil(-math.log10(error)))) if 0 < error < MAX_FIGURE else 3


def format_percent(share: float | None, decimals: int = 1, *, signed: bool = False) -> str:
    """Format a share of a whole in percent.

    >>> format_percent(0.8197), format_percent(0.48, 0)
    ('82.0\\xa0%', '48\\xa0%')
    """
    number = None if share is None else 100 * share
    text = format_number(number, decimals=decimals, signed=signed)
    return text if text == UNKNOWN else with_unit(text, "%")


def format_value(metric: Metric, number: float | None) -> str:
    """Format a figure in the metric's unit.

    >>> from esper_core.leyline import Metric
    >>> format_value(Metric("accuracy", unit="%"), 0.8197), format_value(Metric("loss"), 2.34567)
    ('82.0\\xa0%', '2.35')
    """
    return format_percent(number) if metric.is_share else format_number(number)


def format_difference(metric: Metric, number: float | None, *, signed: bool = True) -> str:
    """Format a difference of two figures; percentages differ by points.

    >>> from esper_core.leyline import Metric
    >>> format_difference(Metric("accuracy", unit="%"), 0.059), format_difference(Metric("loss"), -0.00263)
    ('+5.9\\xa0points', '−0.00263')
    """
    if number is None or not is_usable(number):
        return UNKNOWN
    number = number if signed else abs(number)
    if not metric.is_share:
        return format_number(number, signed=signed)
    return with_unit(format_number(100 * number, signed=signed, decimals=1), "points")


def format_interval(metric: Metric, low: float | None, high: float | None) -> str:
    """Format an interval, or ``unknown`` if an end is missing."""
    if low is None or high is None:
        return UNKNOWN
    return f"{format_value(metric, low)} to {format_value(metric, high)}"


def format_difference_interval(metric: Metric, low: float | None, high: float | None) -> str:
    """Format the interval of a difference.

    >>> from esper_core.leyline import Metric
    >>> format_difference_interval(Metric("accuracy", unit="%"), -0.021, 0.098)
    '−2.1 to +9.8\\xa0points'
    """
    if low is None or high is None:
        return UNKNOWN
    return f"{format_difference(metric, low).partition(NO_BREAK)[0]} to {format_difference(metric, high)}"


def format_p(p: float | None) -> str:
    """Format a p-value with two digits.

    >>> format_p(0.0078125), format_p(1e-9), format_p(None)
    ('0.0078', 'below 0.0001', 'unknown')
    """
    if p is None or not 0 <= p <= 1:
        return UNKNOWN
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def format_flops(operations: float | None) -> str:
    """Format a number of floating-point operations with three digits.

    >>> format_flops(1.9432e12), format_flops(3.5e10), format_flops(5120.0), format_flops(12.0), format_flops(None)
    ('1.94\\xa0T', '35.0\\xa0G', '5.12\\xa0k', '12', 'unknown')
    """
    if operations is None:
        return UNKNOWN
    size, prefix = next(((10**power, letter) for power, letter in _PREFIXES if operations >= 10**power), (1, ""))
    if not prefix:
        return f"{operations:.3g}"
    return with_unit(f"{operations / size:#.3g}".rstrip("."), prefix)


def format_seconds(seconds: float | None) -> str:
    """Format a duration in its two largest units.

    >>> format_seconds(0.032), format_seconds(56.7), format_seconds(116), format_seconds(7322.0), format_seconds(240)
    ('0.032\xa0s', '57\xa0s', '1\xa0min 56\xa0s', '2\xa0h 2\xa0min', '4\xa0min')
    """
    if seconds is None or not abs(seconds) < MAX_SECONDS:
        return UNKNOWN
    if seconds < 10:
        return with_unit(f"{seconds:.2g}".replace("-", MINUS), "s")
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (0 if hours else remainder, "s")]
    return " ".join(with_unit(f"{count:,}", unit) for count, unit in parts if count)


def format_start(started: Any) -> str:
    """Return when a run started, as its manifest says, for readers anywhere.

    >>> format_start("2026-11-28T21:05:16+01:00"), format_start(None)
    ('2026-11-28 20:05 UTC', 'unknown')
    """
    try:
        return f"{datetime.fromisoformat(started).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, TypeError, ValueError):
        return UNKNOWN


def format_reason(reason: Reason) -> str:
    """Say why a seed changed its stage, with what its gate saw.

    >>> from esper_core.leyline import Cause, Reason
    >>> format_reason(Reason(Cause.ROLLBACK, "a loss of -0.1"))
    'rolled back: a loss of −0.1'
    """
    return _HYPHEN.sub(MINUS, str(reason))


def format_rate(steps: float) -> str:
    """Format how many steps of networks a run makes in a second.

    >>> format_rate(3.456), format_rate(1234.5)
    ('3.46\\xa0steps/s', '1,234\\xa0steps/s')
    """
    return with_unit(format_number(steps), "steps/s")
