"""What is drawn stands where its axis says: the gains of seeds with their prices, and the bars of their lives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.dom import minidom

import pytest

from esper_core.leyline import Stage
from esper_watch.report import page_of, read_record
from esper_watch.report.arms import ArmEnd, _front
from esper_watch.report.evidence import SURE, evidence
from esper_watch.report.figure import looks
from esper_watch.report.lives import lives
from esper_watch.report.record import Record, SeedLife, Shown

MakeRun = Callable[..., Path]

CLOSE = 0.11
"""A drawing tells its places to a tenth; so do two of them together, and a rounding."""


class Drawing:
    """A drawing of a part of the page, and what its axis along the bottom says of places."""

    def __init__(self, part: str) -> None:
        (whole,) = re.findall(r"<svg viewBox=\"0 0 720 .*?</svg>", part)
        root = minidom.parseString(whole).documentElement
        assert root is not None
        self.root = root
        (axis,) = [one for one in root.getElementsByTagName("line") if one.getAttribute("class") == "axis"]
        self.start, self.end = float(axis.getAttribute("x1")), float(axis.getAttribute("x2"))
        ticks = [one for one in root.getElementsByTagName("text") if one.getAttribute("class") == "tick"]
        self.ticks = {float(one.firstChild.data): float(one.getAttribute("x")) for one in ticks if one.firstChild}

    def place(self, number: float) -> float:
        """Where a number stands, as who reads the axis would find it: by its first and its last figure."""
        low, high = min(self.ticks), max(self.ticks)
        share = (number - low) / (high - low)
        return self.ticks[low] + share * (self.ticks[high] - self.ticks[low])

    def marks(self) -> list[minidom.Element]:
        return [one for one in self.root.getElementsByTagName("g") if "mark" in one.getAttribute("class").split()]


def told(mark: minidom.Element) -> str:
    title = mark.getElementsByTagName("title")[0].firstChild
    return "" if title is None else str(title.data)


def one(mark: minidom.Element, tag: str, class_: str = "") -> minidom.Element:
    (found,) = [shape for shape in mark.getElementsByTagName(tag) if shape.getAttribute("class") == class_]
    return found


@pytest.fixture
def record(make_run: MakeRun) -> Record:
    return read_record(make_run(environments=2, steps=40))


def with_gains(record: Record, *gains: tuple[float, float, float | None]) -> list[Shown]:
    """The record's lives with these means, errors and prices instead of their own."""
    record.lives = record.lives[: len(gains)]
    for life, (mean, error, price) in zip(record.lives, gains, strict=True):
        assert life.shown is not None
        life.shown = replace(life.shown, mean=mean, error=error, price=price)
    return [life.shown for life in sorted(record.lives, key=lambda life: not life.kept) if life.shown is not None]


def drawn(record: Record) -> Drawing:
    part = evidence(record)
    assert part is not None
    return Drawing(part.render())


GAINS = {
    "as they are": [(0.05, 0.014, 0.02), (0.12, 0.02, 0.02)],
    "prices far above the gains": [(0.05, 0.014, 3.0), (0.12, 0.02, 0.5)],
    "losses alone": [(-0.5, 0.01, 0.02), (-0.02, 0.001, 0.02)],
    "an interval far wider than the rest": [(0.01, 2.0, 0.02), (0.02, 0.0, 0.0)],
    "small ones": [(1e-5, 2e-6, 3e-6), (4e-5, 1e-6, 3e-6)],
    "no price": [(0.05, 0.014, None), (0.12, 0.02, None)],
}


@pytest.mark.parametrize("gains", GAINS.values(), ids=GAINS.keys())
def test_a_gain_its_interval_and_its_price_stand_where_the_axis_says(gains, record: Record) -> None:
    shown = with_gains(record, *gains)
    drawing = drawn(record)
    assert len(drawing.marks()) == len(shown)
    for mark, own in zip(drawing.marks(), shown, strict=True):
        assert f"gain {own.mean:+.3f} ± {own.error:.3f} nats" in told(mark)
        line, point = one(mark, "line", "whisker"), one(mark, "circle")
        assert float(point.getAttribute("cx")) == pytest.approx(drawing.place(own.mean), abs=CLOSE)
        low, high = own.mean - SURE * own.error, own.mean + SURE * own.error
        assert float(line.getAttribute("x1")) == pytest.approx(drawing.place(low), abs=CLOSE)
        assert float(line.getAttribute("x2")) == pytest.approx(drawing.place(high), abs=CLOSE)
        assert len({point.getAttribute("cy"), line.getAttribute("y1"), line.getAttribute("y2")}) == 1
        if own.price is None:
            assert [each for each in mark.getElementsByTagName("line") if each != line] == []
        else:
            price = one(mark, "line", "price")
            assert price.getAttribute("x1") == price.getAttribute("x2")
            assert float(price.getAttribute("x1")) == pytest.approx(drawing.place(own.price), abs=CLOSE)


@pytest.mark.parametrize("gains", GAINS.values(), ids=GAINS.keys())
def test_the_axis_of_gains_reaches_over_all_that_is_drawn_and_over_nothing(gains, record: Record) -> None:
    """What is outside of a scale would be drawn at its edge, and be read as another number."""
    with_gains(record, *gains)
    drawing = drawn(record)
    shapes = [
        shape for mark in drawing.marks() for tag in ("line", "circle") for shape in mark.getElementsByTagName(tag)
    ]
    places = [float(shape.getAttribute(x)) for shape in shapes for x in ("x1", "x2", "cx") if shape.hasAttribute(x)]
    (zero,) = [each for each in drawing.root.getElementsByTagName("line") if each.getAttribute("class") == "zero"]
    places.append(float(zero.getAttribute("x1")))
    assert float(zero.getAttribute("x1")) == pytest.approx(drawing.place(0.0), abs=CLOSE)
    assert drawing.start < min(places), "there is room at both ends"
    assert max(places) < drawing.end
    assert max(places) - min(places) > 0.8 * (drawing.end - drawing.start), "and not much of it"
    assert all(drawing.start - CLOSE <= x <= drawing.end + CLOSE for x in drawing.ticks.values())
    assert len(drawing.ticks) >= 2, "a scale takes two figures"
    steps = sorted(drawing.ticks)
    assert [drawing.ticks[step] for step in steps] == sorted(drawing.ticks.values()), "to the right is more"


