"""Figures of arms, and what their comparison shows, in words: for the end of a run and for ``esper runs``."""

from __future__ import annotations

import math
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from esper_core.cli.rendering import aligned, print_line, print_table, print_wrapped, visible
from esper_core.leyline.columns import columns
from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_results(results: Mapping[str, Any]) -> None:
    """Print the arms as a table, then what their comparison shows: one in words, several as a table that fits."""
    metric, comparisons = results["metric"], results["comparisons"]
    print_arms(metric, results["arms"])
    if len(comparisons) == 1:
        print_wrapped(sentence(metric, comparisons[0]))
    elif comparisons:
        print_line()
        _print_comparisons(metric, comparisons)
    for line in remarks(comparisons):
        print_wrapped(line)


def _print_comparisons(metric: Mapping[str, Any], comparisons: Sequence[Mapping[str, Any]]) -> None:
    head = ["", "against", "by", "95 % interval", "n", "p", "Holm", ""]
    rows = [_row(metric, comparison) for comparison in comparisons]
    if fits(head, rows):
        print_table(head, rows)
        return
    for comparison in comparisons:
        print_wrapped(sentence(metric, comparison))


def print_arms(metric: Mapping[str, Any], arms: Mapping[str, Any]) -> None:
    """Print a table of the arms with their intervals."""
    rows = [
        [
            name,
            value(metric, arm["test"]["mean"]),
            told_interval(metric, arm["test"]["ci_low"], arm["test"]["ci_high"]),
            str(arm["test"]["n"]),
            f"{arm['params']:,.0f}",
            "unknown" if arm.get("reward") is None else f"{arm['reward']:+.1f}",
        ]
        for name, arm in arms.items()
    ]
    less = ", less is better" if metric.get("direction") == "down" else ""
    head = ["arm", f"test {metric['name']}{less}", "95 % interval", "n", "parameters", "reward"]
    if fits(head, rows):
        print_table(head, rows)
        return
    for name, *cells in rows:
        print_line(visible(name))
        for line in aligned([("", title, cell) for title, cell in zip(head[1:], cells, strict=True)]):
            print_line(visible(line))


def fits(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table finds room on the terminal, without a cell that is cut off. Elsewhere there is always room."""
    if not sys.stdout.isatty():
        return True
    widths = [max(columns(visible(cell)) for cell in column) for column in zip(head, *rows, strict=True)]
    return sum(widths) + 2 * len(widths) <= get_terminal_size().columns


def sentence(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """What a comparison shows, in words; p is the one that the verdict goes by."""
    a, b, verdict = comparison["a"], comparison["b"], comparison["verdict"]
    size = "a figure is not finite"
    if comparison["difference"] is not None:
        size = difference(metric, comparison["difference"])
    if comparison["ci_low"] is not None:
        p = comparison["p"] if comparison.get("p_holm") is None else comparison["p_holm"]
        adjusted = p not in (comparison["p"], comparison.get("p_margin"))
        name = "Holm's p" if adjusted else "p"
        size += f" (95 % interval {_ends(metric, comparison)}, n = {comparison['n']}, {name} = {probability(p)})"
    if verdict == "no difference shown":
        return f"{a} against {b}: no difference shown; {size}"
    return f"{a} is {verdict} than {b} by {size}"


def remarks(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is to be known about all comparisons together: why none of them could have a verdict."""
    from esper_core.leyline.constants import CONFIDENCE
    from esper_core.runs.statistics import seeds_needed

    lacks = [comparison.get("why") for comparison in comparisons]
    if lacks and set(lacks) == {"too few seeds"}:
        return [f"A verdict takes {MIN_SEEDS_FOR_VERDICT} environment seeds; there are {comparisons[0]['n']}."]
    if "too few seeds for so many comparisons" in lacks:
        return [
            f"Of {len(lacks)} comparisons a verdict takes {seeds_needed(len(lacks), CONFIDENCE)} environment seeds."
        ]
    return []


def value(metric: Mapping[str, Any], number: float | None) -> str:
    """A figure in the metric's unit."""
    if number is None or not math.isfinite(number):
        return "unknown"
    return f"{100 * number:.1f} %" if metric.get("unit") == "%" else f"{number:.4g}"


def difference(metric: Mapping[str, Any], number: float) -> str:
    """A difference of figures: of percentages in points."""
    return f"{100 * number:+.1f} points" if metric.get("unit") == "%" else f"{number:+.4g}"


def largest(timing: Mapping[str, float]) -> str:
    """Where most of the time went."""
    regions = sorted(((seconds, name) for name, seconds in timing.items() if name != "total"), reverse=True)
    total = timing["total"] or 1.0
    return ", ".join(f"{name} {100 * seconds / total:.0f} %" for seconds, name in regions[:3])


def told_interval(metric: Mapping[str, Any], low: float | None, high: float | None) -> str:
    """An interval in the metric's unit."""
    return "unknown" if low is None or high is None else f"{value(metric, low)} to {value(metric, high)}"


def told_difference(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """By how much a is better than b."""
    return "unknown" if comparison["difference"] is None else difference(metric, comparison["difference"])


def told_range(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """The interval of the difference."""
    return "unknown" if comparison["ci_low"] is None else _ends(metric, comparison)


def _row(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> list[str]:
    return [
        comparison["a"],
        comparison["b"],
        told_difference(metric, comparison),
        told_range(metric, comparison),
        str(comparison["n"]),
        probability(comparison["p"]),
        probability(comparison.get("p_holm")),
        comparison["verdict"],
    ]


def _ends(metric: Mapping[str, Any], comparison: Mapping[str, Any], low: str = "ci_low", high: str = "ci_high") -> str:
    ends = (difference(metric, comparison[end]).removesuffix(" points") for end in (low, high))
    return " to ".join(ends)


def probability(p: float | None) -> str:
    """A p as it is told: two digits of it.

    >>> probability(0.0078125), probability(1e-9), probability(None)
    ('0.0078', 'below 0.0001', 'unknown')
    """
    if p is None:
        return "unknown"
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def duration(seconds: float | None) -> str:
    """Seconds as they are told.

    >>> duration(2.67), duration(431.0), duration(7322.0), duration(None)
    ('3 s', '7 min 11 s', '2 h 2 min', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
