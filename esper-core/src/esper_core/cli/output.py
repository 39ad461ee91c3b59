"""Output of the command line: lines, tables, problems and JSON, and the results of a run.

A table is ruled on a terminal and plain aligned lines elsewhere. Names and messages come from other people's packages:
control characters in them are escaped before they are printed.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import click

from esper_core.leyline.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

    from esper_core.app.compose import Composition
    from esper_core.app.run import Outcome
    from esper_core.leyline.errors import Problem

_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line ends. It is not printable, so no printed text has one of its own."""

_WARNING: Final = click.style("warning:", fg="yellow", bold=True)


# --- lines


def wants_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours, and ``NO_COLOR`` is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def encodable(text: str, stream: TextIO) -> str:
    """Return ``text`` with what the stream cannot encode escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_line(text: str = "", *, stream: TextIO | None = None) -> None:
    """Print one line on stdout, or on ``stream``. What the stream cannot encode is escaped."""
    stream = sys.stdout if stream is None else stream
    click.echo(encodable(text, stream), file=stream, color=wants_colour(stream))


def print_wrapped(text: str, *, under: int | None = None) -> None:
    """Print a sentence on stdout, on a terminal wrapped between words; ``n = 8`` and ``95 %`` stay together.

    Args:
        text: The sentence.
        under: The column in which further lines begin; by default two behind the first.
    """
    shown = printable(text)
    if not sys.stdout.isatty():
        print_line(shown)
        return
    indent = " " * (len(shown) - len(shown.lstrip()) + 2 if under is None else under)
    width = max(20, get_terminal_size().columns - 1)
    joined = shown.replace(" = ", f"{_NO_BREAK}={_NO_BREAK}").replace(" %", f"{_NO_BREAK}%")
    lines = wrap(joined, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    for line in lines or [""]:
        print_line(line.replace(_NO_BREAK, " "))


def print_json(value: Any) -> None:
    """Print one JSON value as one line on stdout. NaN and infinities become null, which JSON has instead."""
    from pydantic_core import to_jsonable_python

    print_line(json.dumps(to_jsonable_python(value, inf_nan_mode="null")))


def print_problems(problems: Iterable[Problem], *, stream: TextIO | None = None) -> None:
    """Print problems on stderr, or on ``stream``, with an empty line between them."""
    stream = sys.stderr if stream is None else stream
    for place, problem in enumerate(problems):
        if place:
            print_line(stream=stream)
        first, *rest = str(problem).split("\n")
        code, _, message = printable(first).partition(" ")
        print_line(f"{click.style(code, fg='red', bold=True)} {click.style(message, bold=True)}", stream=stream)
        for line in rest:
            print_line(printable(line), stream=stream)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr, one line each."""
    for warning in warnings:
        print_line(f"{_WARNING} {printable(warning)}", stream=sys.stderr)


def print_warning(text: str) -> None:
    """Print one warning on stderr, which may have several lines."""
    first, *rest = text.split("\n")
    print_warnings([first])
    for line in rest:
        print_line(printable(line), stream=sys.stderr)


