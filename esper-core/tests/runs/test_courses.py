"""The course of a run's metric, as ``esper runs list`` draws it: right, and cheap however long the file is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_core.cli.courses import POINTS, course_of
from esper_core.leyline import Metric, Signals
from esper_core.leyline.events import RunStarted, StageChanged, StepFinished
from esper_core.leyline.lifecycle import Stage
from esper_core.runs.records import read_run
from esper_core.telemetry import encode

OTTER = "20261121-101512-quiet-otter"


def lines_of(*, rounds: int, environments: int, steps: int, arms: tuple[str, ...] = ("grown", "twin")) -> Iterator[str]:
    """The events of a run whose metric is round + step / 1000, of the twin less, and of the control much more."""
    yield encode(RunStarted(run=OTTER, arms=(*arms, "capacity"), rounds=rounds, environments=environments, steps=steps))
    for stage in (arms, ("capacity",)):
        for round_ in range(rounds):
            for step in range(steps):
                yield encode(
                    StageChanged(
                        round=round_, arm="grown", seed=0, step=step, slot="early", seed_id=step, blueprint="b/x",
                        was=None, now=Stage.TRAINING, parameters=1, reason="asked",
                    )
                )  # fmt: skip
                for seed in range(environments):
                    for place, arm in enumerate(stage):
                        value = round_ + step / 1000 + (seed - (environments - 1) / 2) / 10 - place / 5
                        signals = Signals(step, 1.0, 1.0, 9.0 if arm == "capacity" else value, 1, 1, ())
                        yield encode(StepFinished(round=round_, arm=arm, seed=seed, step=step, signals=signals))


@pytest.fixture
def with_events(write_run) -> Callable[..., Path]:
    def write(name: str = OTTER, arms: Any = None, metric: Metric | None = None, **shape: int) -> Path:
        path = write_run(name, arms, metric=metric)
        (path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines_of(**shape)))
        return path

    return write


def test_the_course_of_a_round_is_over_its_steps(with_events) -> None:
    course = course_of(read_run(with_events(rounds=1, environments=4, steps=31)))
    assert course is not None
    assert (course.arm, course.over) == ("grown", "steps")
    assert course.values == pytest.approx([place * 2 / 1000 for place in range(POINTS)])


def test_of_few_rounds_it_is_over_the_steps_of_the_latest(with_events) -> None:
    course = course_of(read_run(with_events(rounds=3, environments=2, steps=3)))
    assert course is not None
    assert (course.over, course.values) == ("steps", pytest.approx((2.0, 2.001, 2.002)))


def test_of_more_it_is_over_their_ends(with_events) -> None:
    course = course_of(read_run(with_events(rounds=5, environments=2, steps=3)))
    assert course is not None
    assert (course.over, course.values) == ("rounds", pytest.approx([number + 0.002 for number in range(5)]))


@pytest.mark.parametrize(("direction", "best"), [("up", "b"), ("down", "a")])
def test_it_is_that_of_the_best_arm_that_may_grow(with_events, direction: Any, best: str) -> None:
    figures = {"a": [0.1] * 8, "b": [0.5] * 8, "twin": [0.9] * 8 if direction == "up" else [0.0] * 8}
    run = with_events(arms=figures, metric=Metric("score", direction), rounds=1, environments=2, steps=3)
    text = "".join(f"{line}\n" for line in lines_of(rounds=1, environments=2, steps=3, arms=("a", "b", "twin")))
    (run / "events.jsonl").write_text(text)
    course = course_of(read_run(run))
    assert course is not None
    assert course.arm == best
    assert course.values[0] == pytest.approx(0.0 if best == "a" else -0.2)


def test_a_torn_end_is_left_out(with_events) -> None:
    path = with_events(rounds=1, environments=2, steps=20) / "events.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:21]) + lines[21][:-20])
    course = course_of(read_run(path.parent))
    assert course is not None
    assert course.values == pytest.approx((0.0, 0.001, 0.002, 0.003))


@pytest.mark.parametrize(
    "events",
    [
        b"",
        b"\n",
        b"nonsense\n" * 50,
        b"\xff\xfe" * 100,
        b"[" * 100_000,
        b"[]\n",
        b'{"arms": [], "steps": 4}\n',
        b'{"arms": ["a"], "steps": 4}\n',
        b'{"arms": ["a"], "steps": 4}\n{"type":"step-finished"}\n',
        b'{"arms": ["a"], "steps": "x"}\n{"type":"step-finished","arm":"a","round":9,"step":null}\n',
        b'{"arms": ["a"], "steps": 4}\n{"type":"step-finished","arm":3,"round":0,"step":0}\n',
        b'{"arms": ["a"], "steps": 4}\n{"type":"step-finished","arm":"a","round":0,"step":0,"signals":[]}\n',
        b'{"arms": ["a"], "steps": 4}\n{"type":"step-finished","arm":"a","round":0,"step":1e400,"signals":[]}\n',
    ],
)
def test_what_is_no_file_of_events_has_no_course_and_is_no_reason_to_fail(write_run, esper, events: bytes) -> None:
    path = write_run(OTTER)
    (path / "events.jsonl").write_bytes(events)
    assert course_of(read_run(path)) is None
    assert esper("runs", "list").status == 0


def test_a_file_that_is_not_there_has_no_course(write_run, esper) -> None:
    write_run(OTTER)
    (told,) = esper("runs", "list", "--json").json
    assert told["course"] is None


def test_little_is_read_of_a_long_file(with_events, monkeypatch) -> None:
    path = with_events(rounds=1, environments=30, steps=100)
    read = 0
    loads = json.loads

    def counted(line: Any) -> Any:
        nonlocal read
        read += len(line)
        return loads(line)

    monkeypatch.setattr("esper_core.cli.courses.json.loads", counted)
    course = course_of(read_run(path))
    assert course is not None
    assert course.values[-1] == pytest.approx(0.099)
    assert read < (path / "events.jsonl").stat().st_size / 2


def test_the_list_draws_it_and_a_program_gets_the_values(with_events, esper, monkeypatch) -> None:
    with_events(rounds=1, environments=2, steps=8)
    assert "  ▁▂▃▄▅▆▇█" in esper("runs", "list").out
    (told,) = esper("runs", "list", "--json").json
    assert told["course"]["arm"] == "grown"
    assert len(told["course"]["values"]) == 8
    monkeypatch.setattr(type(sys.stdout), "encoding", "ascii", raising=False)
    assert "  _.-:=+*#" in esper("runs", "list").out
