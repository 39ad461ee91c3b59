"""Each rule of the heuristic, on observations made by hand, and the forecasts that it decides by."""

import json
import math
from dataclasses import replace

import pytest

from esper_core import leyline
from esper_core.leyline import WAIT, Action, ActionMask, ActionSpace, Finding, Gain, Op, Opinion, SlotState, Stage
from esper_policies.forecasts import MOST_RISE, Forecast
from esper_policies.heuristic import Heuristic
from esper_policies.settings import CAUTION, RISE, HeuristicSettings

SPACE = ActionSpace({"early": ("a/conv", "a/mlp"), "late": ("a/mlp",)})
STEPS = 40
ALL_OPS = {
    Stage.GERMINATED: {Op.PRUNE},
    Stage.TRAINING: {Op.ADVANCE, Op.PRUNE},
    Stage.BLENDING: {Op.PRUNE},
    Stage.HOLDING: {Op.PRUNE, Op.FOSSILISE},
    Stage.DRAINING: set(),
}
"""The ops of each stage without gates."""


def gain(mean):
    return Gain(800, mean, 0.2, 0.0, -1.0, 1.0)


def seed(name, stage=Stage.TRAINING, mean=0.2, age=6, price=0.02, **more):
    return leyline.SeedSignals(
        name, stage, 0.0, 100, age, gain=None if mean is None else gain(mean), price=price, **more
    )


def rivals(*seeds):
    """Return the seeds with the margin of each over the best of the others."""
    means = [seed.gain.mean for seed in seeds]
    return [
        replace(seed, margin=gain(mean - max(means[:place] + means[place + 1 :])))
        for place, (seed, mean) in enumerate(zip(seeds, means, strict=True))
    ]


def slot(name, *seeds, fossils=0, state=None):
    return leyline.SlotSignals(name, state or (SlotState.OCCUPIED if seeds else SlotState.FREE), fossils, seeds)


def seen(step, *slots, steps=STEPS):
    signals = leyline.Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=slots)
    return leyline.Observation(step, steps, signals)


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
    assert [decided(seen(step, slot("early"))).op for step in (0, 25, 26, 39)] == [Op.GERMINATE] * 2 + [Op.WAIT] * 2
    short = [decided(seen(0, slot("early"), steps=steps), settings={"first": 0.0}).op for steps in (14, 15)]
    assert short == [Op.WAIT, Op.GERMINATE]
    gone = [seen(9, slot("early", seed("a/conv"))), seen(10, slot("early"))]
    assert decided(*gone) == Action(Op.GERMINATE, "early", "a/mlp")
    gone += [seen(11, slot("early", seed("a/mlp"))), seen(12, slot("early"))]
    assert decided(*gone) == WAIT
    for grown in ([slot("early", fossils=1)], [slot("early"), slot("late", fossils=1)]):
        assert decided(*gone, seen(13, *grown)) == Action(Op.GERMINATE, "early", "a/conv")


def test_one_candidate_of_every_slot_germinates_first_and_none_after_the_preview_of_another():
    first = slot("early", seed("a/conv", age=1))
    action = decided(seen(10, first, slot("late")), room={"early": ("a/mlp",), "late": ("a/mlp",)})
    assert action == Action(Op.GERMINATE, "late", "a/mlp")
    crowded = seen(11, first, slot("late", seed("a/mlp", age=1)))
    assert decided(crowded, room={"early": ("a/mlp",), "late": ()}) == Action(Op.GERMINATE, "early", "a/mlp")
    waiting = slot("early", seed("a/conv", mean=0.01, age=6))
    assert decided(seen(10, waiting, slot("late")), room={"early": ("a/mlp",), "late": ("a/mlp",)}) == WAIT
    acting = slot("late", seed("a/mlp", Stage.BLENDING))
    assert decided(seen(10, slot("early"), acting), room={"early": ("a/mlp",)}) == WAIT


