"""Texts for people: printable characters, single lines, and counts."""

from __future__ import annotations

from typing import Final

MAX_LINE: Final = 300
"""Characters of a text that ``one_line`` keeps."""


def printable(text: str) -> str:
    r"""Escape every character that is not printable, so that a terminal obeys nothing in ``text``.

    >>> print(printable("red\x1b[31m"))
    red\x1b[31m
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def one_line(text: str) -> str:
    """Return ``text`` as one printable line, cut where it is very long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "seed"), plural(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
