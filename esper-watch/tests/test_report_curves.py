"""Each learning curve runs through its arm's means, its band through the intervals' ends; a ring says whether a slot is
empty: what is drawn is held against the numbers of the run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from xml.dom import minidom

import pytest

from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
from esper_core.leyline.events import EpisodeFinished, Event, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import encode
from esper_watch.report import page_of, read_record

CLOSE = 0.11
"""A drawing tells its places to a tenth; so do two of them together, and a rounding."""

T = {2: 12.7062, 4: 3.1824, 8: 2.3646}
"""Student's t for 95 % to both sides, by the number of networks: from a table."""

Values = Mapping[str, Mapping[int, Sequence[float]]]
"""By arm and step what each of its networks measured, by its number; a shorter row where the last of them are over."""

Place = tuple[float, float]


def smooth(networks: int, *, top: float, spread: float, steps: int = 6) -> dict[int, list[float]]:
    """A course that rises, each network in its own way."""
    return {
        step: [
            top * (1 - math.exp(-(step + 1) / 3)) + spread * math.sin(7.0 * seed + step * seed)
            for seed in range(networks)
        ]
        for step in range(steps)
    }


def metric_of(unit: str) -> Metric:
    return Metric("accuracy" if unit else "score", "up", unit)


def events_of(values: Values, metric: Metric, rounds: int = 1) -> Iterator[Event]:
    """The events of a run that measured this in its last round, and something else in those before."""
    steps = 1 + max(step for own in values.values() for step in own)
    networks = max(len(row) for own in values.values() for row in own.values())
    yield RunStarted(
        run="r", arms=tuple(values), rounds=rounds, environments=networks, steps=steps, metric=metric
    )  # fmt: skip
    slots = (SlotSignals("early", SlotState.FREE, 0),)
    for round_ in range(rounds):
        for arm, own in values.items():
            for step, row in own.items():
                for seed, number in enumerate(row):
                    told = number if round_ == rounds - 1 else 0.01
                    signals = Signals(step, 1.0, 1.0, told, 9, 9, slots)
                    yield StepFinished(round=round_, arm=arm, seed=seed, step=step, signals=signals)
    yield RunFinished(status="done")


def page_with(folder: Path, events: Iterator[Event] | Sequence[Event]) -> str:
    """The report of a run of these events."""
    (folder / "events.jsonl").write_text("".join(f"{encode(one)}\n" for one in events), encoding="utf-8")
    return page_of(read_record(folder))


@dataclass(frozen=True)
class Axis:
    """Two figures beside an axis, and where they stand: so does a reader find a number's place."""

    figures: tuple[float, float]
    places: tuple[float, float]
    ends: tuple[float, float]

    def __call__(self, number: float) -> float:
        (low, high), (first, last) = self.figures, self.places
        place = first + (number - low) / (high - low) * (last - first)
        return min(max(place, min(self.ends)), max(self.ends))


class Curves:
    """The drawing of the learning curves: its two axes, its lines and bands in the order of the arms."""

    def __init__(self, page: str) -> None:
        (part,) = re.findall(r'<section id="courses">.*?</section>', page, flags=re.DOTALL)
        whole = re.findall(r"<svg viewBox=\"0 0 720 .*?</svg>", part)[0]
        root = minidom.parseString(whole).documentElement
        assert root is not None
        self.root = root
        across, beside = (one for one in root.getElementsByTagName("line") if one.getAttribute("class") == "axis")
        ticks = [one for one in root.getElementsByTagName("text") if one.getAttribute("class") == "tick"]
        self.across = self._axis("x", across, [one for one in ticks if one.getAttribute("text-anchor") == "middle"])
        self.up = self._axis("y", beside, [one for one in ticks if one.getAttribute("text-anchor") == "end"])
        self.lines = self._shapes("polyline", "line")
        self.bands = self._shapes("polygon", "band")

    def _axis(self, way: str, line: minidom.Element, ticks: list[minidom.Element]) -> Axis:
        """A figure stands four pixels below the line that it names, where the axis goes upwards."""
        told = [(figure(one), float(one.getAttribute(way)) - (4 if way == "y" else 0)) for one in ticks]
        (low, first), (high, last) = min(told), max(told)
        ends = (float(line.getAttribute(f"{way}1")), float(line.getAttribute(f"{way}2")))
        assert len(told) >= 2, "a scale takes two figures"
        assert all(min(ends) - CLOSE <= place <= max(ends) + CLOSE for _, place in told)
        return Axis((low, high), (first, last), ends)

    def _shapes(self, tag: str, class_: str) -> list[list[Place]]:
        found = [one for one in self.root.getElementsByTagName(tag) if class_ in one.getAttribute("class").split()]
        return [[(float(x), float(y)) for x, y in re.findall(r"([-\d.]+),([-\d.]+)", one.getAttribute("points"))]
                for one in found]  # fmt: skip


