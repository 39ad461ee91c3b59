"""How is a run shown in a notebook? In a few lines, two tables and a curve for each arm, from what was read of it.

Nothing is told that the run directory does not hold: of a run that has no end yet there is a curve, and no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunStarted, SeedLost, StepFinished
from esper_core.leyline.markup import Element, counted, element, notebook, table
from esper_core.runs.rows import names_of_grown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline.events import Event
    from esper_core.runs.records import RunRecord

COLOURS: Final = ("#2e7fc7", "#cf5a00", "#1f9150", "#b850a8", "#c8413f", "#7b6fd0")
"""Of the arms' curves, in the order of the arms: each stands out from white and from the dark of a notebook."""

DASHES: Final = ("none", "7 3", "2 3", "9 3 2 3")
"""Of the arms' curves: who does not see the colours tells them apart by these."""

_DRAWN: Final = 12
"""Arms that are drawn."""

_POINTS: Final = 120
"""Of a curve; a longer one is thinned out."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 460.0, 170.0, 62.0, 10.0, 22.0

_FIGURES: Final = ("n", "parameters")


@dataclass(slots=True)
class Glance:
    """What is kept of a run's events while they pass: sums, and no event."""

    started: RunStarted | None = None
    curves: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """By arm and step, the rounds one behind the other: how many environments were measured, and their sum."""
    steps: int = 0
    tests: dict[str, list[float]] = field(default_factory=dict)
    """By arm the test metric of each episode."""
    grown: dict[str, Counter[str]] = field(default_factory=dict)
    """By arm how often each was kept, and where."""
    acts: Counter[str] = field(default_factory=Counter)
    """What the governor did, and how often."""
    not_finite: int = 0
    """Values that no mean could be taken of."""
    lost: int = 0
    """Seeds that went wrong."""
    left_out: list[str] = field(default_factory=list)
    """What of the events was not read, in lines."""

    @property
    def arms(self) -> list[str]:
        """Those of which something is known, in the run's order."""
        named = [] if self.started is None else list(self.started.arms)
        return list(dict.fromkeys([*named, *self.curves, *self.tests]))

    @property
    def share_done(self) -> float | None:
        """How much of what was announced is trained, from 0 to 1; None where nothing was announced."""
        if self.started is None:
            return None
        whole = self.started.rounds * self.started.environments * self.started.steps * len(self.started.arms)
        return min(1.0, self.steps / whole) if whole else None

    def hear(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, StepFinished):
            length = 0 if self.started is None else self.started.steps
            self.steps += 1
            curve = self.curves.setdefault(event.arm, {})
            if math.isfinite(value := event.signals.validation_metric):
                point = curve.setdefault(event.round * length + event.step, [0.0, 0.0])
                point[0] += 1
                point[1] += value
            else:
                self.not_finite += 1
        elif isinstance(event, EpisodeFinished):
            self.steps += 0 if self.started is None else max(0, self.started.steps - event.steps)
            self.tests.setdefault(event.arm, []).append(event.test_metric)
            self.grown.setdefault(event.arm, Counter()).update(names_of_grown(event))
        elif isinstance(event, GovernorActed):
            self.acts[event.act] += 1
        elif isinstance(event, SeedLost):
            self.lost += 1

    def curve(self, arm: str) -> list[tuple[int, float]]:
        """The mean of the validation metric over the arm's environments, step by step; finite points alone."""
        means = [(step, total / number) for step, (number, total) in sorted(self.curves.get(arm, {}).items())]
        return [(step, mean) for step, mean in means if math.isfinite(mean)]


def headline(run: RunRecord) -> str:
    """The run in a line: its id, how it ended, and what its arms reached."""
    told = [f"Run {run.id}: {run.status}"]
    if run.results is not None:
        metric = run.results["metric"]
        arms = [f"{arm} {value_in(metric, one['test']['mean'])}" for arm, one in run.results["arms"].items()]
        told.append(f"{metric['name']} {', '.join(arms)}")
    elif run.reason:
        told.append(run.reason)
    return "; ".join(told)


def run_as_html(run: RunRecord, glance: Glance) -> str:
    """What a notebook shows of a run."""
    metric = _metric(run, glance)
    arms = _arms(run, glance, metric)
    return notebook(
        f"Run {run.id}",
        _state(run, glance),
        run.reason or None,
        arms,
        _comparisons(run, metric),
        *_curves(glance, metric),
        *_remarks(glance),
    )


