"""The heuristic's memory of failed trials."""

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
    """Return the memory after an observation of the slot in each step."""
    memory = Memory()
    for step, seen in enumerate(looks):
        memory.look([seen], step, Forecast())
    return memory


@pytest.mark.parametrize("stage", list(Stage)[:5])
def test_living_seeds_do_not_count_as_failed(stage):
    assert remembered(slot(seed("a/conv", stage))).refused == set()


@pytest.mark.parametrize("stage", list(Stage)[:5])
@pytest.mark.parametrize("gain", [GOOD, BAD, None])
def test_lost_seeds_count_as_failed(stage, gain):
    memory = remembered(slot(seed("a/conv", stage, gain)), slot())
    assert not memory.may_try(slot(), "a/conv")
    assert memory.may_try(slot(), "a/mlp")


def test_failed_blueprints_are_allowed_after_the_next_fossil():
    memory = remembered(slot(seed("a/mlp")), slot(), slot(seed("a/conv", Stage.HOLDING)), slot(fossils=1))
    assert not memory.may_try(slot(), "a/mlp")
    assert memory.may_try(slot(fossils=1), "a/mlp")
    assert memory.may_try(slot(fossils=1), "a/conv")


@pytest.mark.parametrize(("gain", "again"), [(GOOD, True), (None, True), (BAD, False)])
def test_a_seed_dropped_for_a_better_one_failed_only_if_it_did_not_pay(gain, again):
    memory = remembered(slot(seed("a/conv"), seed("a/mlp", gain=gain)), slot(seed("a/conv", Stage.BLENDING)))
    assert memory.may_try(slot(), "a/mlp") is again


def test_seeds_lost_with_a_removed_fossil_count_as_failed():
    memory = remembered(slot(seed("a/mlp"), fossils=1), slot())
    assert not memory.may_try(slot(), "a/mlp")


def test_a_blueprint_that_never_germinated_counts_as_failed():
    memory = Memory()
    memory.look([slot()], 0, Forecast())
    memory.germinated("early", "a/broken", 0)
    memory.look([slot()], 1, Forecast())
    assert not memory.may_try(slot(), "a/broken")


def test_the_step_at_which_a_stage_began_is_remembered():
    looks = [slot(seed("a/conv"))] * 2 + [slot(seed("a/conv", Stage.BLENDING))] + [slot(seed("a/conv", Stage.HOLDING))]
    for count, since in ((1, 0), (2, 0), (3, 2), (4, 3)):
        assert remembered(*looks[:count]).life("early", seed("a/conv")).since == since


def test_the_promise_is_the_last_gain_measured_while_incubating():
    promised = Forecast().net(seed("a/conv"))
    seen = [seed("a/conv", gain=BAD), seed("a/conv"), seed("a/conv", gain=None), seed("a/conv", Stage.HOLDING, BAD)]
    memory = remembered(*map(slot, seen))
    assert memory.life("early", seed("a/conv")).promise == promised


def test_each_slot_has_its_own_memory():
    other = SlotSignals("late", SlotState.FREE, 0)
    memory = remembered(slot(seed("a/conv")), slot())
    assert memory.may_try(other, "a/conv")


def test_a_memory_survives_json():
    memory = remembered(slot(seed("a/mlp")), slot(), slot(seed("a/conv"), seed("a/norm", gain=None)))
    wild = Gain(800, math.nan, 0.2, 0.0, -1.0, 1.0)
    memory.look([slot(seed("a/conv", gain=wild), seed("a/norm", gain=None), seed("a/mean"))], 3, Forecast())
    assert [life.promise for life in memory.lives.values()][:2] == [-math.inf, None]
    assert Memory.of(json.loads(json.dumps(memory.plain(), allow_nan=False))) == memory
