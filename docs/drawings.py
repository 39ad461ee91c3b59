"""The pictures of the first page and of the gallery: one SVG of a network that grows, beside the learning curves.

CSS animates it; there is no script.

Everything is drawn once for each state, and shown from one step to another. Without animation, as readers who prefer
reduced motion have it, the last step is shown.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

from esper_watch import figures, formats
from esper_watch.formats import cut, format_value
from esper_watch.growth import picture
from esper_watch.history import TWIN, is_control
from esper_watch.pages import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.leyline import Metric
    from esper_watch.figures import Chart, Point
    from esper_watch.growth import Frame, Lane
    from esper_watch.history import History, SeedLife
    from esper_watch.sections import Report

SECONDS: Final = 13.0
GROWING: Final = 0.78
"""Share of the time in which the steps pass. Then the last one is shown for a while."""

TIMES: Final = 3
"""How often it plays: what moves for long keeps readers from the text beside it."""

LEFT, TOP, CURVES, HEAD = 352.0, 56.0, 368.0, 14.0
"""Left edge of the curves, top of both drawings, width of the curves, and baseline of the head."""

_LINE: Final = 20.0
"""Height of a line of the text that changes with each step."""


class Span(NamedTuple):
    """When something is seen: from one share of the time to another, in percent; ``name`` names its animation."""

    name: str
    start: float
    end: float

    @property
    def stays(self) -> bool:
        """Whether it is seen until the end, and without animation."""
        return self.end >= 100.0


class Shown(NamedTuple):
    """A state of a lane, and when it is seen."""

    span: Span
    lane: Lane
    frame: Frame


def render(**values: Any) -> str:
    """Return the drawing, for which the templates of reports have the style and the parts of charts."""
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(Path(__file__).parent), PackageLoader("esper_watch")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    environment.globals.update({name: value for name, value in vars(formats).items() if callable(value)})
    return environment.get_template("growing.svg").render(**values)


def growing_picture(report: Report, *, animated: bool = True) -> str:
    """Return an SVG of a network that kept a seed, in the arm that ended best, or of another one; empty without any.

    Args:
        report: The run.
        animated: Whether it shows each step, beside the curves of this network and its twin. Otherwise it shows the
            last step, beside the mean curves of all networks.
    """
    history, metric = report.history, report.metric
    chosen = _network(history)
    if chosen is None:
        return render(chart=None)
    arm, seed, lives = chosen
    steps = history.steps_per_episode
    drawn = picture(history, arm, seed, lives, report.incubation)
    curves = _own_curves(history, arm, seed) if animated else _mean_curves(history, metric)
    styles = {name: style for name, style in figures.arm_styles(history.arms).items() if name in curves}
    chart = figures.curves_chart(metric, curves, styles, steps, left=64.0, width=CURVES)
    if chart.x is not None:
        less = ", less is better" if metric.direction == "down" else ""
        title = f"validation {metric.name} of network {seed}" if animated else f"mean validation {metric.name}"
        chart = replace(chart, x=replace(chart.x, title=f"{title} by step{less}"))
    shown = [state for state in _shown(drawn, steps) if animated or state.span.stays]
    rings = [ring for ring in _rings(drawn, lives, steps) if animated or ring[0].stays]
    lines = list(_lines(metric, curves, steps))[-steps if animated else -1 :]
    return render(
        chart=chart,
        drawn=drawn,
        shown=shown,
        rings=rings,
        spans=[state.span for state in shown] + [span for span, *_ in rings],
        lines=lines,
        line=_LINE,
        seconds=SECONDS,
        growing=100 * GROWING,
        times=TIMES,
        animated=animated,
        title=f"Network {seed} of {arm}" + (", step by step" if animated else ""),
        description=f"{drawn.description} {chart.description}",
        legend=[
            (number * CURVES / max(2, len(styles)), *named_style) for number, named_style in enumerate(styles.items())
        ],
        note=f"{arm}, network {seed}",
        left=LEFT,
        top=TOP,
        head=HEAD,
        width=LEFT + CURVES,
        height=TOP + max(drawn.height, chart.height),
    )


def _own_curves(history: History, arm: str, seed: int) -> dict[str, list[Point]]:
    """Return the curves of one network and its twin: what is seen beside a network is what it measured itself."""
    last = history.rounds[-1]
    courses = {name: history.courses(last, name, 10**6).get(seed, {}) for name in (arm, TWIN) if name in history.arms}
    curves = {name: {step: [value] for step, value in course.items()} for name, course in courses.items()}
    return {name: points for name, curve in curves.items() if (points := figures.curve_points(curve))}


def _mean_curves(history: History, metric: Metric) -> dict[str, list[Point]]:
    """Return the mean curves of all growing arms and the twin."""
    arms = [name for name in history.arms if not is_control(name) or name == TWIN]
    return {name: points for name, points in figures.latest_curves(history, metric).items() if name in arms}


def _network(history: History) -> tuple[str, int, list[SeedLife]] | None:
    """Return arm, seed and seeds' lives of the network to draw, which is in the latest round."""
    rounds = history.rounds
    reached = {arm: history.mean_metric(arm)[-1:] for arm in history.arms if not is_control(arm)}
    grown = [
        (arm, seed, lives)
        for arm in sorted(reached, key=lambda arm: reached[arm], reverse=history.metric.direction == "up")
        if rounds
        for seed, lives in history.seeds_by_environment(rounds[-1], arm).items()
    ]
    return next((candidate for candidate in grown if any(life.kept for life in candidate[2])), next(iter(grown), None))


def _share(step: float, steps: int) -> float:
    """Return when a step is reached, in percent of the time."""
    return round(100 * GROWING * min(step, steps) / steps, 2)


def _shown(drawn: Chart, steps: int) -> Iterator[Shown]:
    """Yield the states of all lanes, each until the next one of its lane."""
    for number, lane in enumerate(drawn.data["lanes"]):
        starts = [frame.start for frame in lane.frames]
        for place, frame in enumerate(lane.frames):
            if frame.stage:
                end = 100.0 if place + 1 == len(starts) else _share(starts[place + 1], steps)
                yield Shown(Span(f"s{number}-{place}", _share(frame.start, steps), end), lane, frame)


def _rings(drawn: Chart, lives: Sequence[SeedLife], steps: int) -> Iterator[tuple[Span, float, str, bool]]:
    """Yield the rings of the slots: empty until a seed is kept, then full."""
    for number, (y, slot, _, kept) in enumerate(drawn.data["rings"]):
        at = min((life.changes[-1].step + 1 for life in lives if life.kept and life.slot == slot), default=0)
        if kept:
            yield Span(f"r{number}-full", _share(at, steps), 100.0), y, cut(slot, 9), True
        yield Span(f"r{number}-empty", 0.0, _share(at, steps) if kept else 100.0), y, cut(slot, 9), False


def _lines(metric: Metric, curves: dict[str, list[Point]], steps: int) -> Iterator[str]:
    """Yield what each step reached, in words."""
    latest = dict.fromkeys(curves, "")
    by_step = {name: {point.at: point.mean for point in points} for name, points in curves.items()}
    for step in range(steps):
        for name, means in by_step.items():
            if step in means:
                latest[name] = f"{cut(name, 36 // len(curves))} {format_value(metric, means[step])}"
        reached = ", ".join(filter(None, latest.values()))
        yield f"step {step + 1}" + (f": {reached}" if reached else "")
