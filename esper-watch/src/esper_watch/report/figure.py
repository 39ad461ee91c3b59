"""What have all drawings of a report in common? A frame with axes, marks that tell their value, a legend.

A mark is an element with a ``title``, which says what it stands for: shown when a pointer rests on it, read aloud, and
shown by the page's script when the arrow keys reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_watch.report.markup import Element, element

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from esper_watch.report.scale import Scale

WIDTH = 720.0
COLOURS = 8
"""As many as the page's style has; further arms begin again from the first, with another dash."""

UNDER = 58.0
"""What an axis along the bottom takes: room for letters that are larger on a narrow screen."""

DASHES = (None, "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True, slots=True)
class Look:
    """How an arm is drawn, the same in every figure."""

    number: int

    @property
    def class_(self) -> str:
        """The class that gives it its colour."""
        return f"arm-{self.number % COLOURS}"

    @property
    def dash(self) -> str | None:
        """The dash of its lines: what tells arms apart without a colour."""
        return DASHES[(self.number + self.number // COLOURS) % len(DASHES)]


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """A look for each arm."""
    return {arm: Look(number) for number, arm in enumerate(arms)}


def drawing(
    title: str, what: str, children: Iterable[Element | None], *, height: float, width: float = WIDTH
) -> Element:
    """A drawing. title: what it is called; what: what it shows, in a sentence, for those who do not see it.

    One of another width than the usual one is shown in its own size.
    """
    size = None if width == WIDTH else width
    return element(
        "svg",
        element("title", title),
        element("desc", what),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=size,
        role="group",
        tabindex=0,
        aria_label=f"{title}. {what} The arrow keys go from mark to mark.",
        preserveAspectRatio="xMidYMid meet",
    )


def mark(tag: str, told: str, *children: Element, class_: str = "", **attributes: str | float | None) -> Element:
    """An element that tells what it stands for."""
    return element(tag, element("title", told), *children, class_=f"mark {class_}".strip(), **attributes)


def dot(x: float, y: float, radius: float, told: str, class_: str) -> Element:
    """A point that tells its value. The group is there since a circle holds nothing."""
    return mark("g", told, element("circle", cx=x, cy=y, r=radius), class_=class_)


def bar(x: float, y: float, width: float, height: float, told: str, class_: str) -> Element:
    """A rectangle that tells its value."""
    shape = element("rect", x=x, y=y, width=max(0.5, width), height=height, rx=1.5)
    return mark("g", told, shape, class_=class_)


def label(
    x: float, y: float, text: str, *, anchor: str = "start", class_: str = "label", title: str | None = None
) -> Element:
    """A text. title: all of it, where it had to be shortened."""
    told = None if title is None else element("title", title)
    return element("text", text, told, x=x, y=y, text_anchor=anchor, class_=class_)


def shortened(text: str, letters: int) -> str:
    """As much of a text as there is room for.

    >>> shortened("a very long name", 8)
    'a very …'
    """
    return text if len(text) <= letters else text[: letters - 1] + "…"


def below(scale: Scale, y: float, tell: Callable[[float], str], name: str, *, top: float) -> list[Element]:
    """An axis along the bottom, with lines up to ``top``."""
    parts = [element("line", x1=scale.start, x2=scale.end, y1=y, y2=y, class_="axis")]
    for tick in scale.ticks(6):
        x = scale(tick)
        parts.append(element("line", x1=x, x2=x, y1=top, y2=y, class_="grid"))
        parts.append(label(x, y + 19, tell(tick), anchor="middle", class_="tick"))
    middle = (scale.start + scale.end) / 2
    parts.append(label(middle, y + 48, shortened(name, 50), anchor="middle", title=name))
    return parts


def beside(scale: Scale, x: float, tell: Callable[[float], str], *, right: float) -> list[Element]:
    """An axis along the left, with lines to ``right``."""
    parts = [element("line", x1=x, x2=x, y1=scale.start, y2=scale.end, class_="axis")]
    for tick in scale.ticks(5):
        y = scale(tick)
        parts.append(element("line", x1=x, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(label(x - 6, y + 4, tell(tick), anchor="end", class_="tick"))
    return parts


def plot(children: Iterable[Element | None]) -> Element:
    """What has its place on an axis: the page's style makes it narrower on a phone, where names stand above it."""
    return element("g", *children, class_="plot")


def legend(entries: Iterable[tuple[str, str, str | None]]) -> Element:
    """What the colours stand for: a name, a class and a dash each."""
    items = [
        element(
            "li",
            element(
                "svg",
                element("line", x1=0, x2=26, y1=6, y2=6, class_=f"{class_} stroke", stroke_dasharray=dash),
                viewBox="0 0 26 12",
                class_="key",
                aria_hidden="true",
            ),
            name,
        )
        for name, class_, dash in entries
    ]
    return element("ul", *items, class_="legend")


def swatches(entries: Iterable[tuple[str, str]]) -> Element:
    """What the colours of areas stand for: a name and a class each."""
    items = [
        element(
            "li",
            element(
                "svg",
                element("g", element("rect", x=0, y=0, width=14, height=12, rx=1.5), class_=class_),
                viewBox="0 0 14 12",
                class_="key swatch",
                aria_hidden="true",
            ),
            name,
        )
        for name, class_ in entries
    ]
    return element("ul", *items, class_="legend")


def figure(svg: Element, caption: str | None, *more: Element | None, class_: str = "scroll") -> Element:
    """A drawing with what is under it. class_: ``stacked`` with a second name where the page's style folds its rows."""
    under = None if caption is None else element("figcaption", caption)
    return element("figure", element("div", svg, class_=class_), *more, under)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Element]], *, numbers: Sequence[int] = (), class_: str = ""
) -> Element:
    """A table. numbers: the columns that hold figures. class_: ``facts`` where long words may be broken."""
    aligned = dict.fromkeys(numbers, "number")
    body = [
        element("tr", *(element("td", cell, class_=aligned.get(index)) for index, cell in enumerate(row)))
        for row in rows
    ]
    titles = [element("th", one, scope="col", class_=aligned.get(index)) for index, one in enumerate(head)]
    whole = element("table", element("thead", element("tr", *titles)), element("tbody", *body), class_=class_ or None)
    return element("div", whole, class_="scroll")


def section(anchor: str, title: str, *children: Element | str | None) -> Element:
    """A part of the page, which can be linked to."""
    return element("section", element("h2", title), *children, id=anchor)


def note(text: str) -> Element:
    """A paragraph in small letters."""
    return element("p", text, class_="note")