def value_in(metric: Mapping[str, Any], number: float | None) -> str:
    """A figure in the metric's unit.

    >>> value_in({"unit": "%"}, 0.8125), value_in({"unit": ""}, 12.345678), value_in({"unit": "%"}, None)
    ('81.2 %', '12.35', 'unknown')
    """
    if number is None or not math.isfinite(number):
        return "unknown"
    return f"{100 * number:.1f} %" if metric.get("unit") == "%" else f"{number:.4g}"


def _metric(run: RunRecord, glance: Glance) -> Mapping[str, Any]:
    if run.results is not None:
        told: Mapping[str, Any] = run.results["metric"]
        return told
    known = None if glance.started is None else glance.started.metric
    return {"name": "metric", "unit": ""} if known is None else {"name": known.name, "unit": known.unit}


def _state(run: RunRecord, glance: Glance) -> str:
    told = [run.status, f"began {run.started:%Y-%m-%d %H:%M}"]
    if run.seconds is not None:
        told.append(f"took {run.seconds:,.0f} s")
    if run.summary is None and glance.share_done is not None:
        told.append(f"{100 * glance.share_done:.0f} % trained")
    if glance.started is not None:
        each = [counted(glance.started.environments, "environment"), counted(glance.started.steps, "step")]
        told += [*([] if glance.started.rounds == 1 else [counted(glance.started.rounds, "round")]), *each]
    return " · ".join(told)


def _arms(run: RunRecord, glance: Glance, metric: Mapping[str, Any]) -> Element | None:
    """What each arm reached: with intervals as the summary has them, without while there is none."""
    head = ["arm", f"test {metric['name']}", "95 % interval", "n", "parameters", "grew on average"]
    if run.results is not None:
        rows = []
        for arm, one in run.results["arms"].items():
            test = one["test"]
            ends = (value_in(metric, test["ci_low"]), value_in(metric, test["ci_high"]))
            interval = "unknown" if test["ci_low"] is None else " to ".join(ends)
            figures = (value_in(metric, test["mean"]), interval, str(test["n"]), f"{one['params']:,.0f}")
            rows.append((arm, *figures, _grown(glance, arm)))
        return table(head, rows, numbers=_FIGURES)
    known = [(arm, values) for arm in glance.arms if (values := glance.tests.get(arm))]
    if not known:
        return None
    so_far = [
        (arm, value_in(metric, sum(values) / len(values)), str(len(values)), _grown(glance, arm))
        for arm, values in known
    ]
    return table(["arm", f"test {metric['name']} so far", "n", "grew on average"], so_far, numbers=_FIGURES)


def _grown(glance: Glance, arm: str) -> str:
    episodes = len(glance.tests.get(arm, ()))
    if not episodes:
        return "unknown"
    grown = glance.grown[arm].most_common()
    told = [f"{number / episodes:.2g} × {name}" for name, number in grown[:4]]
    return ", ".join([*told, *(["…"] if len(grown) > 4 else [])]) or "nothing"


def _comparisons(run: RunRecord, metric: Mapping[str, Any]) -> Element | None:
    if run.results is None or not run.results["comparisons"]:
        return None
    rows = []
    adjusted = any(one.get("p_holm") is not None for one in run.results["comparisons"])
    for one in run.results["comparisons"]:
        p = one["p"] if one.get("p_holm") is None else one["p_holm"]
        ends = [_difference(metric, one[end]).removesuffix(" points") for end in ("ci_low", "ci_high")]
        interval = "unknown" if one["ci_low"] is None or one["ci_high"] is None else " to ".join(ends)
        chance = "unknown" if p is None else "below 0.0001" if p < 1e-4 else f"{p:.2g}"
        why = f": {one['why']}" if one.get("why") else ""
        by = _difference(metric, one["difference"])
        rows.append((one["a"], one["b"], by, interval, str(one["n"]), chance, f"{one['verdict']}{why}"))
    chance = "p, adjusted" if adjusted else "p"
    return table(["", "against", "by", "95 % interval", "n", chance, "verdict"], rows, numbers=(*_FIGURES, chance))


def _difference(metric: Mapping[str, Any], number: float | None) -> str:
    if number is None or not math.isfinite(number):
        return "unknown"
    return f"{100 * number:+.1f} points" if metric.get("unit") == "%" else f"{number:+.4g}"


