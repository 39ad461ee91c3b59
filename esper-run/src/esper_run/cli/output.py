"""Output of the command line: lines, tables, problems and JSON, and the results of a run.

Names and messages come from other people's packages:
control characters in them are escaped before they are printed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.errors import printable
from esper_core.plugins import Extension
from esper_run.formats import (
    MINUS,
    NO_BREAK,
    format_difference,
    format_difference_interval,
    format_flops,
    format_interval,
    format_number,
    format_p,
    format_percent,
    format_seconds,
    format_value,
    metric_of,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

    from esper_core.leyline.errors import Problem
    from esper_core.leyline.signals import Metric
    from esper_run.app.run import Outcome


# --- lines


def keep_stdout() -> None:
    """Reserve stdout for what the command prints: what other code writes to file descriptor 1 goes to stderr.

    ``redirect_stdout`` does not reach libraries in C, ``os.write`` and processes that a plugin starts. A closed stream
    becomes the null device, or the next file that is opened would get its descriptor, and what others print.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123  as long as there is the process
            if nowhere.fileno() != descriptor:
                os.dup2(nowhere.fileno(), descriptor)
            setattr(sys, name, nowhere)
    with suppress(OSError, ValueError, AttributeError):  # stdout or stderr may be closed, or no file
        stdout = sys.stdout
        reserved = os.fdopen(
            os.dup(1), "w", buffering=1 if stdout.isatty() else -1, encoding=stdout.encoding, errors=stdout.errors
        )
        stdout.flush()
        os.dup2(2, 1)
        # shutil asks the second one for the width of the terminal
        sys.stdout = vars(sys)["__stdout__"] = reserved


def encodable(text: str, stream: TextIO) -> str:
    """Return ``text`` with ordinary spaces, and with what the stream cannot encode escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = plain(text)
    try:
        MINUS.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace(MINUS, "-")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_line(text: str = "", *, stream: TextIO | None = None) -> None:
    """Print one line on stdout, or on ``stream``. What the stream cannot encode is escaped."""
    stream = sys.stdout if stream is None else stream
    has_colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    click.echo(encodable(text, stream), file=stream, color=has_colours)


def print_wrapped(text: str, *, indent: int = 2) -> None:
    """Print a sentence on stdout; on a terminal it is wrapped between words, and further lines are indented."""
    print_line(_wrapped(text, sys.stdout, indent))


def _wrapped(text: str, stream: TextIO, indent: int = 2) -> str:
    """Return a printable sentence, wrapped between words if the stream is a terminal, but not before a unit."""
    shown = NO_BREAK.join(map(printable, text.split(NO_BREAK)))
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
    """Print a table on stdout as aligned lines, or row by row on a terminal that is too narrow for them."""
    rows = list(rows)
    if is_wide(head, *rows):
        for name, *cells in rows:
            print_line(printable(plain(name)))  # it is never broken, since a name is copied from there
            print_facts([*zip(head[1:], cells, strict=True)])
        return
    lines = [[printable(plain(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print_line("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def is_wide(head: Sequence[str], *rows: Sequence[str]) -> bool:
    """Return whether stdout is a terminal into whose lines the rows of a table do not fit."""
    if not sys.stdout.isatty():
        return False
    widths = (max(len(printable(plain(cell))) for cell in column) for column in zip(head, *rows, strict=True))
    return sum(widths) + 2 * (len(head) - 1) > get_terminal_size().columns


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and their values on stdout, aligned below a title. Facts without a value are left out."""
    width = max((len(name) for name, value in facts if value), default=0)
    for name, value in facts:
        if value:
            print_wrapped(f"  {name:{width}}  {value}", indent=width + 4)


# --- results of a run


def print_results(results: Mapping[str, Any]) -> None:
    """Print a table of the arms, then one of their comparisons."""
    from esper_run.config.model import CAPACITY
    from esper_run.runs.findings import conclusions_text, last_weights_text, missing_networks_text, ways_text

    metric = metric_of(results)
    print_arms(metric, results["arms"])
    if remark := last_weights_text(metric, {name: arm.get("test_last") for name, arm in results["arms"].items()}):
        print_wrapped(remark)
    for name, arm in results["arms"].items():
        for remark in conclusions_text(name, arm.get("conclusions", {}), arm["test"]["n"]):
            print_wrapped(remark)
    episodes = [episode for arm in results["arms"].values() for episode in arm.get("episodes", ())]
    if remark := ways_text([episode.get("alone") for episode in episodes]):
        print_wrapped(remark)
    if comparisons := results["comparisons"]:
        print_line()
        _print_comparisons(metric, comparisons)
    if any(comparison["b"].startswith(CAPACITY) for comparison in comparisons):
        print_wrapped(f"{CAPACITY} has the grown blocks from the start. Neither side of that comparison is tuned.")
    if remark := missing_networks_text(comparisons):
        print_wrapped(remark)


