"""Charts of a report: everything is drawn where the axes say, from the numbers of the run."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from xml.dom import minidom

import pytest

from esper_core.leyline import Cause, Metric, Reason, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.events import Event, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import encode
from esper_watch.figures import Z_95
from esper_watch.history import SeedGain, SeedLife
from esper_watch.report import read_report, report_page
from esper_watch.sections import Report
from tests.support.html_pages import typed
from tests.support.run_folders import stage_changed

CLOSE = 0.11
"""Positions are rounded to a tenth."""

T = {2: 12.7062, 4: 3.1824, 8: 2.3646}
"""Two-sided 95 % quantiles of Student's t by the number of networks, from a table."""

Values = Mapping[str, Mapping[int, Sequence[float]]]
"""Measurements of each network, by arm and step. A shorter row means that the last networks have ended."""

Place = tuple[float, float]


def smooth(networks: int, *, top: float, spread: float, steps: int = 6) -> dict[int, list[float]]:
    """Return a rising curve, a little different for each network."""
    means = {step: top * (1 - math.exp(-(step + 1) / 3)) for step in range(steps)}
    waves = {step: [math.sin(7.0 * seed + step * seed) for seed in range(networks)] for step in range(steps)}
    return {step: [means[step] + spread * wave for wave in waves[step]] for step in range(steps)}


def metric_of(unit: str) -> Metric:
    return Metric("accuracy" if unit else "score", "up", unit)


def events_of(values: Values, metric: Metric, rounds: int = 1) -> Iterator[Event]:
    """Return the events of a run that measured this in its last round, and something else before."""
    steps = 1 + max(step for curve in values.values() for step in curve)
    networks = max(len(row) for curve in values.values() for row in curve.values())
    yield RunStarted(run="r", arms=tuple(values), rounds=rounds, environments=networks, steps=steps, metric=metric)
    slots = (SlotSignals("early", SlotState.FREE, 0),)
    for round_ in range(rounds):
        for arm, curve in values.items():
            for step, row in curve.items():
                for seed, number in enumerate(row):
                    value = number if round_ == rounds - 1 else 0.01
                    signals = Signals(step, 1.0, 1.0, value, 9, 9, slots)
                    yield StepFinished(round=round_, arm=arm, seed=seed, step=step, signals=signals)
    yield RunFinished(status="done")


def svg_of(page: str, section: str) -> minidom.Element:
    """Return the first chart of a section."""
    (part,) = re.findall(rf'<section id="{section}">.*?</section>', page, flags=re.DOTALL)
    root = minidom.parseString(re.findall(r"<svg viewBox=\"0 0 720 .*?</svg>", part, flags=re.DOTALL)[0])
    assert root.documentElement is not None
    return root.documentElement


def page_with(folder: Path, events: Iterator[Event] | Sequence[Event]) -> str:
    (folder / "events.jsonl").write_text("".join(f"{encode(event)}\n" for event in events), encoding="utf-8")
    return report_page(read_report(folder))


@dataclass(frozen=True)
class Axis:
    """Two figures beside an axis and their positions: this is how a reader finds the position of a number."""

    figures: tuple[float, float]
    places: tuple[float, float]
    ends: tuple[float, float]

    def __call__(self, number: float) -> float:
        (low, high), (first, last) = self.figures, self.places
        place = first + (number - low) / (high - low) * (last - first)
        return min(max(place, min(self.ends)), max(self.ends))


def of_class(root: minidom.Element, tag: str, class_: str) -> list[minidom.Element]:
    """Return the elements below another one with this tag, or any, and this class."""
    return [shape for shape in root.getElementsByTagName(tag) if class_ in shape.getAttribute("class").split()]


