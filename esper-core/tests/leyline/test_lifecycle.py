"""Lifecycle tables: their transitions, and errors for all others."""

import pickle

import pytest
from hypothesis import given, strategies as st

from esper_core.leyline import LifecycleError
from esper_core.leyline.lifecycle import (
    ENDED,
    SEED_TABLE,
    SLOT_TABLE,
    SeedEvent,
    SlotEvent,
    SlotState,
    Stage,
    may,
    next_slot_state,
    next_stage,
)


@given(st.lists(st.sampled_from(SeedEvent), max_size=12))
def test_any_sequence_of_events_stays_in_the_table(events: list[SeedEvent]) -> None:
    stage = Stage.GERMINATED
    for event in events:
        legal = (stage, event) in SEED_TABLE
        assert may(stage, event) is legal
        if not legal:
            with pytest.raises(LifecycleError) as caught:
                next_stage(stage, event)
            assert caught.value.state == stage.value
            assert set(caught.value.legal) == {e.value for s, e in SEED_TABLE if s is stage}
            continue
        assert stage not in ENDED
        stage = next_stage(stage, event)


@given(st.lists(st.sampled_from(SlotEvent), max_size=12))
def test_slot_states_follow_the_table(events: list[SlotEvent]) -> None:
    state = SlotState.FREE
    for event in events:
        if (state, event) in SLOT_TABLE:
            state = next_slot_state(state, event)
            assert (state is SlotState.OCCUPIED) == (event is SlotEvent.GERMINATE)
        else:
            with pytest.raises(LifecycleError):
                next_slot_state(state, event)


def test_every_open_stage_can_be_removed_and_every_stage_is_reachable() -> None:
    for stage in Stage:
        assert may(stage, SeedEvent.REMOVE) is (stage not in ENDED)
    reached = {Stage.GERMINATED}
    while more := {now for (was, _), now in SEED_TABLE.items() if was in reached} - reached:
        reached |= more
    assert reached == set(Stage)
    assert {was for (was, event) in SEED_TABLE if event is SeedEvent.FOSSILISE} == {Stage.HOLDING}
    assert {was for (was, event), now in SEED_TABLE.items() if now is Stage.HOLDING} == {Stage.BLENDING}


def test_error_names_state_event_and_legal_events_and_can_be_pickled() -> None:
    with pytest.raises(LifecycleError) as caught:
        next_stage(Stage.TRAINING, SeedEvent.FOSSILISE)
    assert str(caught.value) == (
        "E301 fossilise is not possible for a seed that is training\n  Possible now: advance, prune, wait"
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is LifecycleError
    assert str(again) == str(caught.value)


def test_people_read_british_spelling_and_files_keep_their_value() -> None:
    assert (Stage.FOSSILISED.label, Stage.FOSSILISED.value) == ("fossilised", "fossilized")
    assert {stage.label for stage in Stage if stage.label != stage.value} == {"fossilised"}
