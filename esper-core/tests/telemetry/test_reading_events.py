"""A file of events says by which version of the format it is read, and what of it is left out."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import GradientHealth, RunFolderError, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.constants import EVENT_FORMAT
from esper_core.leyline.events import Event, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import encode, read_events

SEED = SeedSignals("b/c", Stage.TRAINING, 0.0, 9, 1, math.nan, GradientHealth(math.inf, 1.0, 1.0, 0.0, 0.0, 0.0))
SLOT = SlotSignals("early", SlotState.OCCUPIED, 0, (SEED,))
STEP = StepFinished(round=0, arm="a", seed=0, step=0, signals=Signals(0, math.nan, 1.0, 0.5, 9, 9, (SLOT,)))
EVENTS: list[Event] = [
    RunStarted(run="r", arms=("a",), rounds=1, environments=1, steps=1),
    STEP,
    RunFinished(status="done"),
]

Write = Callable[[Sequence[str | dict[str, Any]]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines, or records of them, into a file of events."""

    def write(lines: Sequence[str | dict[str, Any]]) -> Path:
        file = tmp_path / "events.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("".join(f"{text}\n" for text in texts))
        return file

    return write


def told() -> list[dict[str, Any]]:
    return [json.loads(encode(event)) for event in EVENTS]


def test_every_line_says_the_version_of_the_format() -> None:
    assert {record["v"] for record in told()} == {EVENT_FORMAT}


def test_fields_that_are_not_known_are_left_out_wherever_they_stand_and_told_once(write: Write) -> None:
    records = told()
    seed = records[1]["signals"]["slots"][0]["seeds"][0]
    seed["gradients"]["kurtosis"] = seed["colour"] = records[1]["signals"]["heat"] = records[2]["cost"] = {"a": ["NaN"]}
    said: list[str] = []
    events = list(read_events(write([*records, *records[1:]]), tell=said.append))
    assert repr(events) == repr([*EVENTS, *EVENTS[1:]])
    fields = [line.partition('"')[2].partition('"')[0] for line in said]
    assert sorted(fields) == [
        "run-finished.cost",
        "step-finished.signals.heat",
        "step-finished.signals.slots.seeds.colour",
        "step-finished.signals.slots.seeds.gradients.kurtosis",
    ]
    assert all(" is left out: esper-core 0." in line for line in said)


def test_events_of_a_type_that_is_not_known_are_left_out_and_told_once(write: Write) -> None:
    first, *rest = told()
    moved = {"type": "seed-moved", "v": EVENT_FORMAT, "to": "late"}
    said: list[str] = []
    events = list(read_events(write([first, moved, moved, *rest]), tell=said.append))
    assert [event.type for event in events] == ["run-started", "step-finished", "run-finished"]
    (line,) = said
    assert line.startswith('events of type "seed-moved" are left out: esper-core 0.')


@pytest.mark.parametrize("kind", ["run-finished", "from-the-future"])
def test_a_newer_format_is_refused_with_its_version_and_what_reads_it(kind: str, write: Write) -> None:
    file = write([*told()[:2], {"type": kind, "v": EVENT_FORMAT + 1, "status": "done"}])
    events = read_events(file)
    assert [next(events).type, next(events).type] == ["run-started", "step-finished"]
    with pytest.raises(RunFolderError) as refusal:
        next(events)
    first, place, mend = str(refusal.value).splitlines()
    assert first.startswith(f"E421 events are in version {EVENT_FORMAT + 1} of their format; esper-core 0.")
    assert first.endswith(f" reads version {EVENT_FORMAT}")
    assert place.strip() == f"{file}:3"
    assert mend.strip() == "They were written by a newer one:  pip install --upgrade esper-core"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "Invalid JSON"),
        ("[1]", "should be an object"),
        ("[" * 9000, "Invalid JSON: recursion limit exceeded"),
        ('{"type": "from-the-future"}', "does not match any of the expected tags"),
        ('{"type": "run-finished", "v": "1", "more": 1}', "run-finished.status: Field required"),
        ('{"type": "run-finished", "v": 1, "status": "undone", "more": 1}', "run-finished.status: Input should be"),
        ('{"type": "run-finished", "v": 0, "status": "done"}', "version 0 of their format"),
        ('{"type": ["run-finished"], "v": 1}', "does not match any of the expected tags"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number_and_the_reason(line: str, why: str, write: Write) -> None:
    with pytest.raises(RunFolderError) as refusal:
        list(read_events(write([told()[0], line])))
    (problem,) = refusal.value.problems
    assert (problem.code, Path(problem.file or "").name, problem.line) == ("E421", "events.jsonl", 2)
    assert why in str(problem)
    assert "packages.txt" in (problem.hint or "")


def test_reading_stops_at_the_given_byte_whatever_is_behind_it(write: Write) -> None:
    file = write(told())
    length, first = file.stat().st_size, file.read_bytes().index(b"\n") + 1
    with file.open("ab") as more:
        more.write(b"not an event\n")
    assert repr(list(read_events(file, end=length))) == repr(EVENTS)
    assert repr(list(read_events(file, end=first))) == repr(EVENTS[:1])
    assert list(read_events(file, end=0)) == []
    with pytest.raises(RunFolderError, match="E421"):
        list(read_events(file))


def test_a_torn_last_line_is_left_out_and_told(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    file = write(told())
    with file.open("ab") as torn:
        torn.write(b'{"type":"run-fin')
    said: list[str] = []
    assert repr(list(read_events(file, tell=said.append))) == repr(EVENTS)
    assert said == ["line 4, the last one, is torn, and left out: 16 bytes without their end"]
    assert caplog.records == []
    with caplog.at_level(logging.WARNING, logger="esper"):
        list(read_events(file))
    assert [record.getMessage() for record in caplog.records] == [f"{file}: {said[0]}"]


def test_of_a_whole_file_nothing_is_left_out(write: Write) -> None:
    said: list[str] = []
    assert repr(list(read_events(write(told()), tell=said.append))) == repr(EVENTS)
    assert list(read_events(write([]), tell=said.append)) == []
    assert said == []
