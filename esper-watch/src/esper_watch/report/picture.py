"""How does a run look in one picture? Its curves, and below them, on the same axis of time, what grew."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from esper_watch.report import courses, lives
from esper_watch.report.figure import WIDTH, label, looks
from esper_watch.report.markup import Element, element

if TYPE_CHECKING:
    from esper_watch.report.record import Record

ENVIRONMENTS = 3
"""Environments whose seeds are shown."""

HEAD = 26.0


def picture_of(record: Record) -> str:
    """An SVG that stands alone, in light and in dark. Of a run without a step it is empty."""
    parts: list[Element] = []
    y = HEAD
    if record.rounds:
        parts += _legend(record)
        y = _below(parts, courses.drawn(record, courses.latest(record), left=lives.LEFT), y)
        last = record.rounds[-1]
        for arm in record.arms:
            if own := record.lives_of(last, arm):
                some = dict(list(own.items())[:ENVIRONMENTS])
                y = _below(parts, lives.drawn(record, arm, some, []), y)
                parts += _stages(y + 12)
                y += HEAD
                break
    style = files("esper_watch.report").joinpath("page.css").read_text(encoding="utf-8")
    paper = element("rect", x=0, y=0, width=WIDTH, height=y, class_="paper")
    inside = "".join(one.render() for one in (paper, *parts))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {y:g}" width="{WIDTH:g}" height="{y:g}">'
    return f"{head}<style>{style} .paper {{ fill: var(--paper); }}</style>{inside}</svg>\n"


def _legend(record: Record) -> list[Element]:
    """What is measured, and the arms, side by side above the curves."""
    parts, x = [label(4, 18, f"validation {record.metric['name']}", class_="tick")], lives.LEFT
    for arm, look in looks(record.arms).items():
        parts.append(
            element("line", x1=x, x2=x + 26, y1=14, y2=14, class_=f"{look.class_} stroke", stroke_dasharray=look.dash)
        )
        parts.append(label(x + 32, 18, arm))
        x += 60 + 8 * len(arm)
    return parts


def _stages(y: float) -> list[Element]:
    """What the colours of the lives stand for, in a line."""
    parts, x = list[Element](), 8.0
    for stage, name in lives.names(untrained=False).items():
        shape = element("rect", x=x, y=y - 10, width=14, height=11, rx=1.5)
        parts += [element("g", shape, class_=f"stage-{stage.value}"), label(x + 19, y, name, class_="tick")]
        x += 34 + 6.8 * len(name)
    return [*parts, label(x, y, "✕ pruned", class_="tick")]


def _below(parts: list[Element], svg: Element, y: float) -> float:
    """Put a drawing under what is there; where the next one goes."""
    box = dict(svg.attributes)["viewBox"].split()
    width, height = float(box[2]), float(box[3])
    parts.append(
        element("g", element("svg", *svg.children, viewBox=" ".join(box), x=0, y=y, width=width, height=height))
    )
    return y + height
