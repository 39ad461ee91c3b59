"""The heuristic's memory of what was tried in vain."""

from __future__ import annotations

import json
import math

import pytest

from esper_core.leyline import Gain, SeedSignals, SlotSignals, SlotState, Stage
from esper_policies.heuristic import Forecast, Memory

GOOD = Gain(800, 0.2, 0.2, 0.0, -1.0, 1.0)
BAD = Gain(800, -0.2, 0.2, 0.0, -1.0, 1.0)


def slot(*seeds, fossils=0):
    return SlotSignals("early", SlotState.OCCUPIED if seeds else SlotState.FREE, fossils, seeds)


def seed(name, stage=Stage.TRAINING, gain=GOOD):
    return SeedSignals(name, stage, 0.0, 100, 5, gain=gain)


def remembered(*looks):
    """What is remembered after the slot was looked at once a step."""
    memory = Memory()
    for step, seen in enumerate(looks):
        memory.look([seen], step, Forecast())
    return memory


def test_at_first_everything_may_be_tried():
    assert remembered(slot()).may_try(slot(), "a/conv")


@pytest.mark.parametrize("stage", list(Stage)[:5])
def test_what_lives_is_not_held_against_it(stage):
    assert remembered(slot(seed("a/conv", stage))).refused == set()


@pytest.mark.parametrize("stage", list(Stage)[:5])
@pytest.mark.parametrize("gain", [GOOD, BAD, None])
def test_what_is_gone_for_nothing_came_to_nothing(stage, gain):
    memory = remembered(slot(seed("a/conv", stage, gain)), slot())
    assert not memory.may_try(slot(), "a/conv")
    assert memory.may_try(slot(), "a/mlp")


def test_behind_the_next_fossil_it_may_be_tried_again():
    memory = remembered(slot(seed("a/mlp")), slot(), slot(seed("a/conv", Stage.HOLDING)), slot(fossils=1))
    assert not memory.may_try(slot(), "a/mlp")
    assert memory.may_try(slot(fossils=1), "a/mlp")
    assert memory.may_try(slot(fossils=1), "a/conv")


@pytest.mark.parametrize(("gain", "again"), [(GOOD, True), (None, True), (BAD, False)])
def test_what_was_dropped_for_a_better_one_may_try_again_unless_it_did_not_pay(gain, again):
    memory = remembered(slot(seed("a/conv"), seed("a/mlp", gain=gain)), slot(seed("a/conv", Stage.BLENDING)))
    assert memory.may_try(slot(), "a/mlp") is again


def test_what_is_gone_with_a_fossil_that_was_taken_back_came_to_nothing():
    memory = remembered(slot(seed("a/mlp"), fossils=1), slot())
    assert not memory.may_try(slot(), "a/mlp")


def test_what_was_asked_for_and_never_came_is_not_asked_for_again():
    memory = Memory()
    memory.look([slot()], 0, Forecast())
    memory.planted("early", "a/broken", 0)
    memory.look([slot()], 1, Forecast())
    assert not memory.may_try(slot(), "a/broken")


def test_a_seed_is_known_by_its_stage_and_since_when():
    looks = [slot(seed("a/conv"))] * 2 + [slot(seed("a/conv", Stage.BLENDING))] + [slot(seed("a/conv", Stage.HOLDING))]
    for count, since in ((1, 0), (2, 0), (3, 2), (4, 3)):
        assert remembered(*looks[:count]).life("early", seed("a/conv")).since == since


def test_a_promise_is_the_last_that_was_measured_while_the_seed_incubated():
    promised = Forecast().net(seed("a/conv"))
    seen = [seed("a/conv", gain=BAD), seed("a/conv"), seed("a/conv", gain=None), seed("a/conv", Stage.HOLDING, BAD)]
    memory = remembered(*map(slot, seen))
    assert memory.life("early", seed("a/conv")).promise == promised


def test_slots_are_remembered_apart():
    other = SlotSignals("late", SlotState.FREE, 0)
    memory = remembered(slot(seed("a/conv")), slot())
    assert memory.may_try(other, "a/conv")


def test_a_memory_comes_back_from_json_as_it_was():
    memory = remembered(slot(seed("a/mlp")), slot(), slot(seed("a/conv"), seed("a/norm", gain=None)))
    wild = Gain(800, math.nan, 0.2, 0.0, -1.0, 1.0)
    memory.look([slot(seed("a/conv", gain=wild), seed("a/norm", gain=None), seed("a/mean"))], 3, Forecast())
    assert [life.promise for life in memory.lives.values()][:2] == [-math.inf, None]
    assert Memory.of(json.loads(json.dumps(memory.plain(), allow_nan=False))) == memory


def test_what_was_written_down_does_not_change_with_the_memory():
    memory = remembered(slot(seed("a/mlp")), slot(seed("a/conv")))
    plain = memory.plain()
    before = json.dumps(plain)
    again = Memory.of(plain)
    for one in (memory, again):
        one.look([slot(seed("a/conv", Stage.HOLDING)), SlotSignals("late", SlotState.FREE, 0)], 9, Forecast())
        one.look([slot(fossils=1)], 10, Forecast())
    assert json.dumps(plain) == before
    assert memory == again