class Curves:
    """The learning curves: both axes, and lines and bands in the order of the arms."""

    def __init__(self, page: str) -> None:
        self.root = root = svg_of(page, "courses")
        across, beside = of_class(root, "line", "axis")
        ticks = of_class(root, "text", "tick")
        self.across = self._axis("x", across, [tick for tick in ticks if tick.getAttribute("text-anchor") == "middle"])
        self.up = self._axis("y", beside, [tick for tick in ticks if tick.getAttribute("text-anchor") == "end"])
        self.lines = self._shapes("polyline", "line")
        self.bands = self._shapes("polygon", "band")

    def _axis(self, way: str, line: minidom.Element, ticks: list[minidom.Element]) -> Axis:
        """Figures of a vertical axis stand four pixels below their grid line."""
        positions = [(figure(tick), float(tick.getAttribute(way)) - (4 if way == "y" else 0)) for tick in ticks]
        (low, first), (high, last) = min(positions), max(positions)
        ends = (float(line.getAttribute(f"{way}1")), float(line.getAttribute(f"{way}2")))
        assert len(positions) >= 2, "an axis needs two figures"
        assert all(min(ends) - CLOSE <= place <= max(ends) + CLOSE for _, place in positions)
        return Axis((low, high), (first, last), ends)

    def _shapes(self, tag: str, class_: str) -> list[list[Place]]:
        points = [shape.getAttribute("points") for shape in of_class(self.root, tag, class_)]
        pairs = [re.findall(r"([-\d.]+),([-\d.]+)", text) for text in points]
        return [[(float(x), float(y)) for x, y in shape] for shape in pairs]


def figure(tick: minidom.Element) -> float:
    """Return the number of a figure beside an axis."""
    assert tick.firstChild is not None
    text = typed(str(tick.firstChild.data))
    return float(text.removesuffix(" %")) / 100 if text.endswith("%") else float(text)


def interval_of(row: Sequence[float], unit: str) -> tuple[float, float, float]:
    """Return low end, mean and high end by the formula: mean ± t · s / √n, a share from 0 to 1."""
    finite = [value for value in row if math.isfinite(value)]
    mean = fmean(finite)
    if len(finite) == 1:
        return mean, mean, mean
    half = T[len(finite)] * stdev(finite) / math.sqrt(len(finite))
    edges = (0.0, 1.0) if unit == "%" else (-math.inf, math.inf)
    return max(edges[0], mean - half), mean, min(edges[1], mean + half)


CURVES: dict[str, tuple[Values, str]] = {
    "eight networks": ({"grown": smooth(8, top=0.8, spread=0.03), "twin": smooth(8, top=0.5, spread=0.02)}, "%"),
    "a score that is no share": (
        {"grown": smooth(4, top=-30.0, spread=2.0), "twin": smooth(4, top=12.0, spread=5.0)},
        "",
    ),
    "networks that ended early or have no figure": (
        {
            "grown": {step: row[: 4 if step < 3 else 2] for step, row in smooth(8, top=0.8, spread=0.03).items()},
            "twin": {step: [*row, *([math.nan] * 4)] for step, row in smooth(4, top=0.5, spread=0.02, steps=4).items()},
        },
        "%",
    ),
    "a single network": ({"grown": smooth(1, top=0.8, spread=0.0)}, "%"),
    "two networks, whose band leaves the drawing": ({"grown": smooth(2, top=0.6, spread=0.3)}, "%"),
}


@pytest.mark.parametrize(("values", "unit"), CURVES.values(), ids=CURVES.keys())
def test_a_curve_shows_the_means_and_its_band_the_intervals(values, unit, tmp_path):
    curves = Curves(page_with(tmp_path, events_of(values, metric_of(unit), rounds=2)))
    assert (len(curves.lines), len(curves.bands)) == (len(values), len(values))
    for curve, line, band in zip(values.values(), curves.lines, curves.bands, strict=True):
        intervals = {step + 1: interval_of(row, unit) for step, row in curve.items()}  # the page counts steps from 1
        forward, back = band[: len(intervals)], band[len(intervals) :][::-1]
        for edge, drawn in ((1, line), (2, forward), (0, back)):
            expected = [(curves.across(step), curves.up(ends[edge])) for step, ends in intervals.items()]
            assert [x for x, _ in drawn] == pytest.approx([x for x, _ in expected], abs=CLOSE)
            assert [y for _, y in drawn] == pytest.approx([y for _, y in expected], abs=2 * CLOSE)


@pytest.mark.parametrize("steps", [200, 201])
def test_a_long_curve_is_thinned_out_and_keeps_its_last_step(steps, tmp_path):
    values = {"grown": {step: [0.1 + 0.5 * step / steps, 0.2 + 0.5 * step / steps] for step in range(steps)}}
    curves = Curves(page_with(tmp_path, events_of(values, metric_of("%"))))
    (line,) = curves.lines
    assert len(line) <= 201
    last = curves.across(steps), curves.up(0.15 + 0.5 * (steps - 1) / steps)
    assert line[-1] == pytest.approx(last, abs=2 * CLOSE)
    assert all(later > earlier for (earlier, _), (later, _) in pairwise(line))


