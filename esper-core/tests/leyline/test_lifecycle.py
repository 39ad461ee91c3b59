"""Lifecycle tables: their transitions, and errors for all others."""

import pickle

import pytest

from esper_core.leyline import LifecycleError
from esper_core.leyline.lifecycle import SEED_TABLE, SeedEvent, Stage, may, next_stage


def test_every_open_stage_can_be_removed_and_every_stage_is_reachable() -> None:
    for stage in Stage:
        assert may(stage, SeedEvent.REMOVE) is (stage not in (Stage.FOSSILISED, Stage.PRUNED))
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


def test_code_and_files_have_one_word_for_each_stage() -> None:
    assert [stage.value for stage in Stage] == [stage.name.lower() for stage in Stage]