def place_of(host_flops, **needs):
    """Return the description of a slot and its candidates, which need these parameters and operations."""
    candidates = tuple(leyline.Candidate(f"a/{name}", *need, identity=True) for name, need in needs.items())
    return leyline.SlotDescription("sequence", 8, (40,), 0.0, 1000, host_flops, candidates)


@pytest.mark.parametrize("order", [("a/conv", "a/mlp"), ("a/mlp", "a/conv")])
def test_the_cheapest_of_a_slot_germinates_first_whatever_the_order_of_the_file(order):
    place = place_of(None, conv=(50, None), mlp=(900, None))
    policy = Heuristic(ActionSpace({"early": order}, {"early": place}))
    look = seen(10, slot("early"))
    (action,) = policy.act([look], [mask_of(look, room={"early": order})])
    assert action.blueprint == "a/conv"


CONV, MLP = Action(Op.ADVANCE, "early", "a/conv"), Action(Op.ADVANCE, "early", "a/mlp")
LATE, DROP = Action(Op.ADVANCE, "late", "a/mlp"), Action(Op.PRUNE, "early", "a/conv")
BEHIND, AHEAD = rivals(seed("a/conv", mean=0.05), seed("a/mlp", mean=0.2))
CROWD = rivals(seed("a/pointwise", mean=0.1), seed("a/conv", mean=0.2), seed("a/mlp", mean=0.3, price=1.8))


@pytest.mark.parametrize(
    ("slots", "settings", "action"),
    [
        ([slot("early", seed("a/conv", age=5))], {}, WAIT),
        ([slot("early", seed("a/conv", age=6))], {}, CONV),
        ([slot("early", *CROWD)], {}, CONV),
        ([slot("early", *(replace(young, price=0.0) for young in CROWD))], {"rise": 0.0}, MLP),
        ([slot("early", seed("a/conv", age=8), seed("a/mlp", age=5))], {}, WAIT),
        ([slot("early", BEHIND), slot("late", AHEAD)], {}, LATE),
        ([slot("early", seed("a/conv", mean=-0.01), seed("a/mlp", mean=-0.1))], {}, DROP),
        ([slot("early", seed("a/mlp", mean=0.1, price=1.0))], {}, Action(Op.PRUNE, "early", "a/mlp")),
        ([slot("early", seed("a/conv", mean=0.015))], {}, WAIT),
        ([slot("early", *rivals(seed("a/conv", mean=0.2), seed("a/mlp", mean=0.195)))], {}, WAIT),
        ([slot("early", *rivals(*(seed(name, age=12) for name in ("a/conv", "a/mlp"))))], {}, CONV),
        ([slot("early"), slot("late", seed("a/mlp"))], {}, LATE),
        *(
            ([slot("early", seed("a/conv")), slot("late", seed("a/mlp", stage, mean=-0.1))], {}, WAIT)
            for stage in (Stage.BLENDING, Stage.HOLDING, Stage.DRAINING)
        ),
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
        "the first of two that are alike after twice the preview",
        "advancing precedes germinating",
        *(f"one seed is blended in at a time: {stage}" for stage in ("blending", "holding", "draining")),
    ],
)
def test_incubating_seeds_are_advanced_pruned_or_left(slots, settings, action):
    assert decided(seen(10, *slots), settings=settings) == action


@pytest.mark.parametrize(
    ("mean", "most"), [(0.2, 26), (0.015, 12), (None, 12)], ids=["seems to pay", "may pay", "unknown"]
)
def test_a_seed_that_its_gate_refuses_is_pruned_after_patience_and_earlier_if_it_only_may_pay(mean, most):
    looks = {age: seen(20, slot("early", seed("a/conv", mean=mean, age=age)), steps=80) for age in (6, most - 1, most)}
    ops = [decided(look, refused=[Op.ADVANCE]).op for look in looks.values()]
    assert ops == [Op.WAIT, Op.WAIT, Op.PRUNE]


