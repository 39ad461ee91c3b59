"""Each rule of the heuristic, on observations made by hand, and the forecasts that it decides by."""

import json
import math
from dataclasses import replace

import pytest

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    Finding,
    Gain,
    Observation,
    Op,
    Opinion,
    SeedSignals,
    SettingError,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
    State,
)
from esper_core.leyline.constants import NATS_PER_PARAMETER
from esper_policies.heuristic import Forecast, Heuristic, Life
from esper_policies.settings import CAUTION, FEE, RISE, HeuristicSettings

SPACE = ActionSpace({"early": ("a/conv", "a/mlp"), "late": ("a/mlp",)})
STEPS = 40
ALL_OPS = {
    Stage.GERMINATED: {Op.PRUNE},
    Stage.TRAINING: {Op.ADVANCE, Op.PRUNE},
    Stage.BLENDING: {Op.PRUNE},
    Stage.HOLDING: {Op.PRUNE, Op.FOSSILISE, Op.RETARGET},
    Stage.DRAINING: set(),
}
"""The ops of each stage without gates."""


def gain(mean):
    return Gain(800, mean, 0.2, 0.0, -1.0, 1.0)


def seed(name, stage=Stage.TRAINING, mean=0.2, age=6, parameters=100):
    return SeedSignals(name, stage, 0.0, parameters, age, gain=None if mean is None else gain(mean))


def slot(name, *seeds, fossils=0, state=None):
    return SlotSignals(name, state or (SlotState.OCCUPIED if seeds else SlotState.FREE), fossils, seeds)


def seen(step, *slots, steps=STEPS):
    signals = Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=slots)
    return Observation(step, steps, signals)


def mask_of(observation, *, room=None, refused=()):
    """Return the mask without gates. room: what may germinate, by slot. refused: ops that gates forbid."""
    slots = observation.signals.slots
    if room is None:
        room = {slot.name: SPACE.blueprints[slot.name] for slot in slots if slot.state is SlotState.FREE}
    seeds = {
        slot.name: {seed.blueprint: frozenset(ALL_OPS[seed.stage] - set(refused)) for seed in slot.seeds}
        for slot in slots
        if slot.seeds
    }
    ops = {
        slot.name: frozenset({Op.GERMINATE} if room.get(slot.name) else ()).union(*seeds.get(slot.name, {}).values())
        for slot in slots
    }
    return ActionMask(ops, room, seeds)


def decided(*looks, settings=None, **possible):
    """Return the last action of a new policy on the observations ``looks``, the last with the mask ``possible``."""
    policy = Heuristic(SPACE, **(settings or {}))
    for look in looks[:-1]:
        policy.act([look], [ActionMask()])
    return policy.act([looks[-1]], [mask_of(looks[-1], **possible)])[0]


def test_it_germinates_the_first_blueprint_that_has_not_failed_from_first_to_last_where_its_life_fits():
    assert decided(seen(10, slot("early")), settings={"speed": 2}) == Action(Op.GERMINATE, "early", "a/conv", speed=2)
    assert [decided(seen(step, slot("early"))).op for step in (0, 24, 25, 39)] == [Op.GERMINATE] * 2 + [Op.WAIT] * 2
    short = [decided(seen(0, slot("early"), steps=steps), settings={"first": 0.0}).op for steps in (14, 15)]
    assert short == [Op.WAIT, Op.GERMINATE]
    gone = [seen(9, slot("early", seed("a/conv"))), seen(10, slot("early"))]
    assert decided(*gone) == Action(Op.GERMINATE, "early", "a/mlp")
    gone += [seen(11, slot("early", seed("a/mlp"))), seen(12, slot("early"))]
    assert decided(*gone) == WAIT
    for grown in ([slot("early", fossils=1)], [slot("early"), slot("late", fossils=1)]):
        assert decided(*gone, seen(13, *grown)) == Action(Op.GERMINATE, "early", "a/conv")