# --- tables


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout: ruled and wrapped on a terminal, aligned plain lines elsewhere."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_ruled(head, cells)
        return
    for line in aligned([[printable(title) for title in head], *cells]):
        print_line(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines whose columns are two spaces apart.

    >>> aligned([["id", "package"], ["tasks", "esper-tasks"]])
    ['id     package', 'tasks  esper-tasks']
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def fits(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table fits on the terminal without a cell being wrapped; True if stdout is no terminal."""
    if not sys.stdout.isatty():
        return True
    from rich.cells import cell_len

    widths = [max(cell_len(printable(cell)) for cell in column) for column in zip(head, *rows, strict=True)]
    return sum(widths) + 2 * len(widths) <= get_terminal_size().columns


def _print_ruled(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in head:
        table.add_column(Text(printable(title)))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)


# --- figures


def value(metric: Mapping[str, Any], number: float | None) -> str:
    """Return a figure in the metric's unit."""
    if number is None or not math.isfinite(number):
        return "unknown"
    return f"{100 * number:.1f} %" if metric.get("unit") == "%" else f"{number:.4g}"


def _difference(metric: Mapping[str, Any], number: float) -> str:
    """Return a difference of figures; a difference of percentages in points."""
    return f"{100 * number:+.1f} points" if metric.get("unit") == "%" else f"{number:+.4g}"


def _interval(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    ends = (_difference(metric, comparison[end]).removesuffix(" points") for end in ("ci_low", "ci_high"))
    return " to ".join(ends)


def probability(p: float | None) -> str:
    """Return a p-value with two digits.

    >>> probability(0.0078125), probability(1e-9), probability(None)
    ('0.0078', 'below 0.0001', 'unknown')
    """
    if p is None:
        return "unknown"
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units.

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


# --- results of a run


def print_results(results: Mapping[str, Any]) -> None:
    """Print a table of the arms, then their comparison: one as a sentence, several as a table."""
    metric, comparisons = results["metric"], results["comparisons"]
    _print_arms(metric, results["arms"])
    if len(comparisons) == 1:
        print_wrapped(sentence(metric, comparisons[0]))
    elif comparisons:
        print_line()
        _print_comparisons(metric, comparisons)
    if remark := _missing_seeds(comparisons):
        print_wrapped(remark)


def _print_arms(metric: Mapping[str, Any], arms: Mapping[str, Any]) -> None:
    rows = []
    for name, arm in arms.items():
        test, reward = arm["test"], arm.get("reward")
        known = test["ci_low"] is not None and test["ci_high"] is not None
        interval = f"{value(metric, test['ci_low'])} to {value(metric, test['ci_high'])}" if known else "unknown"
        figures = [value(metric, test["mean"]), interval, str(test["n"]), f"{arm['params']:,.0f}"]
        rows.append([name, *figures, "unknown" if reward is None else f"{reward:+.1f}"])
    less = ", less is better" if metric.get("direction") == "down" else ""
    head = ["arm", f"test {metric['name']}{less}", "95 % interval", "n", "parameters", "reward"]
    if fits(head, rows):
        print_table(head, rows)
        return
    for name, *cells in rows:
        print_line(printable(name))
        for line in aligned([("", title, cell) for title, cell in zip(head[1:], cells, strict=True)]):
            print_line(printable(line))


def _print_comparisons(metric: Mapping[str, Any], comparisons: Sequence[Mapping[str, Any]]) -> None:
    head = ["", "against", "by", "95 % interval", "n", "p", "Holm", ""]
    rows = []
    for one in comparisons:
        difference = "unknown" if one["difference"] is None else _difference(metric, one["difference"])
        interval = "unknown" if one["ci_low"] is None else _interval(metric, one)
        chances = [probability(one["p"]), probability(one.get("p_holm"))]
        rows.append([one["a"], one["b"], difference, interval, str(one["n"]), *chances, one["verdict"]])
    if fits(head, rows):
        print_table(head, rows)
        return
    for one in comparisons:
        print_wrapped(sentence(metric, one))


def sentence(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """Return what a comparison shows as a sentence, with the p-value that its verdict depends on."""
    a, b, verdict = comparison["a"], comparison["b"], comparison["verdict"]
    size = "a figure is not finite"
    if comparison["difference"] is not None:
        size = _difference(metric, comparison["difference"])
    if comparison["ci_low"] is not None:
        p = comparison["p"] if comparison.get("p_holm") is None else comparison["p_holm"]
        adjusted = p not in (comparison["p"], comparison.get("p_margin"))
        name = "Holm's p" if adjusted else "p"
        size += f" (95 % interval {_interval(metric, comparison)}, n = {comparison['n']}, {name} = {probability(p)})"
    if verdict == "no difference shown":
        return f"{a} against {b}: no difference shown; {size}"
    return f"{a} is {verdict} than {b} by {size}"


def _missing_seeds(comparisons: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how many seeds a verdict needs, if there are too few for any."""
    from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
    from esper_core.runs.statistics import seeds_needed

    reasons = [comparison.get("why") for comparison in comparisons]
    if reasons and set(reasons) == {"too few seeds"}:
        return f"A verdict takes {MIN_SEEDS_FOR_VERDICT} environment seeds; there are {comparisons[0]['n']}."
    if "too few seeds for so many comparisons" in reasons:
        needed = seeds_needed(len(reasons))
        return f"Of {len(reasons)} comparisons a verdict takes {needed} environment seeds."
    return None


def print_outcome(outcome: Outcome) -> None:
    """Print what a run found, where it is, and where its time went."""
    from esper_core.app.run import REPORT

    print_results(outcome.results)
    print_sections([own.as_json() for own in outcome.sections])
    print_line()
    total = outcome.timing["total"] or 1.0
    regions = sorted(((spent, name) for name, spent in outcome.timing.items() if name != "total"), reverse=True)
    largest = ", ".join(f"{name} {100 * spent / total:.0f} %" for spent, name in regions[:3])
    print_wrapped(f"{outcome.named}   {outcome.timing['total']:.1f} s, of which {largest}")
    if (report := outcome.named / REPORT).is_file():  # a package that writes one is installed
        print_line(printable(f"Report: {report}"))


def print_sections(sections: Iterable[Mapping[str, str]]) -> None:
    """Print the sections that plugins add to the report, each below its title."""
    for own in sections:
        print_line(f"\n{printable(own['title'])}   (plugin {printable(own['plugin'])})")
        for line in own["text"].rstrip().splitlines():
            print_line(f"  {printable(line)}".rstrip())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do, for ``esper run --dry-run``."""

    arms: tuple[str, ...]
    episodes: int
    steps: int
    batches: int
    host_parameters: int
    slots: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, composition: Composition) -> Plan:
        """Return the plan of a composed configuration."""
        config = composition.config
        return cls(
            arms=composition.every_arm,
            episodes=config.rounds * config.instances,
            steps=config.episode.steps,
            batches=config.episode.batches,
            host_parameters=composition.host_parameters,
            slots=composition.space.blueprints,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the plan as ``--dry-run --json`` prints it."""
        return asdict(self)

    def text(self) -> str:
        """Return the plan in words."""
        lines = [
            f"{len(self.arms)} arms ({', '.join(self.arms)}), {self.episodes} episodes each",
            f"of {self.steps} steps of {self.batches} batches, on a host of {self.host_parameters:,} parameters",
        ]
        lines += [f"slot {name}: {', '.join(blueprints)}" for name, blueprints in self.slots.items()]
        return "\n".join([*lines, "Everything is in order; nothing was trained."])
