"""Events: to a line and back without loss, on disk once a step, and readable after the writer died."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from esper_core.leyline import RunFolderError, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.events import (
    EpisodeFinished,
    Event,
    GovernorActed,
    RunFinished,
    RunStarted,
    StageChanged,
    StepFinished,
)
from esper_core.leyline.signals import Finding, Gain, Opinion
from esper_core.telemetry import Bus, EventFile, decode, encode, read_events

numbers = st.floats(allow_nan=True, allow_infinity=True)
texts = st.text(max_size=20)
places = {"round": st.integers(0, 9), "arm": texts, "seed": st.integers(0, 99), "step": st.integers(0, 99)}
gains = st.none() | st.builds(Gain, st.integers(1, 99), *[numbers] * 5)
seeds = st.builds(
    SeedSignals,
    blueprint=texts,
    stage=st.sampled_from(Stage),
    alpha=st.floats(0, 1),
    parameters=st.integers(0, 99),
    age=st.none() | st.integers(0, 99),
    incubation_loss=st.none() | numbers,
    gain=gains,
    dependence=gains,
    opinion=st.none() | st.builds(Opinion, st.sampled_from(Finding), texts, price=st.none() | numbers),
)
slots = st.builds(
    SlotSignals,
    name=texts,
    state=st.sampled_from(SlotState),
    fossils=st.integers(0, 3),
    seeds=st.lists(seeds, max_size=3).map(tuple),
)
signals = st.builds(
    Signals,
    step=st.integers(0, 99),
    train_loss=numbers,
    validation_loss=numbers,
    validation_metric=numbers,
    parameters=st.integers(0, 10**9),
    host_parameters=st.integers(0, 10**9),
    slots=st.lists(slots, max_size=3).map(tuple),
)
counts = st.integers(0, 9)
stages = st.sampled_from(Stage)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        RunStarted,
        run=texts,
        arms=st.lists(texts, max_size=3).map(tuple),
        rounds=counts,
        environments=counts,
        steps=counts,
    ),
    st.builds(
        StageChanged,
        **places,
        slot=texts,
        seed_id=counts,
        blueprint=texts,
        was=st.none() | stages,
        now=stages,
        parameters=counts,
        reason=texts,
    ),
    st.builds(
        StepFinished,
        **places,
        signals=signals,
        reward=st.dictionaries(texts, numbers, max_size=3),
        action=texts,
    ),
    st.builds(
        GovernorActed,
        **places,
        act=texts,
        verdict=texts,
        reason=texts,
        back_to=st.none() | counts,
        penalty=numbers,
        withdrawn=st.booleans(),
    ),
    st.builds(
        EpisodeFinished,
        round=counts,
        arm=texts,
        seed=counts,
        test_loss=numbers,
        test_metric=numbers,
        validation_metric=numbers,
        parameters=counts,
        host_parameters=counts,
        fossils=counts,
        steps=counts,
        reward=st.none() | numbers,
    ),
    st.builds(RunFinished, status=st.sampled_from(["done", "failed", "interrupted", "stopped"]), reason=texts),
)


def as_told(value: object) -> str:
    """NaN is not equal to itself; its name is."""
    return repr(value)


@given(events)
def test_an_event_is_the_same_after_a_line_of_json(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert as_told(decode(line)) == as_told(event)


def test_nan_and_unknown_are_told_apart() -> None:
    episode = EpisodeFinished(
        round=0, arm="a", seed=1, test_loss=math.nan, test_metric=math.inf, validation_metric=0.5,
        parameters=1, host_parameters=1, fossils=0, steps=4, reward=None,
    )  # fmt: skip
    line = encode(episode)
    assert '"test_loss":"NaN","test_metric":"Infinity"' in line
    assert '"reward":null' in line


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '{"type":"nonsense"}', '{"type":"run-finished","status":"done","v":1,"more":1}']
)
def test_a_line_that_is_none_of_ours_is_refused(line: str) -> None:
    with pytest.raises(ValidationError):
        decode(line)


def test_what_was_settled_is_on_disk_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    bus = Bus([file])
    bus.publish(RunFinished(status="done", reason="one"))
    assert (tmp_path / "events.jsonl").read_text() == ""
    bus.settle()
    bus.publish(RunFinished(status="done", reason="zwei – ü"))
    bus.settle()
    with (tmp_path / "events.jsonl").open("a") as torn:
        torn.write('{"type":"run-fin')
    assert [event.reason for event in read_events(tmp_path / "events.jsonl") if isinstance(event, RunFinished)] == [
        "one",
        "zwei – ü",
    ]
    file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_told_plainly_and_closing_does_not_tell_it_again() -> None:
    file = EventFile(Path("/dev/full"))
    file.hear(RunFinished(status="done"))
    with pytest.raises(RunFolderError, match="E410 cannot write /dev/full: No space left on device"):
        file.settle()
    file.close()
