"""How does a page come together without anybody's words becoming markup? Of elements; every text in them is escaped.

Names in a run come from plugins and files of anybody's. They reach a page as texts or as values of attributes of
elements that are made here, and in no other way; there is no way to put a finished string of markup into one.

>>> element("p", "1 < 2", class_="note").render()
'<p class="note">1 &lt; 2</p>'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import Final

Value = str | int | float | None

EMPTY: Final = frozenset({"br", "circle", "col", "hr", "line", "meta", "path", "polygon", "polyline", "rect"})
"""Elements that hold nothing."""

UNPRINTABLE: Final = re.compile(
    "[\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""Halves of characters, control characters, and those that turn the direction of what follows."""

NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*\Z")


@dataclass(frozen=True, slots=True)
class Element:
    """An element with its attributes, and texts and elements in it."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Element | str, ...]

    def render(self) -> str:
        """The markup, on one line."""
        told = "".join(f' {name}="{_text(value, quote=True)}"' for name, value in self.attributes)
        if self.tag in EMPTY:
            return f"<{self.tag}{told}/>"
        inside = "".join(_text(one) if isinstance(one, str) else one.render() for one in self.children)
        return f"<{self.tag}{told}>{inside}</{self.tag}>"


def element(tag: str, *children: Element | str | None, **attributes: Value) -> Element:
    """An element. ``class_`` stands for class, ``_`` within a name for ``-``; an attribute that is None is left out.

    Children that are None are left out. Numbers are told with as many digits as a drawing needs.
    """
    named = [(name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None]
    for name in (tag, *(name for name, _ in named)):
        if not NAME.match(name) or name.lower().startswith("on"):
            msg = f"no element and no attribute of a report is called so. Received: {name!r}"
            raise ValueError(msg)
    told = tuple((name, short(value) if isinstance(value, float) else str(value)) for name, value in named)
    return Element(tag, told, tuple(child for child in children if child is not None))


def short(number: float) -> str:
    """A number of a drawing: a tenth of a pixel is enough.

    >>> short(1.26), short(3.0), short(-0.01)
    ('1.3', '3', '0')
    """
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")


def _text(text: str, *, quote: bool = False) -> str:
    return escape(UNPRINTABLE.sub("\ufffd", text), quote=quote)
