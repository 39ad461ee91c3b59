"""How did the metric go while the networks grew? A curve for each arm with a band, the twin's among them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from esper_core import mean_interval
from esper_core.leyline.constants import CONFIDENCE
from esper_watch.report.figure import UNDER, WIDTH, below, beside, drawing, figure, legend, looks, mark, note, section
from esper_watch.report.markup import Element, element
from esper_watch.report.scale import LARGEST, Scale, around
from esper_watch.report.wording import count, interval, tick, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_watch.report.figure import Look
    from esper_watch.report.record import Record

LEFT, RIGHT, TOP, BOTTOM = 84.0, 24.0, 14.0, 300.0
MOST_POINTS = 200
"""Steps of a curve that are drawn; of more every so many is left out."""


@dataclass(frozen=True, slots=True)
class Point:
    """The mean at a step with its interval, and between which values of so many environments it lies."""

    step: int
    mean: float
    low: float
    high: float
    n: int
    least: float
    most: float


def courses(record: Record) -> Element | None:
    """The curves of the latest round, and round by round where there are several."""
    if not record.rounds:
        return None
    curves = latest(record)
    metric, own = record.metric, looks(record.arms)
    caption = f"Validation {metric['name']} by decision step, with the 95 % interval of the mean over networks"
    if len(record.rounds) > 1:
        caption += f", in the last of {count(len(record.rounds), 'round')}"
    return section(
        "courses",
        "How it went",
        figure(
            drawn(record, curves),
            f"{caption}.",
            legend((arm, own[arm].class_, own[arm].dash) for arm in curves),
        ),
        note("Validation steers, and is read in every step; what counts at the end is the test split" + _where(record)),
        _survivors(curves),
        _by_round(record) if len(record.rounds) > 1 else None,
    )


def _where(record: Record) -> str:
    return ", above." if record.episodes else ", of which nothing is known yet."


def _survivors(curves: Mapping[str, Sequence[Point]]) -> Element | None:
    """Where a curve is a mean over fewer networks than it began with: its end is not that of the same networks."""
    fewer = [
        f"{arm} from {points[0].n} to {points[-1].n}, until step {points[-1].step + 1}"
        for arm, points in curves.items()
        if points[-1].n < points[0].n or points[-1].step < max(own[-1].step for own in curves.values())
    ]
    if not fewer:
        return None
    return note(f"Networks without a figure are left out, as are those that ended early: {'; '.join(fewer)}.")


def latest(record: Record) -> dict[str, list[Point]]:
    """The curve of each arm in the latest round."""
    last = record.rounds[-1]
    share = record.metric["unit"] == "%"
    curves = {arm: points_of(record.curves.get((last, arm), {}), share=share) for arm in record.arms}
    return {arm: points for arm, points in curves.items() if points}


def points_of(curve: Mapping[int, Mapping[int, float]], *, share: bool = False) -> list[Point]:
    """The points of a curve, thinned out where it has very many. share: as for ``mean_interval``."""
    steps = sorted(curve)
    every = -(-len(steps) // MOST_POINTS) if steps else 1
    picked = [step for index, step in enumerate(steps) if index % every == 0 or step == steps[-1]]
    found = []
    for step in picked:
        values = [value for value in curve[step].values() if abs(value) < LARGEST]
        if values:
            told = mean_interval(values, CONFIDENCE, share=share)
            low, high = (told.mean if edge is None else edge for edge in (told.low, told.high))
            found.append(Point(step, told.mean, low, high, told.n, min(values), max(values)))
    return found


def drawn(record: Record, curves: Mapping[str, Sequence[Point]], *, left: float = LEFT) -> Element:
    """The curves. What was measured after a step stands where the next one begins."""
    metric, own = record.metric, looks(record.arms)
    every = [point for points in curves.values() for point in points]
    across = Scale(0.0, float(max(1, record.steps)), left, WIDTH - RIGHT)
    # A band of two networks may be wider than anything that was measured: it is cut off at the edge.
    up = around([edge for point in every for edge in (point.least, point.most)], start=BOTTOM, end=TOP, room=0.04)
    parts = below(across, BOTTOM, lambda step: f"{step:g}", "decision step", top=TOP)
    parts += beside(up, left, lambda one: tick(metric, one), right=WIDTH - RIGHT)
    for arm, points in curves.items():
        parts.append(_band(points, across, up, own[arm]))
    for arm, points in curves.items():
        line = " ".join(f"{across(point.step + 1):.1f},{up(point.mean):.1f}" for point in points)
        parts.append(element("polyline", points=line, class_=f"{own[arm].class_} line", stroke_dasharray=own[arm].dash))
    parts += _columns(record, curves, across)
    what = "; ".join(f"{arm} ends at {value(metric, points[-1].mean)}" for arm, points in curves.items())
    return drawing("Learning curves", f"{what}.", parts, height=BOTTOM + UNDER)


def _band(points: Sequence[Point], across: Scale, up: Scale, look: Look) -> Element:
    there = [f"{across(point.step + 1):.1f},{up(point.high):.1f}" for point in points]
    back = [f"{across(point.step + 1):.1f},{up(point.low):.1f}" for point in reversed(points)]
    return element("polygon", points=" ".join(there + back), class_=f"{look.class_} band")


def _columns(record: Record, curves: Mapping[str, Sequence[Point]], across: Scale) -> list[Element]:
    """What all curves have at a step, told where a pointer rests above it."""
    by_step: dict[int, list[str]] = {}
    for arm, points in curves.items():
        for point in points:
            known = f"{interval(record.metric, point.low, point.high)}, n = {point.n}"
            told = f"{arm} {value(record.metric, point.mean)} ({known})"
            by_step.setdefault(point.step, []).append(told)
    width = max(1.0, (across.end - across.start) / max(1, len(by_step)))
    return [
        mark(
            "g",
            f"after {count(step + 1, 'step')}: {'; '.join(told)}",
            element("rect", x=across(step + 1) - width / 2, y=TOP, width=width, height=BOTTOM - TOP),
            class_="column",
        )
        for step, told in sorted(by_step.items())
    ]


def _by_round(record: Record) -> Element | None:
    """The mean on the test split round by round: where a policy learns, this is what it learnt."""
    metric, own = record.metric, looks(record.arms)
    ends: dict[str, dict[int, list[float]]] = {}
    for one in record.episodes:
        if abs(one.test_metric) < LARGEST:
            ends.setdefault(one.arm, {}).setdefault(one.round, []).append(one.test_metric)
    curves = {arm: [_mean(round_, values) for round_, values in sorted(of.items())] for arm, of in ends.items()}
    every = [point for points in curves.values() for point in points]
    if len({point.step for point in every}) < 2:
        return None
    across = around([point.step for point in every], start=LEFT, end=WIDTH - RIGHT, room=0.02)
    up = around([point.mean for point in every], start=BOTTOM, end=TOP)
    parts = below(across, BOTTOM, lambda step: f"{step:g}", "round", top=TOP)
    parts += beside(up, LEFT, lambda one: tick(metric, one), right=WIDTH - RIGHT)
    for arm, points in curves.items():
        line = " ".join(f"{across(point.step):.1f},{up(point.mean):.1f}" for point in points)
        parts.append(element("polyline", points=line, class_=f"{own[arm].class_} line", stroke_dasharray=own[arm].dash))
    parts += [
        element(
            "g",
            element("title", f"round {point.step}, {arm}: {value(metric, point.mean)}"),
            element("circle", cx=across(point.step), cy=up(point.mean), r=3),
            class_=f"mark {own[arm].class_}",
        )
        for arm, points in curves.items()
        for point in points
    ]
    svg = drawing("Round by round", "Means on the test split at the end of each round.", parts, height=BOTTOM + UNDER)
    return figure(svg, f"Mean test {metric['name']} of each round.")


def _mean(place: int, values: Sequence[float]) -> Point:
    mean = fmean(values)
    return Point(place, mean, mean, mean, len(values), mean, mean)