def test_once_previews_have_cost_their_share_only_seeds_that_pay_on_average_go_on_and_none_germinates():
    """18 steps of the host: three seeds for six steps, or for three if they cost twice what the host does."""
    share = {"share": 0.45}

    def look(step):
        doubtful = [seed(name, mean=0.005, age=step) for name in ("a/conv", "a/mlp")]
        return seen(step, slot("early", *doubtful), slot("late", seed("a/mlp", mean=0.1, age=step)))

    looks = [look(step) for step in range(1, 7)]
    assert decided(*looks[:-1], refused=[Op.ADVANCE], settings=share) == WAIT
    assert decided(*looks, refused=[Op.ADVANCE], settings=share) == Action(Op.PRUNE, "early", "a/conv")
    alone = seen(7, slot("early"), slot("late", seed("a/mlp", mean=0.1, age=7)))
    assert decided(*looks, alone, refused=[Op.ADVANCE], settings=share) == WAIT
    assert decided(*looks, seen(8, slot("early"), slot("late")), settings=share) == WAIT
    grown = decided(*looks, seen(8, slot("early"), slot("late", fossils=1)), settings=share)
    assert grown.op is Op.GERMINATE, "what was spent has brought something"
    dear = ActionSpace(SPACE.blueprints, dict.fromkeys(SPACE.slots, place_of(100, conv=(10, 100), mlp=(10, 100))))
    policy = Heuristic(dear, **share)
    looks = [replace(look, signals=replace(look.signals, host_flops=100)) for look in looks[:4]]
    ops = [policy.act([look], [mask_of(look, refused=[Op.ADVANCE])])[0].op for look in looks]
    assert ops == [Op.WAIT] * 3 + [Op.PRUNE], "it is judged at age 4 first"


def test_it_concludes_that_nothing_pays_once_nothing_more_is_tried():
    gone = [slot("early"), slot("late")]
    policy = Heuristic(SPACE)

    def conclusion(step, *slots):
        look = seen(step, *slots)
        policy.act([look], [mask_of(look, room={})])
        return policy.conclusions()

    conv, mlp = (seed(name, mean=-0.1) for name in ("a/conv", "a/mlp"))
    pruned = [(slot("early", conv, mlp), slot("late", mlp)), (slot("early", mlp), slot("late", mlp))]
    pruned += [(slot("early"), slot("late", mlp))]
    assert [conclusion(step, *slots) for step, slots in enumerate([gone, *pruned])] == [[""]] * 4
    assert conclusion(4, *gone) == ["nothing pays: all candidates were tried"]
    assert conclusion(5, slot("early"), slot("late", fossils=1)) == [""], "the others may pay now"
    for step in range(6, 30):
        living = conclusion(step, slot("early", seed("a/conv", mean=0.005)), slot("late", fossils=1))
    assert living == [""]
    why = "nothing more pays so far, and previews have cost their share of the training: 2 candidates not tried"
    assert conclusion(30, slot("early"), slot("late", fossils=1)) == [why]


@pytest.mark.parametrize(
    ("finding", "age"), [(Finding.NOT_SHOWN, 2), (Finding.UNKNOWN, 12)], ids=["lost", "gate without a decision"]
)
def test_a_seed_that_was_lost_or_not_judged_is_told_from_one_that_does_not_pay(finding, age):
    policy = Heuristic(ActionSpace({"early": ("a/conv",)}))
    trial = slot("early", seed("a/conv", mean=-0.1, age=age, opinion=Opinion(finding)))
    looks = [seen(0, slot("early")), seen(1, trial), seen(2, slot("early"))]
    for look in looks:
        policy.act([look], [mask_of(look, room={})])
    doubt = "all candidates were tried, but 1 candidate failed or could not be judged"
    assert policy.conclusions() == [f"nothing is shown to pay: {doubt}"]


