"""Formatting of figures: in the metric's unit, with intervals, and with a few significant digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import plural  # noqa: F401  used by the templates
from esper_watch.history import is_usable

if TYPE_CHECKING:
    from esper_core.leyline import Metric

UNKNOWN: Final = "unknown"

MAX_SECONDS: Final = 1e12
"""Some 30,000 years. A larger number is not a duration."""


def format_value(metric: Metric, number: float | None) -> str:
    """Format a figure in the metric's unit.

    >>> from esper_core.leyline import Metric
    >>> format_value(Metric("accuracy", unit="%"), 0.8197), format_value(Metric("loss"), 2.34567)
    ('82.0 %', '2.346')
    """
    if number is None or not is_usable(number):
        return UNKNOWN
    return f"{100 * number:.1f} %" if metric.is_share else f"{number:.4g}"


def format_tick(metric: Metric, number: float) -> str:
    """Format a figure at an axis, without trailing zeros.

    >>> from esper_core.leyline import Metric
    >>> format_tick(Metric("accuracy", unit="%"), 0.8)
    '80 %'
    """
    return f"{100 * number:.4g} %" if metric.is_share else f"{number:.4g}"


def format_difference(metric: Metric, number: float | None, *, signed: bool = True) -> str:
    """Format a difference of two figures; percentages differ by points.

    >>> from esper_core.leyline import Metric
    >>> format_difference(Metric("accuracy", unit="%"), 0.059)
    '+5.9 points'
    """
    if number is None or not is_usable(number):
        return UNKNOWN
    number = number if signed else abs(number)
    sign = "+" if signed else ""
    return f"{100 * number:{sign}.1f} points" if metric.is_share else f"{number:{sign}.4g}"


def format_interval(metric: Metric, low: float | None, high: float | None) -> str:
    """Format an interval, or ``unknown`` if an end is missing."""
    if low is None or high is None:
        return UNKNOWN
    return f"{format_value(metric, low)} to {format_value(metric, high)}"


def format_difference_interval(metric: Metric, low: float | None, high: float | None) -> str:
    """Format the interval of a difference.

    >>> from esper_core.leyline import Metric
    >>> format_difference_interval(Metric("accuracy", unit="%"), 0.021, 0.098)
    '+2.1 to +9.8 points'
    """
    if low is None or high is None:
        return UNKNOWN
    return f"{format_difference(metric, low).removesuffix(' points')} to {format_difference(metric, high)}"


def format_p(p: float | None) -> str:
    """Format a p-value with two digits.

    >>> format_p(0.0078125), format_p(1e-9), format_p(None)
    ('0.0078', 'below 0.0001', 'unknown')
    """
    if p is None or not 0 <= p <= 1:
        return UNKNOWN
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def format_command(argv: Any) -> str:
    """Format the command of a manifest. Loops other than that of ``esper run`` were started by ``python``.

    >>> format_command(["/usr/bin/esper", "run", "plugins.yaml"]), format_command(["python", "train.py"])
    ('esper run plugins.yaml', 'python train.py')
    """
    if not isinstance(argv, list) or not argv:
        return ""
    return " ".join([argv[0] if argv[0] == "python" else "esper", *map(str, argv[1:])])


def short_name(name: str) -> str:
    """Return a component's name without its plugin.

    >>> short_name("blueprints/conv_light")
    'conv_light'
    """
    return name.rpartition("/")[2]


def shorten(text: str, letters: int) -> str:
    """Cut a text that is longer than ``letters``.

    >>> shorten("a very long name", 8)
    'a very …'
    """
    return text if len(text) <= letters else text[: letters - 1] + "…"


def as_number(value: Any) -> float | None:
    """Return a value of a JSON file as a float, or None if it is not a usable number.

    >>> as_number(3), as_number("NaN"), as_number(float("inf")), as_number(True)
    (3.0, None, None, None)
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not is_usable(value):
        return None
    return float(value)


def format_seconds(seconds: float) -> str:
    """Format a duration.

    >>> format_seconds(0.032), format_seconds(56.7), format_seconds(3725), format_seconds(float("nan"))
    ('0.032 s', '57 s', '1 h 2 min', 'unknown')
    """
    if not abs(seconds) < MAX_SECONDS:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