# --- seeds


class SeedChart:
    """A chart of seeds, and the positions along its horizontal axis."""

    def __init__(self, page: str, section: str) -> None:
        self.root = root = svg_of(page, section)
        (axis,) = of_class(root, "line", "axis")
        self.start, self.end = float(axis.getAttribute("x1")), float(axis.getAttribute("x2"))
        ticks = [tick for tick in of_class(root, "text", "tick") if tick.getAttribute("class") == "tick"]
        self.ticks = {float(typed(tick.firstChild.data)): float(tick.getAttribute("x")) for tick in ticks}

    def place(self, number: float) -> float:
        """Return the position of a number, found by the first and the last figure of the axis."""
        low, high = min(self.ticks), max(self.ticks)
        share = (number - low) / (high - low)
        return self.ticks[low] + share * (self.ticks[high] - self.ticks[low])

    def marks(self) -> list[minidom.Element]:
        return of_class(self.root, "g", "mark")


def text_of(mark: minidom.Element) -> str:
    title = mark.getElementsByTagName("title")[0].firstChild
    return "" if title is None else str(title.data)


def shape_of(mark: minidom.Element, tag: str, class_: str = "") -> minidom.Element:
    (element,) = [shape for shape in mark.getElementsByTagName(tag) if shape.getAttribute("class") == class_]
    return element


@pytest.fixture
def report(make_run):
    return read_report(make_run(environments=2, steps=40))


def with_gains(report: Report, *gains: tuple[float, float, float | None]) -> list[SeedGain]:
    """Give the seeds of a report these means, errors and prices."""
    seeds = report.history.seeds = report.history.seeds[: len(gains)]
    for life, (mean, error, price) in zip(seeds, gains, strict=True):
        assert life.gain is not None
        life.gain = replace(life.gain, mean=mean, error=error, price=price)
    return [life.gain for life in sorted(seeds, key=lambda life: not life.kept) if life.gain is not None]


GAINS = {
    "as they are": [(0.05, 0.014, 0.02), (0.12, 0.02, 0.02)],
    "prices far above the gains": [(0.05, 0.014, 3.0), (0.12, 0.02, 0.5)],
    "losses alone": [(-0.5, 0.01, 0.02), (-0.02, 0.001, 0.02)],
    "an interval far wider than the rest": [(0.01, 2.0, 0.02), (0.02, 0.0, 0.0)],
    "small ones": [(1e-5, 2e-6, 3e-6), (4e-5, 1e-6, 3e-6)],
    "no price": [(0.05, 0.014, None), (0.12, 0.02, None)],
}


@pytest.mark.parametrize("gains", GAINS.values(), ids=GAINS.keys())
def test_gain_interval_and_price_match_the_axis_which_covers_them(gains, report):
    """A number outside of the scale would be drawn at its edge and misread."""
    shown = with_gains(report, *gains)
    drawing = SeedChart(report_page(report), "evidence")
    assert len(drawing.marks()) == len(shown)
    for mark, gain in zip(drawing.marks(), shown, strict=True):
        assert f"gain {gain.mean:+.3f} ± {gain.error:.3f} nats" in typed(text_of(mark))
        line, point = shape_of(mark, "line", "whisker"), shape_of(mark, "circle")
        assert float(point.getAttribute("cx")) == pytest.approx(drawing.place(gain.mean), abs=CLOSE)
        low, high = gain.mean - Z_95 * gain.error, gain.mean + Z_95 * gain.error
        assert float(line.getAttribute("x1")) == pytest.approx(drawing.place(low), abs=CLOSE)
        assert float(line.getAttribute("x2")) == pytest.approx(drawing.place(high), abs=CLOSE)
        assert len({point.getAttribute("cy"), line.getAttribute("y1"), line.getAttribute("y2")}) == 1
        if gain.price is None:
            assert [stroke for stroke in mark.getElementsByTagName("line") if stroke != line] == []
        else:
            price = shape_of(mark, "line", "price")
            assert price.getAttribute("x1") == price.getAttribute("x2")
            assert float(price.getAttribute("x1")) == pytest.approx(drawing.place(gain.price), abs=CLOSE)
    shapes = [shape for mark in drawing.marks() for shape in mark.getElementsByTagName("*")]
    places = [float(shape.getAttribute(x)) for shape in shapes for x in ("x1", "x2", "cx") if shape.hasAttribute(x)]
    (zero,) = of_class(drawing.root, "line", "zero")
    places.append(float(zero.getAttribute("x1")))
    assert float(zero.getAttribute("x1")) == pytest.approx(drawing.place(0.0), abs=CLOSE)
    assert drawing.start < min(places), "there is room at both ends"
    assert max(places) < drawing.end
    assert max(places) - min(places) > 0.8 * (drawing.end - drawing.start), "and not much of it"
    assert all(drawing.start - CLOSE <= x <= drawing.end + CLOSE for x in drawing.ticks.values())
    assert len(drawing.ticks) >= 2, "a scale takes two figures"
    steps = sorted(drawing.ticks)
    assert [drawing.ticks[step] for step in steps] == sorted(drawing.ticks.values()), "to the right is more"


