"""Each rule of the heuristic, on observations made by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    FollowsPlan,
    Gain,
    Observation,
    Op,
    Policy,
    SeedSignals,
    SettingError,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
)
from esper_policies.heuristic import Forecast, Heuristic
from esper_policies.settings import HeuristicSettings

SPACE = ActionSpace({"early": ("a/conv", "a/mlp"), "late": ("a/mlp",)})
STEPS = 40
ALL_OPS = {
    Stage.GERMINATED: {Op.PRUNE},
    Stage.TRAINING: {Op.ADVANCE, Op.PRUNE},
    Stage.BLENDING: {Op.PRUNE},
    Stage.HOLDING: {Op.PRUNE, Op.FOSSILISE, Op.RETARGET},
    Stage.DRAINING: set(),
}
"""What each stage allows where no gate stands before it."""


def gain(mean):
    return Gain(800, mean, 0.2, 0.0, -1.0, 1.0)


def seed(name, stage=Stage.TRAINING, mean=0.2, age=5, parameters=100):
    return SeedSignals(name, stage, 0.0, parameters, age, gain=None if mean is None else gain(mean))


def slot(name, *seeds, fossils=0, state=None):
    return SlotSignals(name, state or (SlotState.OCCUPIED if seeds else SlotState.FREE), fossils, seeds)


def seen(step, *slots, steps=STEPS):
    signals = Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=slots)
    return Observation(step, steps, signals)


def mask_of(observation, *, room=None, refused=()):
    """What is possible without gates. room: what may germinate, by slot. refused: ops that the gates forbid."""
    slots = observation.signals.slots
    if room is None:
        room = {one.name: SPACE.blueprints[one.name] for one in slots if one.state is SlotState.FREE}
    seeds = {
        one.name: {own.blueprint: frozenset(ALL_OPS[own.stage] - set(refused)) for own in one.seeds}
        for one in slots
        if one.seeds
    }
    ops = {
        one.name: frozenset({Op.GERMINATE} if room.get(one.name) else ()).union(*seeds.get(one.name, {}).values())
        for one in slots
    }
    return ActionMask(ops, room, seeds)


def decided(*looks, settings=None, **possible):
    """The last action of a fresh policy that is shown ``looks``, the last with what is ``possible``."""
    policy = Heuristic(SPACE, **(settings or {}))
    for look in looks[:-1]:
        policy.act([look], [ActionMask()])
    return policy.act([looks[-1]], [mask_of(looks[-1], **possible)])[0]


def test_it_keeps_the_contract():
    assert isinstance(Heuristic(SPACE), Policy)
    assert isinstance(Heuristic(SPACE), FollowsPlan)


def test_the_settings_of_a_file_and_those_of_a_program_have_the_same_defaults():
    assert Heuristic(SPACE).settings == HeuristicSettings()


# plant


def test_it_plants_the_first_that_the_mask_offers():
    assert decided(seen(10, slot("early"))) == Action(Op.GERMINATE, "early", "a/conv")
    assert decided(seen(10, slot("early")), settings={"speed": 2}).speed == 2


@pytest.mark.parametrize(("step", "plants"), [(0, False), (3, False), (4, True), (24, True), (25, False), (39, False)])
def test_it_plants_neither_too_early_nor_too_late(step, plants):
    assert (decided(seen(step, slot("early"))).op is Op.GERMINATE) is plants


@pytest.mark.parametrize(("steps", "plants"), [(13, False), (14, True)])
def test_it_plants_where_there_is_time_for_a_preview_and_a_ramp_in_and_out(steps, plants):
    action = decided(seen(0, slot("early"), steps=steps), settings={"first": 0.0})
    assert (action.op is Op.GERMINATE) is plants


def test_it_fills_the_nursery_before_it_goes_to_the_next_slot():
    first = slot("early", seed("a/conv", age=1))
    action = decided(seen(10, first, slot("late")), room={"early": ("a/mlp",), "late": ("a/mlp",)})
    assert action == Action(Op.GERMINATE, "early", "a/mlp")
    full = decided(seen(10, first, slot("late")), room={"early": (), "late": ("a/mlp",)})
    assert full == Action(Op.GERMINATE, "late", "a/mlp")


def test_it_adds_nothing_to_a_nursery_that_has_been_previewed():
    waiting = slot("early", seed("a/conv", age=5))
    acting = slot("late", seed("a/mlp", Stage.BLENDING))
    assert decided(seen(10, waiting, acting), room={"early": ("a/mlp",)}) == WAIT


def test_it_plants_nothing_twice_that_came_to_nothing_and_stops_when_all_has():
    gone = [seen(9, slot("early", seed("a/conv"))), seen(10, slot("early"))]
    assert decided(*gone) == Action(Op.GERMINATE, "early", "a/mlp")
    gone += [seen(11, slot("early", seed("a/mlp"))), seen(12, slot("early"))]
    assert decided(*gone) == WAIT
    assert decided(*gone, seen(13, slot("early", fossils=1))).op is Op.GERMINATE


def test_a_withdrawn_blueprint_is_left_out():
    assert decided(seen(10, slot("early")), room={"early": ("a/mlp",)}).blueprint == "a/mlp"


# choose


def test_it_waits_for_the_end_of_the_preview_and_then_blends_in_what_promises_to_pay():
    assert decided(seen(10, slot("early", seed("a/conv", age=4)))) == WAIT
    assert decided(seen(10, slot("early", seed("a/conv", age=5)))) == Action(Op.ADVANCE, "early", "a/conv")


def test_of_a_nursery_it_blends_in_the_best_beyond_its_cost():
    crowd = [seed("a/pointwise", mean=0.1), seed("a/conv", mean=0.2), seed("a/mlp", mean=0.3, parameters=9000)]
    assert decided(seen(10, slot("early", *crowd))).blueprint == "a/conv"
    assert decided(seen(10, slot("early", *crowd)), settings={"price": 0.0}).blueprint == "a/mlp"


def test_a_nursery_is_judged_when_the_youngest_has_been_previewed():
    crowd = [seed("a/conv", age=7), seed("a/mlp", age=4)]
    assert decided(seen(10, slot("early", *crowd))) == WAIT


def test_of_several_slots_it_takes_the_best_first():
    slots = [slot("early", seed("a/conv", mean=0.1)), slot("late", seed("a/mlp", mean=0.2))]
    assert decided(seen(10, *slots)).slot == "late"


def test_what_promises_nothing_is_dropped_all_of_it_at_once():
    crowd = [seed("a/conv", mean=0.001), seed("a/mlp", mean=-0.1)]
    assert decided(seen(10, slot("early", *crowd))) == Action(Op.PRUNE, "early")


def test_a_seed_that_costs_more_than_it_promises_is_dropped():
    assert decided(seen(10, slot("early", seed("a/mlp", mean=0.1, parameters=5000)))).op is Op.PRUNE


def test_what_is_ready_comes_before_something_new():
    look = seen(10, slot("early"), slot("late", seed("a/mlp")))
    assert decided(look) == Action(Op.ADVANCE, "late", "a/mlp")


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING, Stage.DRAINING])
def test_while_one_acts_no_other_is_blended_in(stage):
    other = slot("late", seed("a/mlp", stage, mean=-0.1))
    assert decided(seen(10, slot("early", seed("a/conv")), other)) == WAIT


def test_while_one_acts_what_promises_nothing_is_dropped_all_the_same():
    slots = [slot("early", seed("a/conv", mean=-0.1)), slot("late", seed("a/mlp", Stage.BLENDING))]
    assert decided(seen(10, *slots)) == Action(Op.PRUNE, "early")


@pytest.mark.parametrize(("age", "then"), [(5, Op.WAIT), (9, Op.WAIT), (10, Op.PRUNE)])
def test_what_its_gate_refuses_gets_its_time_and_no_more(age, then):
    look = seen(20, slot("early", seed("a/conv", age=age)))
    assert decided(look, refused=[Op.ADVANCE]).op is then


@pytest.mark.parametrize(("age", "then"), [(5, Op.WAIT), (9, Op.WAIT), (10, Op.PRUNE)])
def test_what_is_unknown_gets_its_time_and_no_more(age, then):
    assert decided(seen(20, slot("early", seed("a/conv", mean=None, age=age)))).op is then


def test_a_gate_that_opens_for_one_of_a_nursery_decides_for_it():
    look = seen(10, slot("early", seed("a/conv", mean=0.3), seed("a/mlp", mean=0.2)))
    seeds = {"early": {"a/conv": frozenset({Op.PRUNE}), "a/mlp": frozenset({Op.ADVANCE, Op.PRUNE})}}
    mask = ActionMask({"early": frozenset({Op.ADVANCE, Op.PRUNE})}, {}, seeds)
    assert Heuristic(SPACE).act([look], [mask]) == [Action(Op.ADVANCE, "early", "a/mlp")]


@pytest.mark.parametrize(("step", "then"), [(31, Op.ADVANCE), (32, Op.PRUNE)])
def test_what_could_not_be_taken_out_again_is_not_blended_in(step, then):
    assert decided(seen(step, slot("early", seed("a/conv", age=9)))).op is then


# keep


def test_what_pays_in_the_host_is_kept_at_once():
    assert decided(seen(20, slot("early", seed("a/conv", Stage.HOLDING)))) == Action(Op.FOSSILISE, "early")


def test_a_promise_is_no_reason_to_keep_what_is_measured_to_bring_nothing():
    looks = [seen(19, slot("early", seed("a/conv"))), seen(20, slot("early", seed("a/conv", Stage.HOLDING, 0.001)))]
    assert decided(*looks) == WAIT


def test_where_nothing_is_measured_any_more_the_promise_counts():
    for mean, then in ((0.2, Op.FOSSILISE), (0.001, Op.WAIT), (None, Op.WAIT)):
        looks = [
            seen(19, slot("early", seed("a/conv", mean=mean))),
            seen(20, slot("early", seed("a/conv", Stage.HOLDING, None))),
        ]
        assert decided(*looks).op is then


def test_of_several_that_pay_the_best_is_kept_first():
    slots = [
        slot("early", seed("a/conv", Stage.HOLDING, 0.1)),
        slot("late", seed("a/mlp", Stage.HOLDING, 0.2)),
    ]
    assert decided(seen(20, *slots)) == Action(Op.FOSSILISE, "late")


# rid


def held(steps, mean=0.001, at=20, **possible):
    """What is done after a seed has held for so many steps, with this gain."""
    looks = [seen(at + step, slot("early", seed("a/conv", Stage.HOLDING, mean))) for step in range(steps + 1)]
    return decided(*looks, **possible)


def test_what_does_not_pay_is_taken_out_after_a_while():
    assert [held(steps).op for steps in range(6)] == [Op.WAIT] * 5 + [Op.PRUNE]
    assert held(2, settings={"patience": 2, "speed": 3}) == Action(Op.PRUNE, "early", "a/conv", speed=3)


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.DRAINING])
def test_what_is_still_on_its_way_is_left_alone(stage):
    looks = [seen(step, slot("early", seed("a/conv", stage, -0.1))) for step in range(30, 40)]
    assert [decided(*looks[:count]) for count in range(1, 11)] == [WAIT] * 10


def test_what_pays_and_may_not_be_kept_is_taken_out_after_a_while():
    assert [held(steps, 0.2, refused=[Op.FOSSILISE]).op for steps in (0, 4, 5)] == [Op.WAIT, Op.WAIT, Op.PRUNE]


def test_at_the_end_there_is_no_time_to_wait():
    assert [held(0, at=step).op for step in (34, 35, 36)] == [Op.WAIT, Op.PRUNE, Op.PRUNE]


def test_of_two_that_nobody_can_tell_apart_the_one_that_promised_less_goes_first():
    young = [slot("early", seed("a/conv", mean=0.2)), slot("late", seed("a/mlp", mean=0.1))]
    blended = [slot(name, seed(of, Stage.HOLDING, None)) for name, of in (("early", "a/conv"), ("late", "a/mlp"))]
    looks = [seen(10, *young)] + [seen(step, *blended) for step in range(11, 17)]
    assert decided(*looks, refused=[Op.FOSSILISE]) == Action(Op.PRUNE, "late", "a/mlp")
    one_goes = [blended[0], slot("late", seed("a/mlp", Stage.DRAINING, None))]
    assert decided(*looks, seen(17, *one_goes), refused=[Op.FOSSILISE]) == WAIT
    assert decided(*looks, seen(17, *one_goes), seen(18, blended[0], slot("late"))).op is Op.FOSSILISE


# environments, episodes, settings


def test_a_new_episode_begins_without_memories():
    policy = Heuristic(SPACE, first=0.0)
    looks = [seen(8, slot("early", seed("a/conv"))), seen(9, slot("early"))]
    for look in looks:
        policy.act([look], [ActionMask()])
    (action,) = policy.act([seen(10, slot("early"))], [mask_of(looks[1])])
    assert action.blueprint == "a/mlp"
    (action,) = policy.act([seen(0, slot("early"))], [mask_of(looks[1])])
    assert action.blueprint == "a/conv"


def test_environments_are_remembered_apart_and_forgotten_when_they_are_gone():
    policy = Heuristic(SPACE)
    free = seen(9, slot("early"))
    policy.act([seen(8, slot("early")), seen(8, slot("early", seed("a/conv")))], [ActionMask()] * 2)
    first, second = policy.act([free] * 2, [mask_of(free)] * 2)
    assert (first.blueprint, second.blueprint) == ("a/conv", "a/mlp")
    assert len(policy.act([free], [mask_of(free)])) == len(policy.unfinished()) == 1
    assert policy.act([free] * 2, [mask_of(free)] * 2)[1].blueprint == "a/conv"


@pytest.mark.parametrize(("steps", "told"), [(13, True), (14, True), (15, True), (16, False), (40, False)])
def test_an_episode_that_is_too_short_for_anything_is_told(steps, told):
    policy = Heuristic(SPACE)
    policy.act([seen(0, slot("early"), steps=steps)] * 2, [ActionMask()] * 2)
    (one, other) = policy.unfinished()
    said = (f"anything: 5 steps of preview and two ramps of 4 leave no room in {steps} steps",)
    assert one == other == (said if told else ())


def test_what_it_is_told_of_costs_is_what_its_forecast_goes_by():
    told = {"undersold": 3.0, "caution": 2.0, "price": 0.1, "fee": 0.2, "points": 5.0}
    assert Heuristic(SPACE, **told).forecast == Forecast(**told)


def test_planting_that_would_end_before_it_begins_is_refused():
    with pytest.raises(SettingError) as caught:
        Heuristic(SPACE, first=0.7)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("E120", "first")
    assert "0.7 and 0.6" in problem.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preview", 0),
        ("preview", 2.5),
        ("patience", -1),
        ("first", -0.1),
        ("last", -0.1),
        ("last", 1.1),
        ("speed", 0),
        ("undersold", 0.0),
        ("caution", -1.0),
        ("price", -1.0),
        ("price", float("nan")),
        ("fee", float("inf")),
        ("previw", 3),
    ],
)
def test_settings_out_of_bounds_are_refused_with_their_place(name, value):
    with pytest.raises(ValidationError) as caught:
        HeuristicSettings.model_validate({name: value})
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]
