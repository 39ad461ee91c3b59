"""How did the arms end? A table with intervals, and every environment as a dot; and what that took in parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from esper_core import mean_interval
from esper_core.leyline.constants import CONFIDENCE
from esper_watch.report.figure import (
    UNDER,
    WIDTH,
    below,
    beside,
    dot,
    drawing,
    figure,
    label,
    legend,
    looks,
    mark,
    note,
    section,
    shortened,
    table,
)
from esper_watch.report.glossary import CAPACITY, kinds_of
from esper_watch.report.markup import Element, element
from esper_watch.report.scale import LARGEST, around
from esper_watch.report.wording import UNKNOWN, count, interval, tick, value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.events import EpisodeFinished
    from esper_watch.report.figure import Look
    from esper_watch.report.record import Record
    from esper_watch.report.scale import Scale
    from esper_watch.report.wording import Metric

ROW = 34.0
SHORT = 10
"""Letters of a name that have room in larger letters, too."""

LEFT, RIGHT = 150.0, 24.0
NONE = "–"
"""What stands in a table where there is nothing that could be told."""

SHOWN_DOTS = 400
"""Networks of an arm that are drawn one by one, the first of them."""


@dataclass(frozen=True, slots=True)
class ArmEnd:
    """The episodes of one arm that came to their end, and their mean on the test split with its interval.

    The mean is no number where one of the episodes has none.
    """

    name: str
    look: Look
    episodes: Sequence[EpisodeFinished]
    mean: float
    low: float | None
    high: float | None

    @property
    def parameters(self) -> float:
        """Mean over the episodes."""
        return fmean(one.parameters for one in self.episodes)

    @property
    def dots(self) -> list[EpisodeFinished]:
        """The episodes that can be drawn one by one."""
        return [one for one in self.episodes if abs(one.test_metric) < LARGEST][:SHOWN_DOTS]

    @property
    def reward(self) -> float | None:
        """Mean over the episodes; None where one is unknown."""
        known = [one.reward for one in self.episodes if one.reward is not None]
        return fmean(known) if len(known) == len(self.episodes) else None


def ends_of(record: Record) -> list[ArmEnd]:
    """The arms of which an episode ended, in the run's order."""
    found = []
    for arm, look in looks(record.arms).items():
        episodes = [one for one in record.episodes if one.arm == arm]
        if episodes:
            values = [one.test_metric for one in episodes]
            if all(abs(value) < LARGEST for value in values):
                told = mean_interval(values, CONFIDENCE, share=record.metric["unit"] == "%")
                found.append(ArmEnd(arm, look, episodes, told.mean, told.low, told.high))
            else:
                found.append(ArmEnd(arm, look, episodes, math.nan, None, None))
    return found


def arms(record: Record) -> Element | None:
    """The arms side by side: a drawing of their intervals, and the table."""
    ends = ends_of(record)
    if not ends:
        return None
    metric = record.metric
    better = "higher is better" if metric["direction"] == "up" else "lower is better"
    rows = [
        (
            end.name,
            value(metric, end.mean),
            interval(metric, end.low, end.high),
            str(len(end.episodes)),
            f"{end.parameters:,.0f}",
            _kept(end),
            _reward(end),
        )
        for end in ends
    ]
    head = ("arm", f"test {metric['name']}", "95 % interval", "n", "parameters", "seeds kept", "reward")
    return section(
        "arms",
        "The arms",
        figure(_intervals(record, ends), f"Mean on the test split, 95 % interval; {better}. Each ring a network."),
        table(head, rows, numbers=(1, 2, 3, 4, 5, 6)),
        kinds_of(end.name for end in ends),
        note("Means over networks; n: how many. The test split was read once, at the end of each."),
    )


def _kept(end: ArmEnd) -> str:
    """A control by capacity has from the start what it has: nothing was grown in it that could have been kept."""
    return NONE if end.name.startswith(CAPACITY) else f"{fmean(one.fossils for one in end.episodes):.3g}"


def _reward(end: ArmEnd) -> str:
    if end.reward is None:
        return NONE if end.name.startswith(CAPACITY) else UNKNOWN
    return f"{end.reward:+.1f}"


