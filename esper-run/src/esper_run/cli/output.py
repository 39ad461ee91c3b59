"""Output of the command line: lines, tables, problems and JSON, and the results of a run.

A table is ruled on a terminal and plain aligned lines elsewhere. Names and messages come from other people's packages:
control characters in them are escaped before they are printed.
"""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

    from esper_core.leyline.errors import Problem
    from esper_run.app.run import Outcome


# --- lines


def keep_stdout() -> None:
    """Reserve stdout for what the command prints: what other code writes to file descriptor 1 goes to stderr.

    ``redirect_stdout`` does not reach libraries in C, ``os.write`` and processes that a plugin starts.
    """
    with suppress(OSError, ValueError, AttributeError):  # stdout or stderr may be closed, or no file
        stdout = sys.stdout
        reserved = os.fdopen(
            os.dup(1), "w", buffering=1 if stdout.isatty() else -1, encoding=stdout.encoding, errors=stdout.errors
        )
        stdout.flush()
        os.dup2(2, 1)
        # shutil asks the second one for the width of the terminal
        sys.stdout = vars(sys)["__stdout__"] = reserved


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


def print_wrapped(text: str, *, indent: int = 2) -> None:
    """Print a sentence on stdout; on a terminal it is wrapped between words, and further lines are indented."""
    print_line(_wrapped(text, sys.stdout, indent))


