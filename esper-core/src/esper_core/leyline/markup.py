"""How does a record become what a notebook shows? As elements of HTML, in which every text is escaped.

Names in a record come from plugins, configurations and files of anybody's. They get into an element as a text or as the
value of an attribute, and in no other way. No element takes a link, a script or an image; colours are those of the
notebook, light or dark.

>>> element("td", "1 < 2", style="text-align:left").render()
'<td style="text-align:left">1 &lt; 2</td>'
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

TAGS: Final = frozenset(
    {"div", "line", "polyline", "span", "strong", "svg", "table", "tbody", "td", "text", "th", "thead", "title", "tr"}
)
"""The elements that there are."""

EMPTY: Final = frozenset({"line", "polyline"})
"""Those that hold nothing."""

ATTRIBUTES: Final = frozenset(
    {"fill", "height", "points", "role", "stroke", "stroke-dasharray", "stroke-opacity", "stroke-width", "style"}
    | {"text-anchor", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2"}
)
"""The attributes that an element may have."""

_LONGEST: Final = 300
"""Characters of a text that are shown."""

_SHORT: Final = 28
"""Characters of a cell that are not broken into lines."""

_CELL: Final = "padding:2px 12px 2px 0;border:none;vertical-align:top;text-align:"


@dataclass(frozen=True, slots=True)
class Element:
    """An element with its attributes, and the texts and elements in it."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Element | str, ...]

    def render(self) -> str:
        """The markup, on one line."""
        told = "".join(f' {name}="{escape(printable(value))}"' for name, value in self.attributes)
        if self.tag in EMPTY:
            return f"<{self.tag}{told}/>"
        inside = "".join(one.render() if isinstance(one, Element) else escape(shown(one)) for one in self.children)
        return f"<{self.tag}{told}>{inside}</{self.tag}>"


def element(tag: str, *children: Element | str | None, **attributes: str | float) -> Element:
    """An element. ``_`` in an attribute's name stands for ``-``; a child that is None is left out."""
    named = {name.replace("_", "-"): value for name, value in attributes.items()}
    strange = sorted({tag} - TAGS) + sorted(named.keys() - ATTRIBUTES)
    if strange:
        msg = f"a notebook is shown no element and no attribute of this name. Received: {strange[0]!r}"
        raise ValueError(msg)
    told = tuple((name, f"{value:.5g}" if isinstance(value, float) else str(value)) for name, value in named.items())
    return Element(tag, told, tuple(child for child in children if child is not None))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = (), limit: int = 200
) -> Element:
    """A table of at most ``limit`` rows, the last of which counts those left out. numbers: columns set to the right."""
    styles = [_CELL + ("right" if name in numbers else "left") for name in head]
    every = list(rows)
    body = [_row("td", row, styles) for row in every[:limit]]
    if len(every) > limit:
        body.append(element("tr", element("td", f"and {len(every) - limit:,} more", style=styles[0])))
    return element(
        "table",
        element("thead", _row("th", head, styles)) if any(head) else None,
        element("tbody", *body),
        style="border-collapse:collapse;margin:6px 0",
    )


def notebook(title: str, *parts: Element | str | None) -> str:
    """What a notebook shows of an object: a line that says what it is, then its parts; a part that is text is a line.

    >>> notebook("twin", "3 < 4")
    '<div style="line-height:1.4"><div><strong>twin</strong></div><div>3 &lt; 4</div></div>'
    """
    lines = (element("div", part) if isinstance(part, str) else part for part in parts)
    return element("div", element("div", element("strong", title)), *lines, style="line-height:1.4").render()


def shown(text: str) -> str:
    """``text`` as a line that can be shown: printable, and cut off where nobody would read on."""
    line = printable(" ".join(text.splitlines()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def printable(text: str) -> str:
    r"""``text`` with every character that cannot be printed written out.

    >>> print(printable("red\x1b[31m"))
    red\x1b[31m
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "seed"), counted(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _row(tag: str, cells: Sequence[str], styles: Sequence[str]) -> Element:
    kept = [
        f"{style};white-space:nowrap" if len(cell) <= _SHORT else style
        for cell, style in zip(cells, styles, strict=True)
    ]
    return element("tr", *(element(tag, cell, style=style) for cell, style in zip(cells, kept, strict=True)))