def test_it_fills_the_nursery_before_the_next_slot_and_not_after_its_preview():
    first = slot("early", seed("a/conv", age=1))
    action = decided(seen(10, first, slot("late")), room={"early": ("a/mlp",), "late": ("a/mlp",)})
    assert action == Action(Op.GERMINATE, "early", "a/mlp")
    full = decided(seen(10, first, slot("late")), room={"early": (), "late": ("a/mlp",)})
    assert full == Action(Op.GERMINATE, "late", "a/mlp")
    waiting = slot("early", seed("a/conv", age=6))
    acting = slot("late", seed("a/mlp", Stage.BLENDING))
    assert decided(seen(10, waiting, acting), room={"early": ("a/mlp",)}) == WAIT


CONV, MLP = Action(Op.ADVANCE, "early", "a/conv"), Action(Op.ADVANCE, "early", "a/mlp")
LATE, DROP = Action(Op.ADVANCE, "late", "a/mlp"), Action(Op.PRUNE, "early", "a/conv")
CROWD = [seed("a/pointwise", mean=0.1), seed("a/conv", mean=0.2), seed("a/mlp", mean=0.3, parameters=9000)]


@pytest.mark.parametrize(
    ("slots", "settings", "action"),
    [
        ([slot("early", seed("a/conv", age=5))], {}, WAIT),
        ([slot("early", seed("a/conv", age=6))], {}, CONV),
        ([slot("early", *CROWD)], {}, CONV),
        ([slot("early", *CROWD)], {"price": 0.0}, MLP),
        ([slot("early", seed("a/conv", age=8), seed("a/mlp", age=5))], {}, WAIT),
        ([slot("early", seed("a/conv", mean=0.1)), slot("late", seed("a/mlp", mean=0.2))], {}, LATE),
        ([slot("early", seed("a/conv", mean=0.001), seed("a/mlp", mean=-0.1))], {}, DROP),
        ([slot("early", seed("a/mlp", mean=0.1, parameters=5000))], {}, Action(Op.PRUNE, "early", "a/mlp")),
        ([slot("early", seed("a/conv", mean=0.015))], {}, WAIT),
        ([slot("early", seed("a/conv", mean=0.2), seed("a/mlp", mean=0.195))], {}, WAIT),
        ([slot("early"), slot("late", seed("a/mlp"))], {}, LATE),
        ([slot("early", seed("a/conv", mean=-0.1)), slot("late", seed("a/mlp", Stage.BLENDING))], {}, DROP),
    ],
    ids=[
        "its preview is not over",
        "a promising seed",
        "the best net gain",
        "the best gain where parameters are free",
        "the preview of the youngest is not over",
        "the best slot",
        "no seed promises anything",
        "it costs more than it promises",
        "its forecast is undecided",
        "which of two is better is undecided",
        "advancing precedes germinating",
        "pruned while another is blended in",
    ],
)
def test_incubating_seeds_are_advanced_pruned_or_left(slots, settings, action):
    assert decided(seen(10, *slots), settings=settings) == action


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING, Stage.DRAINING])
def test_one_seed_is_blended_in_at_a_time(stage):
    other = slot("late", seed("a/mlp", stage, mean=-0.1))
    assert decided(seen(10, slot("early", seed("a/conv")), other)) == WAIT


@pytest.mark.parametrize(("age", "then"), [(6, Op.WAIT), (15, Op.WAIT), (16, Op.PRUNE)])
@pytest.mark.parametrize(("mean", "refused"), [(0.2, [Op.ADVANCE]), (None, [])])
def test_a_seed_that_its_gate_refuses_or_of_unknown_gain_is_pruned_after_patience(mean, refused, age, then):
    look = seen(20, slot("early", seed("a/conv", mean=mean, age=age)))
    assert decided(look, refused=refused).op is then


