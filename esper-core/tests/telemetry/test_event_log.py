"""The event log: events survive a line of JSON and a killed writer, and files of other versions are read or refused."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from esper_core import leyline
from esper_core.leyline import Action, GradientHealth, Op, RunFolderError, SeedSignals, Signals, SlotSignals, SlotState
from esper_core.leyline.constants import EVENT_FORMAT
from esper_core.leyline.events import Event, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import Bus, EventFile, decode, encode, event_log, read_events

SKIPPED = ("type", "v", "grown")
"""Fields that keep their defaults: any object would fit into the last one."""


def records(kind: type, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Builds records of a class from the annotations of all its fields, except those that are given."""
    inferred: dict[str, Any] = {field.name: ... for field in fields(kind) if field.name not in SKIPPED}
    figures = [field.name for field in fields(kind) if str(field.type) == "Mapping[str, float]"]
    mappings = dict.fromkeys(figures, st.dictionaries(st.text(), st.floats()))
    if kind is RunStarted:
        mappings["choices"] = st.dictionaries(st.text(), st.lists(st.text()).map(tuple))
    return st.builds(kind, **{**inferred, **mappings, **strategies})


seeds = records(SeedSignals, gradients=st.none())
names = st.none() | st.text(min_size=1)
actions = st.builds(Action, st.sampled_from(Op), names, names, speed=st.integers(0, 9))
slots = records(SlotSignals, seeds=st.lists(seeds, max_size=3).map(tuple))
signals = records(Signals, slots=st.lists(slots, max_size=3).map(tuple))
events: st.SearchStrategy[Event] = st.one_of(
    records(StepFinished, signals=signals, action=actions),
    *(records(kind) for kind in get_args(Event) if kind is not StepFinished),
)


@given(events)
def test_any_event_survives_a_line_of_json(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert repr(decode(line)) == repr(event)


def test_settled_events_are_on_disk(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    bus = Bus([file])
    bus.publish(RunFinished(status="done", reason="one"))
    assert (tmp_path / "events.jsonl").read_text() == ""
    bus.settle()
    bus.publish(RunFinished(status="done", reason="zwei – ü"))
    bus.settle()
    assert [event.reason for event in read_events(tmp_path / "events.jsonl")] == ["one", "zwei – ü"]
    file.close()


def test_a_file_that_is_too_short_gone_or_on_a_full_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * 10)
    with pytest.raises(RunFolderError, match=r"E413 .*has 10 bytes; 1,000 were written before the checkpoint"):
        EventFile(path, after=1000)
    with pytest.raises(RunFolderError):
        EventFile(tmp_path / "no-folder" / "events.jsonl")
    file = EventFile(path)
    file.require_exists()
    path.unlink()
    with pytest.raises(RunFolderError, match=r"E410 .*moved or deleted"):
        file.require_exists()
    file.close()
    full = Path("/dev/full").open("ab")  # noqa: SIM115  the event file closes it
    monkeypatch.setattr(event_log, "append_regular", lambda path: full)
    path.touch()
    file = EventFile(path)
    file.hear(RunFinished(status="done"))
    with pytest.raises(RunFolderError, match=r"E410 cannot write .*: No space left on device"):
        file.settle()
    file.close()


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RunFolderError, match=r"E430 .*a line has more than 16,777,216 bytes"):
        list(read_events(tmp_path / "events.jsonl"))


