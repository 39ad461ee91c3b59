"""How many columns does a terminal give to a text, and how is a text made to fit them? They are not its characters.

East Asian letters and emoji take two of them, and an accent that is a character of its own takes none.
"""

from __future__ import annotations

from unicodedata import category, east_asian_width

MORE = "…"
"""Stands at the end of what found no room."""


def columns(text: str) -> int:
    """The columns that ``text`` takes.

    >>> columns("twin"), columns("双子"), columns("e\N{COMBINING ACUTE ACCENT}")
    (4, 4, 1)
    """
    return sum(0 if category(one) in ("Mn", "Me") else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def padded(text: str, width: int) -> str:
    """``text`` with as many blanks behind it as it takes to be ``width`` columns wide."""
    return text + " " * (width - columns(text))


def cut(text: str, width: int, more: str = MORE) -> str:
    """``text``, or as much of its beginning as finds room in ``width`` columns beside a sign that there is more.

    >>> cut("conv_light", 6), cut("双子座", 5)
    ('conv_…', '双子…')
    """
    if columns(text) <= width:
        return text
    if width <= columns(more):
        return more[: max(width, 0)]
    kept = text
    while kept and columns(kept) + columns(more) > width:
        kept = kept[:-1]
    return kept + more


def wrapped(text: str, width: int, *, first: str = "  ", then: str = "  ") -> list[str]:
    """The words of ``text`` in lines of at most ``width`` columns, which begin with ``first``, and then with ``then``.

    A word that no line holds is broken.

    >>> wrapped("one two three", 9, first="", then="  ")
    ['one two', '  three']
    """
    lines, room = [first], False
    for word in text.split(" "):
        rest = word
        if room and columns(f"{lines[-1]} {rest}") <= width:
            lines[-1] += f" {rest}"
            continue
        if room:
            lines.append(then)
        while columns(lines[-1] + rest) > width:
            taken = _fitting(rest, width - columns(lines[-1]))
            lines[-1] += rest[:taken]
            lines.append(then)
            rest = rest[taken:]
        lines[-1] += rest
        room = True
    return lines


def _fitting(text: str, width: int) -> int:
    """How many characters from the first one on find room; one at least."""
    taken = len(text)
    while taken > 1 and columns(text[:taken]) > width:
        taken -= 1
    return taken