def test_the_seed_that_its_gate_admits_is_advanced():
    look = seen(20, slot("early", seed("a/conv", mean=0.3, age=16), seed("a/mlp", mean=0.2, age=16)))
    seeds = {"early": {"a/conv": frozenset({Op.PRUNE}), "a/mlp": frozenset({Op.ADVANCE, Op.PRUNE})}}
    mask = ActionMask({"early": frozenset({Op.ADVANCE, Op.PRUNE})}, {}, seeds)
    assert Heuristic(SPACE).act([look], [mask]) == [Action(Op.ADVANCE, "early", "a/mlp")]


@pytest.mark.parametrize(("step", "then"), [(31, Op.ADVANCE), (32, Op.PRUNE)])
def test_no_seed_is_advanced_without_time_to_remove_it(step, then):
    assert decided(seen(step, slot("early", seed("a/conv", age=9)))).op is then


@pytest.mark.parametrize(
    ("promise", "measured", "then"),
    [
        (0.2, 0.2, Op.FOSSILISE),
        (0.2, 0.001, Op.WAIT),
        (0.2, None, Op.FOSSILISE),
        (0.001, None, Op.WAIT),
        (None, None, Op.WAIT),
    ],
)
def test_a_holding_seed_is_fossilised_for_its_measured_gain_or_else_for_its_promise(promise, measured, then):
    before = seen(19, slot("early", seed("a/conv", mean=promise)))
    assert decided(before, seen(20, slot("early", seed("a/conv", Stage.HOLDING, measured)))).op is then


def test_the_best_holding_seed_is_fossilised_first_and_the_least_promising_pruned_first():
    slots = [slot("early", seed("a/conv", Stage.HOLDING, 0.1)), slot("late", seed("a/mlp", Stage.HOLDING, 0.2))]
    assert decided(seen(20, *slots)) == Action(Op.FOSSILISE, "late")
    young = [slot("early", seed("a/conv", mean=0.2)), slot("late", seed("a/mlp", mean=0.1))]
    blended = [slot(name, seed(of, Stage.HOLDING, None)) for name, of in (("early", "a/conv"), ("late", "a/mlp"))]
    looks = [seen(10, *young)] + [seen(step, *blended) for step in range(11, 22)]
    assert decided(*looks, refused=[Op.FOSSILISE]) == Action(Op.PRUNE, "late", "a/mlp")
    one_goes = [blended[0], slot("late", seed("a/mlp", Stage.DRAINING, None))]
    assert decided(*looks, seen(22, *one_goes), refused=[Op.FOSSILISE]) == WAIT
    assert decided(*looks, seen(22, *one_goes), seen(23, blended[0], slot("late"))).op is Op.FOSSILISE


def held(steps, mean=0.001, at=20, **possible):
    """Return the action after a seed with this gain has held for so many steps."""
    looks = [seen(at + step, slot("early", seed("a/conv", Stage.HOLDING, mean))) for step in range(steps + 1)]
    return decided(*looks, **possible)


def test_a_holding_seed_that_does_not_pay_is_pruned_after_patience():
    assert [held(steps, 0.03).op for steps in range(11)] == [Op.WAIT] * 10 + [Op.PRUNE], "it may pay"
    assert [held(steps, 0.001).op for steps in range(3)] == [Op.WAIT] * 2 + [Op.PRUNE], "it does not"
    assert held(2, settings={"patience": 2, "speed": 3}) == Action(Op.PRUNE, "early", "a/conv", speed=3)
    assert [held(steps, 0.2, refused=[Op.FOSSILISE]).op for steps in (0, 9, 10)] == [Op.WAIT, Op.WAIT, Op.PRUNE]
    assert [held(0, at=step).op for step in (34, 35, 36)] == [Op.WAIT, Op.PRUNE, Op.PRUNE], "the episode ends"


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.DRAINING])
def test_blending_and_draining_seeds_are_left_alone(stage):
    looks = [seen(step, slot("early", seed("a/conv", stage, -0.1))) for step in range(30, 40)]
    assert [decided(*looks[:count]) for count in range(1, 11)] == [WAIT] * 10