def test_the_checksum_is_that_of_the_file_also_when_it_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for after, status in ((None, "done"), (0, "failed"), (None, "stopped")):
        file = EventFile(path, after=after)
        file.hear(RunFinished(status=status))
        file.settle()
        data = path.read_bytes()
        assert file.checksum == {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        file.close()


SEED = SeedSignals("b/c", leyline.Stage.TRAINING, 0.0, 9, 1, math.nan, GradientHealth(math.inf, 0.0, 0.0, 0.0))
SLOT = SlotSignals("early", SlotState.OCCUPIED, 0, (SEED,))
STEP = StepFinished(round=0, arm="a", seed=0, step=0, signals=Signals(0, math.nan, 1.0, 0.5, 9, 9, (SLOT,)))
EVENTS: list[Event] = [
    RunStarted(run="r", arms=("a",), rounds=1, environments=1, steps=1),
    STEP,
    RunFinished(status="done"),
]


def write(folder: Path, lines: Sequence[str | dict[str, Any]]) -> Path:
    """Write lines, or records as lines, to a file of events."""
    file = folder / "events.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def recorded() -> list[dict[str, Any]]:
    return [json.loads(encode(event)) for event in EVENTS]


def test_nan_infinity_and_none_are_distinguished() -> None:
    line = encode(STEP)
    assert '"incubation_loss":"NaN","gradients":{"global_norm":"Infinity"' in line
    assert '"gain":null' in line


def test_unknown_fields_are_ignored_and_unknown_types_are_reported_once(tmp_path: Path) -> None:
    lines = recorded()
    assert {record["v"] for record in lines} == {EVENT_FORMAT}
    moved = {"type": "seed-moved", "v": EVENT_FORMAT, "to": "late"}
    seed = lines[1]["signals"]["slots"][0]["seeds"][0]
    seed["gradients"]["kurtosis"] = seed["colour"] = lines[1]["signals"]["heat"] = lines[2]["cost"] = {"a": ["NaN"]}
    reported: list[str] = []
    events = list(read_events(write(tmp_path, [*lines, moved, *lines[1:], moved]), tell=reported.append))
    assert repr(events) == repr([*EVENTS, *EVENTS[1:]])
    (line,) = reported
    assert line.startswith('events of type "seed-moved" are skipped: esper-core 0.')


@pytest.mark.parametrize("kind", ["run-finished", "from-the-future"])
def test_newer_format_is_refused_with_its_version(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, [*recorded()[:2], {"type": kind, "v": EVENT_FORMAT + 1, "status": "done"}])
    events = read_events(file)
    assert [next(events).type, next(events).type] == ["run-started", "step-finished"]
    with pytest.raises(RunFolderError) as refusal:
        next(events)
    first, place, reason, mend = str(refusal.value).splitlines()
    assert first.startswith("E421 ")
    assert reason.startswith(f"  its format version is {EVENT_FORMAT + 1}; esper-core 0.")
    assert reason.endswith(f" reads version {EVENT_FORMAT}")
    assert place.strip() == f"{file}:3"
    assert "packages.txt" in mend


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "Invalid JSON"),
        ("[1]", "should be an object"),
        ("[" * 9000, "Invalid JSON: recursion limit exceeded"),
        ('{"type": "from-the-future"}', "does not match any of the expected tags"),
        ('{"type": "run-finished", "v": "1", "more": 1}', "run-finished.status: Field required"),
        ('{"type": "run-finished", "v": 2, "status": "undone", "more": 1}', "run-finished.status: Input should be"),
        ('{"type": "run-finished", "v": 0, "status": "done"}', "format version is 0"),
        ('{"type": ["run-finished"], "v": 2}', "does not match any of the expected tags"),
        (encode(STEP).replace('"speed":4', '"speed":-4'), "a speed must be a whole number"),
    ],
)
def test_invalid_line_is_refused_with_its_number_and_the_reason(line: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as refusal:
        list(read_events(write(tmp_path, [recorded()[0], line])))
    (problem,) = refusal.value.problems
    assert (problem.code, Path(problem.file or "").name, problem.line) == ("E421", "events.jsonl", 2)
    assert why in str(problem)
    assert "packages.txt" in (problem.hint or "")


def test_torn_last_line_is_skipped_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path, recorded())
    with file.open("ab") as torn:
        torn.write(b'{"type":"run-fin')
    reported: list[str] = []
    assert repr(list(read_events(file, tell=reported.append))) == repr(EVENTS)
    assert reported.pop() == "the last line, line 4, is incomplete and skipped: 16 bytes without a newline"
    assert caplog.records == []
    with caplog.at_level(logging.WARNING, logger="esper"):
        list(read_events(file))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{file}: the last line, line 4, is incomplete")
    assert repr(list(read_events(write(tmp_path, recorded()), tell=reported.append))) == repr(EVENTS)
    assert list(read_events(write(tmp_path, []), tell=reported.append)) == []
    assert reported == [], "an intact file is read without a message"