def test_a_seed_that_pays_runs_out_of_steps_once_no_decision_of_its_gate_leaves_time_to_keep_it():
    """Its gate decides at looks 8 and 13, in steps 33 and 38 of 0 to 39; after the first it would be kept in 36."""
    policy = Heuristic(ActionSpace({"early": ("a/conv",)})).for_loop(STEPS)
    trial = slot("early", seed("a/conv", opinion=Opinion(Finding.NOT_SHOWN)))
    looks = [seen(step, trial) for step in range(26, 34)] + [seen(34, slot("early"))]
    ops = [policy.act([look], [mask_of(look, room={}, refused=[Op.ADVANCE])])[0].op for look in looks]
    assert ops == [Op.WAIT] * 7 + [Op.PRUNE, Op.WAIT]
    assert policy.conclusions() == ["1 candidate ran out of steps and may pay with more: all candidates were tried"]


@pytest.mark.parametrize(
    ("stage", "in_loop", "then"),
    [(Stage.TRAINING, False, Op.GERMINATE), (Stage.HOLDING, False, Op.WAIT), (Stage.HOLDING, True, Op.GERMINATE)],
)
def test_a_seed_that_a_rollback_dropped_is_tried_again_unless_it_acted_on_the_host(stage, in_loop, then):
    policy, free = Heuristic(ActionSpace({"early": ("a/conv",)}), share=0.02), slot("early")
    policy = policy.for_loop(STEPS) if in_loop else policy
    for look in (seen(8, slot("early", seed("a/conv", stage))), replace(seen(9, free), rolled_back=True)):
        policy.act([look], [ActionMask()])
    assert policy.act([seen(10, free)], [mask_of(seen(10, free), room={"early": ("a/conv",)})])[0].op is then


def test_the_seed_that_its_gate_admits_is_advanced():
    shown, missed = (Opinion(finding) for finding in (Finding.SHOWN, Finding.NOT_SHOWN))
    crowd = seed("a/conv", mean=0.3, age=16, opinion=missed), seed("a/mlp", mean=0.2, age=16, opinion=shown)
    look = seen(20, slot("early", *crowd))
    seeds = {"early": {"a/conv": frozenset({Op.PRUNE}), "a/mlp": frozenset({Op.ADVANCE, Op.PRUNE})}}
    mask = ActionMask({"early": frozenset({Op.ADVANCE, Op.PRUNE})}, {}, seeds)
    assert Heuristic(SPACE).act([look], [mask]) == [Action(Op.ADVANCE, "early", "a/mlp")]


@pytest.mark.parametrize(("step", "then"), [(31, Op.ADVANCE), (32, Op.PRUNE)])
def test_no_seed_is_advanced_without_time_to_remove_it(step, then):
    assert decided(seen(step, slot("early", seed("a/conv", age=9)))).op is then


@pytest.mark.parametrize(("measured", "then"), [(0.2, Op.FOSSILISE), (0.001, Op.WAIT), (None, Op.WAIT)])
def test_a_holding_seed_is_fossilised_for_its_measured_gain_alone(measured, then):
    before = seen(19, slot("early", seed("a/conv", mean=0.2)))
    assert decided(before, seen(20, slot("early", seed("a/conv", Stage.HOLDING, measured)))).op is then


def test_the_best_holding_seed_is_fossilised_first_and_the_least_promising_pruned_first():
    slots = [slot("early", seed("a/conv", Stage.HOLDING, 0.1)), slot("late", seed("a/mlp", Stage.HOLDING, 0.2))]
    assert decided(seen(20, *slots)) == Action(Op.FOSSILISE, "late")
    young = [slot("early", seed("a/conv", mean=0.2)), slot("late", seed("a/mlp", mean=0.1))]
    blended = [slot(name, seed(of, Stage.HOLDING, None)) for name, of in (("early", "a/conv"), ("late", "a/mlp"))]
    looks = [seen(10, *young)] + [seen(step, *blended) for step in range(11, 32)]
    assert decided(*looks, refused=[Op.FOSSILISE]) == Action(Op.PRUNE, "late", "a/mlp")
    one_goes = [blended[0], slot("late", seed("a/mlp", Stage.DRAINING, None))]
    assert decided(*looks, seen(32, *one_goes), refused=[Op.FOSSILISE]) == WAIT
    assert decided(*looks, seen(32, *one_goes), seen(33, blended[0], slot("late"))).op is Op.PRUNE