def test_each_episode_and_each_environment_has_a_memory_of_its_own():
    policy = Heuristic(SPACE, first=0.0)
    looks = [seen(8, slot("early", seed("a/conv"))), seen(9, slot("early"))]
    for look in looks:
        policy.act([look], [ActionMask()])
    (action,) = policy.act([seen(10, slot("early"))], [mask_of(looks[1])])
    assert action.blueprint == "a/mlp"
    (action,) = policy.act([seen(0, slot("early"))], [mask_of(looks[1])])
    assert action.blueprint == "a/conv"
    policy = Heuristic(SPACE)
    free = seen(9, slot("early"))
    policy.act([seen(8, slot("early")), seen(8, slot("early", seed("a/conv")))], [ActionMask()] * 2)
    first, second = policy.act([free] * 2, [mask_of(free)] * 2)
    assert (first.blueprint, second.blueprint) == ("a/conv", "a/mlp")
    assert len(policy.act([free], [mask_of(free)])) == len(policy.unfinished()) == 1
    assert policy.act([free] * 2, [mask_of(free)] * 2)[1].blueprint == "a/conv"


def test_episodes_that_are_too_short_are_reported():
    policy = Heuristic(SPACE)
    policy.act([seen(0, slot("early"), steps=steps) for steps in (14, 15)], [ActionMask()] * 2)
    life = "a preview of 6 and two ramps of 4"
    message = f"any blueprint, which needs 15 steps ({life})"
    assert policy.unfinished() == [(message,), ()]
    (notice,) = Heuristic(SPACE, first=0.9, last=0.9, preview=20).impossible(12)
    assert notice.startswith("any blueprint, which needs 290 steps (a preview of 20 and two ramps of 4)")


@pytest.mark.parametrize(
    ("steps", "preview", "speed"), [(4, 1, 1), (8, 3, 1), (10, 5, 1), (12, 6, 1), (14, 6, 2), (15, 6, 4), (40, 6, 4)]
)
def test_previews_and_ramps_become_shorter_in_a_short_loop(steps, preview, speed):
    policy = Heuristic(SPACE).for_loop(steps, 2e-4)
    assert (policy.settings.preview, policy.settings.speed, policy.impossible(steps)) == (preview, speed, ())


def test_the_fee_follows_the_price_of_a_loop():
    policies = [Heuristic(SPACE).for_loop(40, price) for price in (2e-4, 1e-6, 0.0, 1e6)]
    assert [policy.settings.fee for policy in policies] == [HeuristicSettings().fee, pytest.approx(1e-4), 0.0, 1e6]
    assert [policy.settings.price for policy in policies] == [2e-4, 1e-6, 0.0, 1e6]


def test_a_state_is_json_even_where_gains_are_infinite_or_only_hoped_for():
    policy, resumed = Heuristic(SPACE, average=2.0), Heuristic(SPACE)
    policy.act([seen(8, slot("early", seed("a/conv", mean=math.inf), seed("a/mlp")))], [ActionMask()])
    policy.act([seen(9, slot("early", seed("a/mlp", mean=0.1)))], [ActionMask()])
    resumed.load_state_dict(State(json.loads(json.dumps(policy.state_dict().plain, allow_nan=False))))
    assert resumed.memories == policy.memories


def test_first_after_last_is_refused():
    with pytest.raises(SettingError) as caught:
        Heuristic(SPACE, first=0.7)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("E120", "first")
    assert "0.7 and 0.6" in problem.hint