def print_arms(metric: Metric, arms: Mapping[str, Any]) -> None:
    """Print a table of arms, given what a summary says of each."""
    rows = []
    for name, arm in arms.items():
        test = arm["test"]
        figures = [
            format_value(metric, test["mean"]),
            format_interval(metric, test["ci_low"], test["ci_high"]),
            str(test["n"]),
            f"{arm['params']:,.0f}",
            format_flops(arm.get("flops")),
        ]
        rows.append([name, *figures, format_number(arm.get("reward"), decimals=1, signed=True)])
    less = ", less is better" if metric.direction == "down" else ""
    print_table(["arm", f"test {metric.name}{less}", "95 % interval", "n", "parameters", "FLOPs", "reward"], rows)


def _print_comparisons(metric: Metric, comparisons: Sequence[Mapping[str, Any]]) -> None:
    head = ["", "against", "by", "95 % interval", "n", "p", "Holm", "verdict"]
    rows = []
    for comparison in comparisons:
        difference = format_difference(metric, comparison["difference"])
        interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
        interval = interval.removesuffix(f"{NO_BREAK}points")
        holm = comparison["p"] if len(comparisons) == 1 else comparison.get("p_holm")
        figures = [difference, interval, str(comparison["n"]), format_p(comparison["p"]), format_p(holm)]
        rows.append([comparison["a"], comparison["b"], *figures, comparison["verdict"]])
    if not is_wide(head, *rows):
        print_table(head, rows)
        return
    for a, b, difference, interval, n, p, holm, verdict in rows:
        adjusted = "" if holm == p else f" ({holm} by Holm)"
        print_wrapped(f"{a} against {b}: {difference} ({interval}), n = {n}, p = {p}{adjusted}: {verdict}")


def print_outcome(outcome: Outcome) -> None:
    """Print what a run found, where it is, and where its time went."""
    from esper_run.app.endings import REPORT
    from esper_run.runs.findings import check_command
    from esper_run.runs.network_files import best_episodes

    print_results(outcome.results)
    command = ""
    for lost in outcome.lost_seeds:
        print_wrapped(str(lost))
        command = check_command(lost.blueprint, lost.package)
    print_line()
    print_wrapped(f"{outcome.named}   {timing_text(outcome.timing)}")
    if (report := outcome.named / REPORT).is_file():  # a package that writes one is installed
        print_line(printable(f"Report: {report}"))
    elif "report" not in Extension.find("esper.commands", "command"):
        print_line(printable(f"For a report:  pip install 'esper-run[watch]'  and then  esper report {outcome.named}"))
    if episodes := best_episodes(outcome.path):
        print_line(printable(f"Best network of each arm in validation: {outcome.named / 'networks'}"))
        metric = metric_of(outcome.results)
        tests = [f"{arm} {format_value(metric, episode['test'])}" for arm, episode in episodes.items()]
        print_wrapped(f"  Test {metric.name}: {', '.join(tests)}. Load one with esper_grow.load_best.", indent=2)
    print_finding(outcome.results, outcome.named, lost=command)


def print_finding(results: Mapping[str, Any], path: Path | str, *, lost: str) -> None:
    """Print what a run found in a sentence, and what to do next as one command: the last that a reader sees."""
    from esper_run.runs.findings import next_command, summary_sentence

    print_line()
    print_wrapped(summary_sentence(results, lost=bool(lost)), indent=0)
    title, command = next_command(results, shlex.quote(str(path)), lost=lost)
    print_wrapped(f"{title}:", indent=0)
    print_line(printable(f"  {command}"))  # in a line of its own, so that it can be copied


def timing_text(timing: Mapping[str, float]) -> str:
    """Return the duration of a run with its three largest parts."""
    total = timing.get("total") or 1.0
    parts = sorted(((spent, name) for name, spent in timing.items() if name != "total"), reverse=True)[:3]
    shares = ", ".join(f"{name} {format_percent(spent / total, 0)}" for spent, name in parts)
    return f"{format_seconds(total)}, of which {shares}"
