"""Formatting for pages: that of ``esper_run.formats``, and names and texts as the views show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import plural as plural
from esper_run.config.values import cut as cut
from esper_run.formats import (
    format_difference as format_difference,
    format_difference_interval as format_difference_interval,
    format_flops as format_flops,
    format_interval as format_interval,
    format_number as format_number,
    format_p as format_p,
    format_percent as format_percent,
    format_rate as format_rate,
    format_seconds as format_seconds,
    format_start as format_start,
    format_value as format_value,
    is_usable,
    with_unit as with_unit,
)

if TYPE_CHECKING:
    from esper_core.leyline import Metric


def format_tick(metric: Metric, number: float) -> str:
    """Format a figure at an axis, without trailing zeros.

    >>> from esper_core.leyline import Metric
    >>> format_tick(Metric("accuracy", unit="%"), 0.8)
    '80\xa0%'
    """
    return with_unit(format_number(100 * number), "%") if metric.is_share else format_number(number)


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


def as_number(value: Any) -> float | None:
    """Return a value of a JSON file as a float, or None if it is not a usable number.

    >>> as_number(3), as_number("NaN"), as_number(float("inf")), as_number(True)
    (3.0, None, None, None)
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not is_usable(value):
        return None
    return float(value)