def _wrapped(text: str, stream: TextIO, indent: int = 2) -> str:
    """Return a printable sentence, wrapped between words if the stream is a terminal."""
    shown = printable(text)
    if not stream.isatty():
        return shown
    width = max(20, get_terminal_size().columns - 1)
    return fill(shown, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


def print_json(value: Any) -> None:
    """Print one JSON value as one line on stdout. NaN and infinities become null, which JSON has instead."""
    from pydantic_core import to_jsonable_python

    print_line(json.dumps(to_jsonable_python(value, inf_nan_mode="null")))


def print_problems(problems: Iterable[Problem], *, stream: TextIO | None = None) -> None:
    """Print problems on stderr, or on ``stream``, with an empty line between them.

    A command that several of them recommend is printed once.
    """
    recommended: set[str] = set()
    stream = sys.stderr if stream is None else stream
    for place, problem in enumerate(problems):
        if place:
            print_line(stream=stream)
        first, *details = str(problem).split("\n")
        code, _, message = printable(first).partition(" ")
        print_line(f"{click.style(code, fg='red', bold=True)} {click.style(message, bold=True)}", stream=stream)
        for line in details:
            if line not in recommended:
                print_line(printable(line), stream=stream)
            if ":  esper " in line:
                recommended.add(line)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr, unless it is closed. Only the first line of one is marked."""
    with suppress(BrokenPipeError):
        for warning in warnings:
            first, *details = warning.split("\n")
            text = _wrapped(f"warning: {first}", sys.stderr).removeprefix("warning:")
            print_line(f"{click.style('warning:', fg='yellow', bold=True)}{text}", stream=sys.stderr)
            for line in details:
                print_line(_wrapped(line, sys.stderr), stream=sys.stderr)


# --- tables


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout: ruled and wrapped on a terminal, aligned plain lines elsewhere."""
    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    if sys.stdout.isatty():
        _print_ruled(*lines)
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print_line("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def is_wide(head: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Return whether stdout is a terminal into whose lines the rows of a table do not fit."""
    if not sys.stdout.isatty():
        return False
    widths = (max(len(printable(cell)) for cell in column) for column in zip(head, *rows, strict=True))
    return sum(widths) + 2 * (len(head) - 1) > get_terminal_size().columns


def _print_ruled(head: Sequence[str], *rows: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, title in enumerate(head):
        table.add_column(Text(title), overflow="fold", min_width=0 if place else 4)  # what a row is about stays legible
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, highlight=False).print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and their values on stdout, aligned below a title. Facts without a value are left out."""
    width = max(len(name) for name, value in facts if value)
    for name, value in facts:
        if value:
            print_wrapped(f"  {name:{width}}  {value}", indent=width + 4)


# --- figures


def value(metric: Mapping[str, Any], number: float | None) -> str:
    """Return a figure in the unit of the metric."""
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
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


# --- results of a run


def print_results(results: Mapping[str, Any]) -> None:
    """Print a table of the arms, then one of their comparisons."""
    from esper_run.config.model import CAPACITY

    _print_arms(results["metric"], results["arms"])
    if comparisons := results["comparisons"]:
        print_line()
        _print_comparisons(results["metric"], comparisons)
    if any(comparison["b"].startswith(CAPACITY) for comparison in comparisons):
        print_wrapped(f"{CAPACITY} has the grown blocks from the start. Neither side of that comparison is tuned.")
    if remark := _missing_seeds(comparisons):
        print_wrapped(remark)


def _print_arms(metric: Mapping[str, Any], arms: Mapping[str, Any]) -> None:
    from esper_run.runs.statistics import format_flops

    rows = []
    for name, arm in arms.items():
        test, reward = arm["test"], arm.get("reward")
        is_known = test["ci_low"] is not None and test["ci_high"] is not None
        interval = f"{value(metric, test['ci_low'])} to {value(metric, test['ci_high'])}" if is_known else "unknown"
        figures = [
            value(metric, test["mean"]),
            interval,
            str(test["n"]),
            f"{arm['params']:,.0f}",
            format_flops(arm.get("flops")),
        ]
        rows.append([name, *figures, "unknown" if reward is None else f"{reward:+z.1f}"])
    less = ", less is better" if metric.get("direction") == "down" else ""
    print_table(["arm", f"test {metric['name']}{less}", "95 % interval", "n", "parameters", "FLOPs", "reward"], rows)


def _print_comparisons(metric: Mapping[str, Any], comparisons: Sequence[Mapping[str, Any]]) -> None:
    head = ["", "against", "by", "95 % interval", "n", "p", "Holm", ""]
    rows = []
    for comparison in comparisons:
        difference = "unknown" if comparison["difference"] is None else _difference(metric, comparison["difference"])
        interval = "unknown" if comparison["ci_low"] is None else _interval(metric, comparison)
        holm = comparison["p"] if len(comparisons) == 1 else comparison.get("p_holm")
        figures = [difference, interval, str(comparison["n"]), probability(comparison["p"]), probability(holm)]
        rows.append([comparison["a"], comparison["b"], *figures, comparison["verdict"]])
    print_table(head, rows)


def _missing_seeds(comparisons: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how many seeds a verdict needs, if there are too few for any."""
    from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
    from esper_run.runs.statistics import seeds_needed

    reasons = [comparison.get("why") for comparison in comparisons]
    if reasons and set(reasons) == {"too few seeds"}:
        return f"A verdict needs {MIN_SEEDS_FOR_VERDICT} RNG seeds; there are {comparisons[0]['n']}."
    if "too few seeds for so many comparisons" in reasons:
        needed = seeds_needed(len(reasons))
        return f"With {len(reasons)} comparisons a verdict needs {needed} RNG seeds."
    return None


def print_outcome(outcome: Outcome) -> None:
    """Print what a run found, where it is, and where its time went."""
    from esper_run.app.run import REPORT

    print_results(outcome.results)
    print_sections([section.as_json() for section in outcome.sections])
    print_line()
    print_wrapped(f"{outcome.named}   {timing_text(outcome.timing)}")
    if (report := outcome.named / REPORT).is_file():  # a package that writes one is installed
        print_line(printable(f"Report: {report}"))
    elif not entry_points(group="esper.commands", name="report"):
        print_line(printable(f"For a report:  pip install 'esper-run[watch]'  and then  esper report {outcome.named}"))


def timing_text(timing: Mapping[str, float]) -> str:
    """Return the duration of a run with its three largest parts."""
    total = timing.get("total") or 1.0
    parts = sorted(((spent, name) for name, spent in timing.items() if name != "total"), reverse=True)[:3]
    return f"{total:.1f} s, of which {', '.join(f'{name} {100 * spent / total:.0f} %' for spent, name in parts)}"


def print_sections(sections: Iterable[Mapping[str, str]]) -> None:
    """Print the sections that plugins add to the report, each below its title."""
    for section in sections:
        print_line(f"\n{printable(section['title'])}   (plugin {printable(section['plugin'])})")
        for line in section["text"].rstrip().splitlines():
            print_line(f"  {printable(line)}".rstrip())