def _remarks(glance: Glance) -> list[str]:
    told = []
    if glance.acts:
        acts = ", ".join(f"{number:,} × {act}" for act, number in glance.acts.most_common(6))
        told.append(f"The governor acted: {acts}.")
    if glance.lost:
        told.append(f"Went wrong and was taken out: {counted(glance.lost, 'seed')}.")
    if glance.not_finite:
        told.append(f"Not drawn: {counted(glance.not_finite, 'value')}, not finite.")
    return [*told, *(f"Not read: {line}" for line in glance.left_out[:6])]


def _curves(glance: Glance, metric: Mapping[str, Any]) -> list[Element]:
    """The drawing, and what its lines stand for; nothing where there are not two points to join."""
    curves = [(arm, curve) for arm in glance.arms if len(curve := _thinned(glance.curve(arm))) > 1]
    drawn = curves[:_DRAWN]
    if not drawn:
        return []
    title = f"Validation {metric['name']}, mean over environments, by step"
    what = [title + (f"; {_DRAWN} of {len(curves)} arms" if len(curves) > _DRAWN else "")]
    lines, keys = [], []
    across = _scale([step for _, curve in drawn for step, _ in curve], _LEFT, _WIDTH - 6)
    up = _scale([value for _, curve in drawn for _, value in curve], _HEIGHT - _BOTTOM, _TOP)
    for number, (arm, curve) in enumerate(drawn):
        line: dict[str, str | float] = {"stroke": COLOURS[number % len(COLOURS)], "stroke_width": 2}
        line["stroke_dasharray"] = DASHES[number % len(DASHES)]
        points = " ".join(f"{across.at(step):.1f},{up.at(value):.1f}" for step, value in curve)
        lines.append(element("polyline", points=points, fill="none", **line))
        sample = element("line", x1=0, x2=26, y1=5, y2=5, **line)
        swatch = element("svg", sample, width=26, height=10, role="presentation")
        keys.append(element("span", swatch, f" {arm}", style="margin-right:16px;white-space:nowrap"))
    drawing = element(
        "svg",
        element("title", f"{title}: {', '.join(_in_words(arm, curve, metric) for arm, curve in drawn)}"),
        *_axes(across, up, metric),
        *lines,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        style="max-width:100%;height:auto;display:block",
    )
    return [element("div", *what, style="margin-top:6px"), drawing, element("div", *keys)]


def _in_words(arm: str, curve: Sequence[tuple[int, float]], metric: Mapping[str, Any]) -> str:
    return f"{arm} from {value_in(metric, curve[0][1])} to {value_in(metric, curve[-1][1])}"


def _thinned(curve: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Every so-manieth point, and the last one."""
    every = math.ceil(len(curve) / _POINTS)
    return curve if every < 2 else [*curve[:-1:every], curve[-1]]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From numbers to places in the drawing."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        # Halves, for the distance of two numbers can be larger than the largest number.
        span = self.high / 2 - self.low / 2
        share = 0.5 if span == 0 else (value / 2 - self.low / 2) / span
        return self.start + share * (self.end - self.start)


def _scale(values: Sequence[float], start: float, end: float) -> _Scale:
    return _Scale(min(values), max(values), start, end)


def _axes(across: _Scale, up: _Scale, metric: Mapping[str, Any]) -> list[Element]:
    """Two lines, and what stands at their ends."""
    ink: dict[str, str | float] = {"stroke": "currentColor", "stroke_opacity": 0.5, "stroke_width": 1}
    style = "font-size:11px;font-family:sans-serif"

    def label(text: str, x: float, y: float, anchor: str) -> Element:
        return element("text", text, x=x, y=y, text_anchor=anchor, fill="currentColor", style=style)

    bottom = _HEIGHT - _BOTTOM
    values = [up.low, up.high] if up.low < up.high else [up.low]
    steps = [(across.low, "start"), (across.high, "end")] if across.low < across.high else [(across.low, "middle")]
    return [
        element("line", x1=_LEFT, x2=_LEFT, y1=_TOP, y2=bottom, **ink),
        element("line", x1=_LEFT, x2=_WIDTH - 6, y1=bottom, y2=bottom, **ink),
        *(label(value_in(metric, value), _LEFT - 6, up.at(value) + 4, "end") for value in values),
        *(label(f"step {step:,.0f}", across.at(step), _HEIGHT - 6, anchor) for step, anchor in steps),
    ]