def _intervals(record: Record, ends: Sequence[ArmEnd]) -> Element:
    metric = record.metric
    numbers = [one.test_metric for end in ends for one in end.episodes]
    numbers += [edge for end in ends for edge in (end.low, end.high) if edge is not None]
    bottom = 12 + ROW * len(ends)
    scale = around(numbers, start=LEFT, end=WIDTH - RIGHT)
    parts = below(scale, bottom, lambda one: tick(metric, one), f"test {metric['name']}", top=6)
    for number, end in enumerate(ends):
        y = 12 + ROW * (number + 0.5)
        room = "label" if len(end.name) <= SHORT else "label long"
        parts.append(label(LEFT - 10, y + 4, shortened(end.name, 17), anchor="end", class_=room, title=end.name))
        for one in end.dots:
            told = _single(metric, end, one)
            parts.append(dot(scale(one.test_metric), y, 3.5, told, f"{end.look.class_} single"))
        if math.isfinite(end.mean):
            parts.append(_whisker(metric, end, scale, y))
    what = "; ".join(f"{end.name} {value(metric, end.mean)}" for end in ends)
    return drawing("The arms at the end", f"Means on the test split: {what}.", parts, height=bottom + UNDER)


def _single(metric: Metric, end: ArmEnd, one: EpisodeFinished) -> str:
    return f"{end.name}, network {one.seed}: {value(metric, one.test_metric)}, {one.parameters:,} parameters"


def _whisker(metric: Metric, end: ArmEnd, scale: Scale, y: float) -> Element:
    low, high = (scale(end.mean if edge is None else edge) for edge in (end.low, end.high))
    told = f"{end.name}: {value(metric, end.mean)}, 95 % interval {interval(metric, end.low, end.high)}"
    line = element("line", x1=low, x2=high, y1=y, y2=y, class_="whisker")
    ends = [element("line", x1=at, x2=at, y1=y - 6, y2=y + 6, class_="whisker") for at in (low, high)]
    middle = element("circle", cx=scale(end.mean), cy=y, r=6)
    return mark("g", told, line, *ends, middle, class_=end.look.class_)


def parameters(record: Record) -> Element | None:
    """The metric against the parameters of the network: what growing bought, and what it cost."""
    ends = [end for end in ends_of(record) if math.isfinite(end.mean)]
    if len({one.parameters for end in ends for one in end.episodes}) < 2:
        return None
    metric, bottom, left = record.metric, 300.0, 84.0
    across = around([one.parameters for end in ends for one in end.episodes], start=left, end=WIDTH - RIGHT)
    up = around([one.test_metric for end in ends for one in end.episodes], start=bottom, end=14.0)
    parts = below(across, bottom, lambda one: f"{one:,.0f}", "parameters", top=14)
    parts += beside(up, left, lambda one: tick(metric, one), right=WIDTH - RIGHT)
    front = _front(ends, upwards=metric["direction"] == "up")
    points = " ".join(f"{across(end.parameters):.1f},{up(end.mean):.1f}" for end in front)
    parts.append(element("polyline", points=points, class_="front"))
    for end in ends:
        for one in end.dots:
            told = _single(metric, end, one)
            parts.append(dot(across(one.parameters), up(one.test_metric), 3.5, told, f"{end.look.class_} single"))
    for end in ends:
        told = f"{end.name}: {value(metric, end.mean)} with {end.parameters:,.0f} parameters, means"
        parts.append(dot(across(end.parameters), up(end.mean), 7, told, end.look.class_))
    named = ", ".join(end.name for end in front)
    return section(
        "parameters",
        "What it cost",
        figure(
            drawing("Metric against parameters", f"On the front: {named}.", parts, height=bottom + UNDER),
            f"Test {metric['name']} against parameters; full dots are means, rings single networks. The line joins "
            f"arms of which no other is both better and smaller: {named}.",
            legend((end.name, end.look.class_, end.look.dash) for end in ends),
        ),
        note(_cost(ends)),
    )


def _cost(ends: Sequence[ArmEnd]) -> str:
    host = {one.host_parameters for end in ends for one in end.episodes}
    largest = max(ends, key=lambda end: end.parameters)
    if len(host) != 1 or not (own := host.pop()):
        return ""
    more = 100 * (largest.parameters / own - 1)
    return f"The host alone has {count(own, 'parameter')}; the largest arm, {largest.name}, has {more:.0f} % more."


def _front(ends: Sequence[ArmEnd], *, upwards: bool) -> list[ArmEnd]:
    """The arms of which no other is at least as good and as small, and better in one; from small to large."""
    sign = 1.0 if upwards else -1.0

    def beaten(end: ArmEnd) -> bool:
        own = sign * end.mean, -end.parameters
        return any(
            other != own and all(a >= b for a, b in zip(other, own, strict=True))
            for other in ((sign * one.mean, -one.parameters) for one in ends)
        )

    return sorted((end for end in ends if not beaten(end)), key=lambda end: end.parameters)