SURE = Gain(n=400, mean=0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
"""A gain with a standard error of 0.01."""


def forecast(**settings):
    return Forecast(HeuristicSettings(**settings))


def tried(stage=Stage.TRAINING, gain=SURE, parameters=200, opinion=None):
    return SeedSignals("tried/one", stage, 0.0, parameters, 5, gain=gain, opinion=opinion)


def test_a_preview_is_forecast_to_rise_within_an_interval_less_its_cost():
    """The tried's age is 5."""
    rise, cost, error = 1 + RISE / 5, 200 * NATS_PER_PARAMETER + FEE, CAUTION * 0.01
    assert Forecast().net(tried()) == pytest.approx(rise * (0.1 - error) - cost)
    assert Forecast().hope(tried()) == pytest.approx(rise * (0.1 + error) - cost)
    harm = Gain(n=400, mean=-0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
    assert forecast(rise=5.0, caution=0.0, price=0.0, fee=0.0).net(tried(gain=harm)) == pytest.approx(-0.1), "no rise"


def test_age_counts_in_steps_of_32_batches():
    """The seed is five steps old."""
    free = SlotSignals("early", SlotState.FREE, fossils=0)
    signals = Signals(5, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,))
    plain = forecast(caution=0.0, price=0.0, fee=0.0)
    of = {batches: plain.at(Observation(5, 40, signals, batches=batches)) for batches in (None, 32, 16, 4, 320)}
    assert of[None] == of[32] == plain
    nets = {batches: forecast.net(tried()) for batches, forecast in of.items()}
    assert nets[16] == pytest.approx(0.1 * (1 + RISE / 2.5))
    assert nets[320] == pytest.approx(0.1 * (1 + RISE / 50))
    assert nets[4] == pytest.approx(0.1 * (1 + RISE)), "no more than after one step of 32"
    assert [of[batches].looks for batches in (320, 32, 16, 4)] == [3, 3, 6, 24]


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING, Stage.DRAINING])
def test_a_gain_measured_in_the_host_counts_once(stage):
    assert forecast(rise=10.0, caution=2.0, price=0.0, fee=0.0).net(tried(stage)) == pytest.approx(0.08)


@pytest.mark.parametrize(
    "gain",
    [
        Gain(400, math.nan, math.nan, math.nan, math.nan, math.nan),
        Gain(400, math.inf, math.inf, 0.0, -1.0, math.inf),
        Gain(1, 0.5, math.nan, 0.0, 0.5, 0.5),
    ],
)
def test_a_non_finite_gain_never_pays(gain):
    assert Forecast().net(tried(gain=gain)) == -math.inf


def test_an_uncertain_gain_does_not_pay():
    noise = Gain(100, 0.01, 0.1, 0.0, -1.0, 1.0)
    assert forecast(price=0.0, fee=0.0).net(tried(gain=noise)) < 0
    assert forecast(caution=0.0, price=0.0, fee=0.0).net(tried(gain=noise)) > 0


def test_gains_of_the_latest_steps_are_averaged():
    life = Life(Stage.TRAINING, 0)
    gains = [replace(SURE, mean=mean) for mean in (9.0, 0.3, 0.1)]
    *_, averaged = (life.averaged(tried(gain=gain), 2).gain for gain in gains)
    assert averaged.mean == pytest.approx(0.2)
    assert averaged.standard_error == pytest.approx(math.hypot(0.01, 0.1)), "of one look, and between looks"
    assert life.averaged(tried(), 1) == tried(), "the latest by itself"
    broken = tried(gain=replace(SURE, mean=math.nan))
    assert life.averaged(broken, 2) is broken
    assert [replace(forecast(average=1.5), pace=pace).window for pace in (1.0, 0.25, 10.0)] == [2, 6, 1]


def test_the_cost_is_the_price_of_the_gate_unless_a_price_is_set():
    priced = Opinion(Finding.NOT_SHOWN, "too dear", price=0.5)
    assert forecast(fee=0.1).cost(tried(opinion=priced)) == pytest.approx(0.6)
    assert forecast(fee=0.1, price=0.001).cost(tried(opinion=priced)) == pytest.approx(0.3)
    assert forecast(fee=0.1).cost(tried(opinion=Opinion(Finding.OFF, "gates are off"))) == pytest.approx(0.14)
    assert forecast(fee=0.1, price=0.0).cost(tried(opinion=priced)) == pytest.approx(0.1)