def bars_of(record: Record, *stages: tuple[int, Stage, str]) -> tuple[Drawing, list[tuple[str, str]]]:
    """A single life of these stages: its drawing, and the class and the words of each mark."""
    record.lives, record.governed = [SeedLife((0, "grown", 0), "early", 0, "test/conv", 72, list(stages))], []
    part = lives(record)
    assert part is not None
    drawing = Drawing(part.render())
    return drawing, [(mark.getAttribute("class"), told(mark)) for mark in drawing.marks()]


PLANTED, TRAINED = (8, Stage.GERMINATED, "asked for"), (9, Stage.TRAINING, "a step began")


def test_a_seed_that_is_planted_and_then_trained_has_one_bar(record: Record) -> None:
    """The training begins with the next step, so that nothing lies between the two: a bar there would be a riddle."""
    drawing, marks = bars_of(record, PLANTED, TRAINED, (16, Stage.BLENDING, "its gain is shown"))
    assert marks == [
        (
            "mark stage-training",
            "early  conv: planted at step 9, training in isolation from step 10 to step 17. asked for",
        ),
        ("mark stage-blending", "early  conv: blending in from step 17 to step 40. its gain is shown"),
    ]
    first, second = (one(mark, "rect") for mark in drawing.marks())
    begins, ends = float(first.getAttribute("x")), float(first.getAttribute("x")) + float(first.getAttribute("width"))
    assert begins == pytest.approx(drawing.place(9), abs=CLOSE)
    assert ends == pytest.approx(drawing.place(17), abs=2 * CLOSE)
    assert float(second.getAttribute("x")) == pytest.approx(drawing.place(17), abs=CLOSE)


@pytest.mark.parametrize(
    ("more", "marks"),
    [
        ([], [("mark stage-germinated", "early  conv: planted at step 9. asked for")]),
        (
            [(9, Stage.PRUNED, "rolled back: a loss is not finite")],
            [
                ("mark stage-germinated", "early  conv: planted at step 9. asked for"),
                ("mark", "early  conv: pruned at step 10. rolled back: a loss is not finite"),
            ],
        ),
    ],
    ids=["at the end", "pruned before"],
)
def test_a_seed_that_never_came_to_train_says_so(more, marks, record: Record) -> None:
    assert bars_of(record, PLANTED, *more)[1] == marks


def legend_of(record: Record) -> list[str]:
    part = lives(record)
    assert part is not None
    return re.findall(r"</svg>([^<]+)</li>", part.render())


def test_every_colour_of_a_life_is_in_the_legend_and_grey_only_where_it_is_drawn(record: Record) -> None:
    for more in ([TRAINED], [TRAINED, (16, Stage.HOLDING, "")], [], [(9, Stage.PRUNED, "")]):
        _, marks = bars_of(record, PLANTED, *more)
        there = "mark stage-germinated" in dict(marks)
        assert ("planted, not trained yet" in legend_of(record)) == there
        assert "germinated" not in legend_of(record)


def test_a_usual_run_has_no_bar_of_a_seed_that_only_waits(make_run: MakeRun) -> None:
    page = page_of(read_record(make_run(environments=2, steps=40)))
    assert "mark stage-germinated" not in page
    assert "planted at step 9, training in isolation from step 10 to step 17" in page


def test_every_drawing_says_what_it_is_and_each_mark_what_it_stands_for(make_run: MakeRun) -> None:
    page = page_of(read_record(make_run(environments=2, steps=40)))
    drawings = re.findall(r"<svg (?![^>]*aria-hidden)[^>]*viewBox.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) >= 6
    names = set()
    for drawing in drawings:
        root = minidom.parseString(drawing).documentElement
        assert root is not None
        assert (root.getAttribute("role"), root.getAttribute("tabindex")) == ("group", "0")
        title, what = (root.getElementsByTagName(name)[0].firstChild.data for name in ("title", "desc"))
        assert root.getAttribute("aria-label").startswith(f"{title}. {what}")
        names.add(title)
        marks = [one for one in root.getElementsByTagName("*") if "mark" in one.getAttribute("class").split()]
        assert marks
        assert all(one.firstChild.tagName == "title" and one.firstChild.firstChild.data for one in marks)
    assert len(names) >= 5, "no two kinds of drawings are called the same"


@pytest.mark.parametrize(
    ("upwards", "front"),
    [(True, ["small", "middle", "large"]), (False, ["bad"])],
)
def test_the_line_of_the_best_goes_through_those_that_no_other_beats_in_both(upwards: bool, front: list[str]) -> None:
    values = {"large": (0.9, 300), "small": (0.5, 100), "bad": (0.4, 100), "middle": (0.7, 200), "dear": (0.7, 250)}
    look = looks(list(values))["small"]
    ends = [
        ArmEnd(name, look, [SimpleNamespace(parameters=size)], mean, None, None)
        for name, (mean, size) in values.items()
    ]
    assert [end.name for end in _front(ends, upwards=upwards)] == front