def held(steps, mean=0.001, at=20, **possible):
    """Return the action after a seed with this gain has held for so many steps."""
    looks = [seen(at + step, slot("early", seed("a/conv", Stage.HOLDING, mean))) for step in range(steps + 1)]
    return decided(*looks, **possible)


def test_a_holding_seed_that_does_not_pay_is_pruned_after_patience():
    assert [held(steps, 0.03, at=10).op for steps in (0, 19, 20)] == [Op.WAIT] * 2 + [Op.PRUNE], "it may pay"
    assert [held(steps, 0.001).op for steps in range(3)] == [Op.WAIT] * 2 + [Op.PRUNE], "it does not"
    assert held(2, settings={"patience": 2, "speed": 3}) == Action(Op.PRUNE, "early", "a/conv", speed=3)
    assert [held(steps, 0.2, at=10, refused=[Op.FOSSILISE]).op for steps in (0, 19, 20)] == [Op.WAIT] * 2 + [Op.PRUNE]
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
    ("steps", "preview", "speed"),
    [(4, 1, 1), (8, 3, 1), (10, 5, 1), (12, 5, 2), (13, 6, 1), (15, 6, 2), (17, 6, 3), (19, 6, 4), (40, 6, 4)],
)
def test_previews_and_ramps_become_shorter_in_a_short_loop(steps, preview, speed):
    policy = Heuristic(SPACE).for_loop(steps)
    assert (policy.settings.preview, policy.settings.speed, policy.impossible(steps)) == (preview, speed, ())


@pytest.mark.parametrize(
    ("steps", "look"),
    [(8, 3), (10, 5), (12, 5), *((s, 8) for s in range(13, 21)), *((s, 13) for s in range(17, 24)), (24, 20)],
)
def test_a_short_loop_keeps_a_seed_that_its_gate_lets_pass_at_the_last_look_that_counts(steps, look):
    policy, shown = Heuristic(SPACE).for_loop(steps), Opinion(Finding.SHOWN)
    stage, since, actions = Stage.GERMINATED, 0, []
    for step in range(steps):
        age = step - since
        if stage is Stage.BLENDING and age == (policy.settings.speed if look <= 8 else 1):  # a branch needs no ramp
            stage, since, age = Stage.HOLDING, step, 0
        opens = age >= look if stage is Stage.TRAINING else age >= 2
        living = seed("a/mlp", stage, age=step, opinion=shown if opens else Opinion(Finding.UNKNOWN))
        observation = seen(step, slot("late", *([living] if step else [])), steps=steps)
        refused = () if opens else (Op.ADVANCE, Op.FOSSILISE)
        action = policy.act([observation], [mask_of(observation, refused=refused)])[0].op
        if action is not Op.WAIT:
            actions.append(action)
            stage, since = (Stage.BLENDING, step) if action is Op.ADVANCE else (Stage.TRAINING, since)
            if action in (Op.FOSSILISE, Op.PRUNE):
                break
    assert actions == [Op.GERMINATE, Op.ADVANCE, Op.FOSSILISE]


def test_a_state_is_json_even_where_gains_are_infinite_or_only_hoped_for():
    policy, resumed = Heuristic(SPACE), Heuristic(SPACE)
    policy.act([seen(8, slot("early", seed("a/conv", mean=math.inf), seed("a/mlp")))], [ActionMask()])
    policy.act([seen(9, slot("early", seed("a/mlp", mean=0.1)))], [ActionMask()])
    resumed.load_state_dict(leyline.State(json.loads(json.dumps(policy.state_dict().plain, allow_nan=False))))
    assert resumed.memories == policy.memories