def figure(tick: minidom.Element) -> float:
    """What a figure beside an axis says: per cent are parts of a hundred."""
    assert tick.firstChild is not None
    told = str(tick.firstChild.data)
    return float(told.removesuffix(" %")) / 100 if told.endswith("%") else float(told)


def interval_of(row: Sequence[float], unit: str) -> tuple[float, float, float]:
    """Low end, mean and high end as the page says them, worked out here: mean ± t · s / √n, a share from 0 to 1."""
    finite = [value for value in row if math.isfinite(value)]
    mean = fmean(finite)
    if len(finite) == 1:
        return mean, mean, mean
    half = T[len(finite)] * stdev(finite) / math.sqrt(len(finite))
    edges = (0.0, 1.0) if unit == "%" else (-math.inf, math.inf)
    return max(edges[0], mean - half), mean, min(edges[1], mean + half)


COURSES: dict[str, tuple[Values, str]] = {
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


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(("values", "unit"), COURSES.values(), ids=COURSES.keys())
def test_a_curve_goes_through_the_means_and_its_band_through_the_ends_of_their_intervals(
    values: Values, unit: str, rounds: int, tmp_path: Path
) -> None:
    curves = Curves(page_with(tmp_path, events_of(values, metric_of(unit), rounds)))
    assert (len(curves.lines), len(curves.bands)) == (len(values), len(values))
    for own, line, band in zip(values.values(), curves.lines, curves.bands, strict=True):
        told = {step + 1: interval_of(row, unit) for step, row in own.items()}  # the page counts steps from 1
        there, back = band[: len(told)], band[len(told) :][::-1]
        for edge, drawn in ((1, line), (2, there), (0, back)):
            expected = [(curves.across(step), curves.up(ends[edge])) for step, ends in told.items()]
            assert [x for x, _ in drawn] == pytest.approx([x for x, _ in expected], abs=CLOSE)
            assert [y for _, y in drawn] == pytest.approx([y for _, y in expected], abs=2 * CLOSE)


def test_every_mean_has_its_place_within_the_drawing_and_only_a_band_is_cut_off(tmp_path: Path) -> None:
    values, unit = COURSES["two networks, whose band leaves the drawing"]
    curves = Curves(page_with(tmp_path, events_of(values, metric_of(unit))))
    top, bottom = min(curves.up.ends), max(curves.up.ends)
    assert all(top < y < bottom for line in curves.lines for _, y in line)
    assert {top, bottom} <= {y for band in curves.bands for _, y in band}, "this band is wider than the drawing"
    wide = Curves(page_with(tmp_path, events_of(COURSES["eight networks"][0], metric_of("%"))))
    assert all(top < y < bottom for band in wide.bands for _, y in band), "this one is not"


@pytest.mark.parametrize("steps", [200, 201, 1001])
def test_a_long_curve_is_thinned_out_and_keeps_its_last_step(steps: int, tmp_path: Path) -> None:
    values = {"grown": {step: [0.1 + 0.5 * step / steps, 0.2 + 0.5 * step / steps] for step in range(steps)}}
    curves = Curves(page_with(tmp_path, events_of(values, metric_of("%"))))
    (line,) = curves.lines
    assert len(line) <= 201
    assert line[-1] == pytest.approx(
        (curves.across(steps), curves.up(0.15 + 0.5 * (steps - 1) / steps)), abs=2 * CLOSE
    )  # fmt: skip
    assert all(later > earlier for (earlier, _), (later, _) in pairwise(line))


# --- the rings of the networks

Grown = tuple[tuple[str, str], ...]
"""Slot and blueprint of what was kept, in the order in which it acts."""

SLOTS = ("early", "middle", "late")
KINDS: Sequence[tuple[int, Grown]] = [
    (4, (("late", "test/conv"),)),
    (3, (("early", "test/conv"), ("early", "test/norm"), ("late", "test/mlp"))),
    (2, (("early", "test/a"), ("middle", "test/b"), ("late", "test/c"))),
    (1, ()),
]
"""How many networks came out like this; the commonest first."""


def networks_of(arm: str, kinds: Sequence[tuple[int, Grown]]) -> Iterator[Event]:
    """The end of an arm whose networks came out so."""
    slots = tuple(SlotSignals(name, SlotState.FREE, 0) for name in SLOTS)
    every = [grown for number, grown in kinds for _ in range(number)]
    for seed in range(len(every)):
        signals = Signals(0, 1.0, 1.0, 0.5, 9, 9, slots)
        yield StepFinished(round=0, arm=arm, seed=seed, step=0, signals=signals)
    for seed, grown in enumerate(every):
        kept = tuple({"slot": slot, "blueprint": name, "parameters": 10 * len(name)} for slot, name in grown)
        yield EpisodeFinished(
            round=0, arm=arm, seed=seed, test_loss=1.0, test_metric=0.5, validation_metric=0.5, parameters=9,
            host_parameters=9, fossils=len(kept), steps=1, reward=None, grown=kept,
        )  # fmt: skip


def drawn_networks(page: str) -> list[list[tuple[str, str]]]:
    """Of each network its marks from left to right: what it is, and which."""
    found = re.findall(r'<section id="networks">.*?</section>', page, flags=re.DOTALL)
    drawings = [drawing for part in found for drawing in re.findall(r"<svg .*?</svg>", part)]
    return [_from_left_to_right(drawing) for drawing in drawings]


def _from_left_to_right(drawing: str) -> list[tuple[str, str]]:
    root = minidom.parseString(drawing).documentElement
    assert root is not None
    marks: list[tuple[float, str, str]] = []
    for one in (one for one in root.getElementsByTagName("g") if "mark" in one.getAttribute("class").split()):
        kind = one.getAttribute("class").removeprefix("mark ")
        (shape,) = one.getElementsByTagName("circle") or one.getElementsByTagName("rect")
        assert (shape.tagName == "circle") == kind.startswith("slot"), "a ring is a slot, and a slot a ring"
        name = one.getElementsByTagName("text")[0].firstChild
        title = one.getElementsByTagName("title")[0].firstChild
        assert name is not None
        assert title is not None
        if kind.startswith("slot"):
            assert title.data.startswith(f"slot {name.data}: ")
            assert ("nothing was kept here" in title.data) == (kind == "slot empty")
        marks.append((float(shape.getAttribute("cx") or shape.getAttribute("x")), kind, str(name.data)))
    return [(kind, name) for _, kind, name in sorted(marks)]


def expected(grown: Grown) -> list[tuple[str, str]]:
    """The host's slots in their order: a full ring before what was kept there, and an empty one before nothing."""
    told = [("host", "input")]
    for slot in SLOTS:
        kept = [name.partition("/")[2] for own, name in grown if own == slot]
        told.append(("slot" if kept else "slot empty", slot))
        told += [("stage-fossilized", name) for name in kept]
    return [*told, ("host", "output")]


@pytest.mark.parametrize("one", range(len(KINDS)))
def test_the_ring_of_a_slot_is_full_where_something_was_kept_and_empty_where_nothing_was(
    one: int, tmp_path: Path
) -> None:
    started = RunStarted(run="r", arms=("grown", "twin"), rounds=1, environments=10, steps=1)
    page = page_with(
        tmp_path, [started, *networks_of("grown", KINDS), *networks_of("twin", [(10, ())]), RunFinished(status="done")]
    )
    drawn = drawn_networks(page)
    assert len(drawn) == len(KINDS), "the twin kept nothing, and is not drawn"
    assert drawn[one] == expected(KINDS[one][1])


def test_a_slot_that_no_step_told_of_has_its_ring_where_something_was_kept_in_it(tmp_path: Path) -> None:
    started = RunStarted(run="r", arms=("grown",), rounds=1, environments=1, steps=1)
    (drawn,) = drawn_networks(page_with(tmp_path, [started, *networks_of("grown", [(1, (("hidden", "test/x"),))])]))
    assert drawn == [
        ("host", "input"),
        *(("slot empty", slot) for slot in SLOTS),
        ("slot", "hidden"),
        ("stage-fossilized", "x"),
        ("host", "output"),
    ]


RINGS = """
[...document.querySelectorAll("#networks .mark.slot circle")].map((one) => {
  const seen = getComputedStyle(one);
  return [one.parentElement.classList.contains("empty"), seen.fill, seen.strokeDasharray];
})
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_full_ring_and_an_empty_one_are_told_apart_by_their_filling_and_their_line(
    dark: bool, tmp_path: Path, browser: Callable
) -> None:
    started = RunStarted(run="r", arms=("grown",), rounds=1, environments=10, steps=1)
    (tmp_path / "page.html").write_text(page_with(tmp_path, [started, *networks_of("grown", KINDS)]))
    page = browser.open(tmp_path / "page.html")
    page.resize(1000, 900, dark=dark)
    seen = {tuple(one) for one in page.evaluate(RINGS)}
    assert {empty for empty, _, _ in seen} == {True, False}
    assert len(seen) == 2, "all rings of a kind are alike"
    (_, filled, line), (_, hollow, dashes) = sorted(seen)
    assert filled != hollow
    assert (line, dashes) == ("none", "3px, 2px")