def lives_chart(report: Report, *stages: tuple[int, Stage, Reason]) -> tuple[SeedChart, list[tuple[str, str]]]:
    """Return the chart of a single life, and the class and the text of each mark."""
    life = SeedLife(0, "grown", 0, "early", 0, "test/conv", 72)
    life.changes += [stage_changed(step, None, now, reason=reason) for step, now, reason in stages]
    report.history.seeds, report.history.governor = [life], []
    drawing = SeedChart(report_page(report), "lives")
    return drawing, [(mark.getAttribute("class"), text_of(mark)) for mark in drawing.marks()]


GERMINATED = (8, Stage.GERMINATED, Reason(Cause.POLICY))
TRAINED = (9, Stage.TRAINING, Reason(Cause.STEP))


def test_germination_and_training_are_one_bar(report):
    """Training begins in the next step, so a bar in between would have no length."""
    drawing, marks = lives_chart(report, GERMINATED, TRAINED, (16, Stage.BLENDING, Reason(Cause.GAIN)))
    life = "early  conv: germinated at step 9, training in isolation from step 10 to step 17. by the policy"
    blending = "early  conv: blending in from step 17 to step 40. its gain is shown"
    assert marks == [("mark stage-training", life), ("mark stage-blending", blending)]
    first, second = (shape_of(mark, "rect") for mark in drawing.marks())
    begins, ends = float(first.getAttribute("x")), float(first.getAttribute("x")) + float(first.getAttribute("width"))
    assert begins == pytest.approx(drawing.place(9), abs=CLOSE)
    assert ends == pytest.approx(drawing.place(17), abs=2 * CLOSE)
    assert float(second.getAttribute("x")) == pytest.approx(drawing.place(17), abs=CLOSE)


@pytest.mark.parametrize("pruned", [False, True])
def test_a_seed_that_never_trained_has_a_bar_of_its_own(pruned, report):
    changes = [GERMINATED, (9, Stage.PRUNED, Reason(Cause.ROLLBACK, "too hot"))]
    marks = [("mark stage-germinated", "early  conv: germinated at step 9. by the policy")]
    marks.append(("mark", "early  conv: pruned at step 10. rolled back: too hot"))
    assert lives_chart(report, *changes[: 1 + pruned])[1] == marks[: 1 + pruned]


def test_every_chart_has_a_description_and_every_mark_a_text(make_run):
    page = report_page(read_report(make_run(environments=2, steps=40)))
    drawings = re.findall(r"<svg (?![^>]*aria-hidden)[^>]*viewBox.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) >= 6
    names = set()
    for drawing in drawings:
        root = minidom.parseString(drawing).documentElement
        assert root is not None
        assert (root.getAttribute("role"), root.getAttribute("tabindex")) == ("group", "0")
        title, description = (root.getElementsByTagName(name)[0].firstChild.data for name in ("title", "desc"))
        assert root.getAttribute("aria-label").startswith(f"{title}. {description}")
        names.add(title)
        marks = of_class(root, "*", "mark")
        assert marks
        assert all(mark.firstChild.tagName == "title" and mark.firstChild.firstChild.data for mark in marks)
    assert len(names) >= 5, "no two kinds of charts have the same name"