def test_first_after_last_is_refused():
    with pytest.raises(leyline.SettingError) as caught:
        Heuristic(SPACE, first=0.7, last=0.6)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("E120", "first")
    assert "0.7 and 0.6" in problem.hint


SURE = Gain(n=400, mean=0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
"""A gain with a standard error of 0.01."""


def forecast(**settings):
    return Forecast(HeuristicSettings(**settings))


def tried(stage=Stage.TRAINING, gain=SURE, price=0.0):
    return leyline.SeedSignals("tried/one", stage, 0.0, 200, 5, gain=gain, price=price)


def test_a_preview_is_forecast_to_rise_within_an_interval_less_its_price():
    """The seed's age is 5."""
    rise, error = 1 + RISE / 5, CAUTION * 0.01
    beyond_price = [rise * (0.1 + way * error) - 0.04 for way in (-1, 0, 1)]
    assert Forecast().net(tried(price=0.04)) == pytest.approx(beyond_price[0])
    assert Forecast().interval(tried(price=0.04)) == pytest.approx(beyond_price)
    harm = Gain(n=400, mean=-0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
    assert forecast(rise=5.0, caution=0.0).net(tried(gain=harm)) == pytest.approx(-0.1), "no rise"


def test_age_counts_in_steps_of_32_batches():
    """The seed is five steps old."""
    free = leyline.SlotSignals("early", SlotState.FREE, fossils=0)
    signals = leyline.Signals(5, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,))
    plain = forecast(caution=0.0)
    of = {batches: plain.at(leyline.Observation(5, 40, signals, batches=batches)) for batches in (None, 32, 16, 4, 320)}
    assert of[None] == of[32] == plain
    nets = {batches: forecast.net(tried()) for batches, forecast in of.items()}
    assert nets[32] == pytest.approx(0.1 * (1 + RISE / 5))
    assert nets[320] == pytest.approx(0.1 * (1 + RISE / 50))
    assert nets[4] == nets[16] == pytest.approx(0.1 * MOST_RISE)
    assert [of[batches].looks for batches in (320, 32, 16, 4)] == [3, 3, 6, 24]


def test_a_gain_counts_once_where_it_was_measured_in_the_host_and_only_if_it_is_finite_and_certain():
    for stage in (Stage.BLENDING, Stage.HOLDING, Stage.DRAINING):
        assert forecast(rise=10.0, caution=2.0).net(tried(stage)) == pytest.approx(0.08)
    unknown = Gain(400, *[math.nan] * 5), Gain(400, math.inf, math.inf, 0.0, -1.0, math.inf)
    for gain in (*unknown, Gain(1, 0.5, math.nan, 0.0, 0.5, 0.5)):
        assert Forecast().net(tried(gain=gain)) == -math.inf
    noise = Gain(100, 0.01, 0.1, 0.0, -1.0, 1.0)
    assert forecast().net(tried(gain=noise)) < 0
    assert forecast(caution=0.0).net(tried(gain=noise)) > 0


def test_a_single_bad_look_drops_no_seed_whose_gains_pay_on_average_even_when_previews_are_spent():
    """Gains move by more than their errors: the mean of the latest looks decides."""

    def look(step, better, worse):
        return seen(step, slot("early", seed("a/conv", mean=better, age=step), seed("a/mlp", mean=worse, age=step)))

    looks = [look(step, 0.1, 0.005) for step in range(1, 9)]
    share = {"share": 0.45}
    pruned = decided(*looks, look(9, -0.005, 0.005), refused=[Op.ADVANCE], settings=share)
    assert pruned == Action(Op.PRUNE, "early", "a/mlp")
    alone = seen(9, slot("early", seed("a/conv", mean=0.005, age=9)))
    assert decided(*looks, alone, refused=[Op.ADVANCE], settings=share) == WAIT
