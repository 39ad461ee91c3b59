"""How do results and problems reach the eye? Text for people, JSON for programs; a terminal obeys nothing in either.

Names and messages come from other people's packages. Whatever in them a terminal would obey is shown, not sent.
"""

from __future__ import annotations

import json
import os
import sys
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import click

from esper_core.leyline.columns import columns, padded
from esper_core.leyline.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from esper_core.leyline.errors import Problem

_BOUND: Final = "\N{NO-BREAK SPACE}"
"""A space at which no line ends. It is not printable, so that no text that is shown has one of its own."""

_WARNING: Final = click.style("warning:", fg="yellow", bold=True)


def visible(text: str) -> str:
    """``text`` with every character that cannot be printed written out, as other packages show it, too.

    >>> print(visible("red\\x1b[31m"))
    red\\x1b[31m
    """
    return printable(text)


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that takes colour, and ``NO_COLOR`` does not forbid it."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def encodable(text: str, stream: TextIO) -> str:
    """``text`` with what the stream cannot encode written out."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def encodes(stream: TextIO, text: str) -> bool:
    """Whether a stream can show ``text`` as it is."""
    return encodable(text, stream) == text


def print_line(text: str = "", *, stream: TextIO | None = None) -> None:
    """Prints one line on stdout, or on ``stream``. What the stream cannot encode is written out."""
    stream = sys.stdout if stream is None else stream
    click.echo(encodable(text, stream), file=stream, color=wants_colour(stream))


def print_wrapped(text: str, *, under: int | None = None) -> None:
    """Prints a sentence on stdout: on a terminal in lines that end with a word, elsewhere in one.

    ``n = 8`` and ``95 %`` are not taken apart, and nor is a path. under: the column in which further lines begin; by
    default two behind the first.
    """
    shown = visible(text)
    if not sys.stdout.isatty():
        print_line(shown)
        return
    further = " " * (len(shown) - len(shown.lstrip()) + 2 if under is None else under)
    width = max(20, get_terminal_size().columns - 1)
    bound = shown.replace(" = ", f"{_BOUND}={_BOUND}").replace(" %", f"{_BOUND}%")
    lines = wrap(bound, width, subsequent_indent=further, break_on_hyphens=False, break_long_words=False)
    for line in lines or [""]:
        print_line(line.replace(_BOUND, " "))


def print_problems(problems: Iterable[Problem], *, stream: TextIO | None = None) -> None:
    """Prints problems on stderr, or on ``stream``, with an empty line between one and the next."""
    stream = sys.stderr if stream is None else stream
    for place, problem in enumerate(problems):
        if place:
            print_line(stream=stream)
        first, *rest = str(problem).split("\n")
        code, _, message = visible(first).partition(" ")
        print_line(f"{click.style(code, fg='red', bold=True)} {click.style(message, bold=True)}", stream=stream)
        for line in rest:
            print_line(visible(line), stream=stream)


def print_warnings(lines: Iterable[str]) -> None:
    """Prints what is wrong and stops nothing on stderr, a line each."""
    for line in lines:
        print_line(f"{_WARNING} {visible(line)}", stream=sys.stderr)


def print_warning(text: str) -> None:
    """Prints one warning on stderr, which may have lines of its own. A live bar moves on below it."""
    first, *rest = text.split("\n")
    print_warnings([first])
    for line in rest:
        print_line(visible(line), stream=sys.stderr)


def print_json(value: Any) -> None:
    """Prints one JSON value in one line on stdout. A number that is none is null, for JSON has no NaN."""
    from esper_core.runs import plain

    print_line(json.dumps(plain(value), allow_nan=False))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table on stdout: ruled and wrapped on a terminal, aligned plain lines elsewhere."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_ruled(head, cells)
        return
    for line in aligned([[visible(title) for title in head], *cells]):
        print_line(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, their columns two spaces apart.

    >>> aligned([["id", "package"], ["tasks", "esper-tasks"]])
    ['id     package', 'tasks  esper-tasks']
    """
    widths = [max(columns(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _print_ruled(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in head:
        table.add_column(Text(visible(title)))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)
