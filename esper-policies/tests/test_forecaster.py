"""The forecaster: its beliefs, what it does with them, and that it continues from its state."""

import json
import math
import random

import pytest

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    Candidate,
    Gain,
    Observation,
    Op,
    SeedSignals,
    SettingError,
    Signals,
    SlotDescription,
    SlotSignals,
    SlotState,
    Stage,
    State,
)
from esper_policies.forecaster import Forecaster
from esper_policies.posteriors import EVIDENCE, SITUATION, Belief, Regression, load_coefficients

STEPS = 20
BLUEPRINTS = ("a/conv", "a/mlp")
PLACE = SlotDescription(
    "sequence", 8, (40,), 0.0, 1000, None, tuple(Candidate(name, 100, None, 3, True) for name in BLUEPRINTS)
)
SPACE = ActionSpace({"early": BLUEPRINTS}, descriptions={"early": PLACE})
OPS = {Stage.TRAINING: {Op.ADVANCE, Op.PRUNE}, Stage.HOLDING: {Op.FOSSILISE, Op.PRUNE}}


def seed(name="a/conv", stage=Stage.TRAINING, mean=0.1, age=4, parameters=100):
    gain = Gain(800, mean, 0.2, 0.0, -1.0, 1.0)
    return SeedSignals(name, stage, 0.0, parameters, age, incubation_loss=0.9, gain=gain)


def seen(step, *seeds, price=40.0, descriptions=None, loss=1.0):
    slot = SlotSignals("early", SlotState.OCCUPIED if seeds else SlotState.FREE, 0, seeds)
    signals = Signals(step, 1.0, loss, 0.5, parameters=1000, host_parameters=1000, slots=(slot,))
    return Observation(step, STEPS, signals, price=price, descriptions=descriptions)


def mask_of(observation, blueprints=BLUEPRINTS):
    (slot,) = observation.signals.slots
    ops = {seed.blueprint: frozenset(OPS[seed.stage]) for seed in slot.seeds}
    if not ops:
        return ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": blueprints})
    return ActionMask({"early": frozenset().union(*ops.values())}, {}, {"early": ops})


def regression(features, mean, deviation, **weights):
    count = len(features) + 1
    return {
        "features": features,
        "centre": [0.0] * len(features),
        "scale": [1.0] * len(features),
        "weights": [mean, *(weights.get(name, 0.0) for name in features)],
        "covariance": [[0.0] * count] * count,
        "noise": [2 * math.log(deviation), *[0.0] * len(features)],
        "calibration": 1.0,
    }


@pytest.fixture
def policy_of(tmp_path):
    """A function that builds a policy with these beliefs, shares of the host's error of 50 points."""

    def build(*, untried=(0.0, 1e-6), tried=(0.0, 1e-6), recent=0.0, shrink=0.9, hazard=0.0, space=SPACE, **settings):
        plain = {
            "untried": regression(SITUATION, *untried),
            "tried": regression(EVIDENCE, *tried, recent=recent),
            "shrink": shrink,
            "doubt": 0.0,
            "hazard": hazard,
        }
        file = tmp_path / "coefficients.json"
        file.write_text(json.dumps(plain))
        return Forecaster(space, coefficients=str(file), speed=1, **settings)

    return build


def decided(policy, *looks):
    """Return the action on the last of these observations."""
    return [policy.act([look], [mask_of(look)])[0] for look in looks][-1]


PRUNE = Action(Op.PRUNE, "early", "a/conv", speed=1)
HOLDING = seed(stage=Stage.HOLDING)


def test_the_option_of_keeping_is_the_mean_gain_of_those_seeds_that_gain():
    draws = random.Random(0)
    for mean, deviation in ((1.0, 2.0), (-1.0, 2.0), (0.0, 0.5)):
        kept = [max(0.0, draws.gauss(mean, deviation)) for _ in range(100_000)]
        assert Belief(mean, deviation).option == pytest.approx(sum(kept) / len(kept), abs=0.02)


def test_intervals_cover_the_gains_of_the_process_that_the_coefficients_describe():
    draws, features = random.Random(1), ("a", "b")
    regression = Regression(features, (1.0, 0.0), (2.0, 1.0), (0.1, 0.3, -0.2), ((0.0,) * 3,) * 3, (-2.0, 0.8, 0.0))
    inside = {0.6745: 0, 1.2816: 0, 1.96: 0}
    for _ in range(20_000):
        values = draws.gauss(1.0, 2.0), draws.gauss(0.0, 1.0)
        x, y = (values[0] - 1.0) / 2.0, values[1]
        gain = draws.gauss(0.1 + 0.3 * x - 0.2 * y, math.exp((-2.0 + 0.8 * x) / 2))
        belief = regression.predict(dict(zip(features, values, strict=True)))
        for width in inside:
            inside[width] += abs(gain - belief.mean) <= width * belief.deviation
    assert [count / 20_000 for count in inside.values()] == pytest.approx([0.5, 0.8, 0.95], abs=0.01)


def test_unknown_values_count_as_the_mean():
    regression = Regression(("a",), (3.0,), (1.0,), (0.5, 1.0), ((0.0, 0.0), (0.0, 0.0)), (0.0, 0.0))
    assert regression.predict({"a": math.nan}) == regression.predict({"a": 3.0}) != regression.predict({"a": 4.0})


@pytest.mark.parametrize(("price", "op"), [(0.0, Op.FOSSILISE), (40.0, Op.FOSSILISE), (60.0, Op.PRUNE)])
def test_a_higher_price_keeps_less(policy_of, price, op):
    """The gain is 10 points, the share of added parameters and fee 0.2."""
    assert decided(policy_of(tried=(0.2, 1e-6)), seen(10, HOLDING, price=price)).op is op
    assert decided(policy_of(tried=(0.2, 1e-6), price=price), seen(10, HOLDING, price=None)).op is op


@pytest.mark.parametrize(
    ("deviation", "step", "action"),
    [(1e-6, 10, PRUNE), (0.2, 10, WAIT), (0.2, 18, PRUNE)],
    ids=["it is sure", "it is not", "there is no time to look"],
)
def test_it_looks_longer_at_a_seed_that_may_still_pay(policy_of, deviation, step, action):
    """The gain is 5 points, the cost 8."""
    assert decided(policy_of(tried=(0.1, deviation)), seen(step, HOLDING)) == action


def test_it_keeps_a_good_seed_before_it_may_become_impossible(policy_of):
    look = seen(10, HOLDING)
    assert decided(policy_of(tried=(0.3, 0.2), hazard=0.0), look) == WAIT
    assert decided(policy_of(tried=(0.3, 0.2), hazard=0.3), look) == Action(Op.FOSSILISE, "early")


def test_it_drops_a_seed_for_a_candidate_that_is_worth_more(policy_of):
    """The seed is worth 2 points, the other candidate 12."""
    look = seen(6, seed(), price=40.0)
    assert decided(policy_of(tried=(0.2, 1e-6), untried=(0.4, 1e-6)), look) == PRUNE
    assert decided(policy_of(tried=(0.2, 1e-6), untried=(0.0, 1e-6)), look) == Action(Op.ADVANCE, "early", "a/conv")


def test_it_tries_the_most_promising_candidate_and_stops_when_nothing_is_worth_the_effort(policy_of):
    cheap = SlotDescription(
        "sequence", 8, (40,), 0.0, 1000, None, (Candidate("a/conv", 300, None, 3, True), PLACE.candidates[1])
    )
    hopeful = {"untried": (0.3, 0.1)}
    assert decided(policy_of(**hopeful), seen(0, descriptions={"early": cheap})) == Action(
        Op.GERMINATE, "early", "a/mlp", speed=1
    )
    assert decided(policy_of(**hopeful), seen(0, price=1000.0)) == WAIT
    assert decided(policy_of(**hopeful, effort=20.0), seen(0)) == WAIT
    assert decided(policy_of(**hopeful), seen(STEPS - 4)) == WAIT
    tried = [seen(0), seen(1, seed(age=1)), seen(2, seed("a/mlp", age=1)), seen(3)]
    assert decided(policy_of(**hopeful), *tried) == WAIT


def test_blueprints_that_no_place_describes_are_tried_and_judged(policy_of):
    policy = policy_of(untried=(0.3, 0.1), tried=(0.3, 1e-6), space=ActionSpace({"early": ("b/new",)}))
    look = seen(0)
    assert policy.act([look], [mask_of(look, ("b/new",))])[0].blueprint == "b/new"
    assert decided(policy, seen(4, seed("b/new", age=4))) == Action(Op.ADVANCE, "early", "b/new")


def test_a_larger_gain_is_believed_to_last(policy_of):
    policy, beliefs = policy_of(tried=(0.0, 0.1), recent=1.0), []
    for mean in (0.1, 0.2):
        look = seen(4, seed(mean=mean))
        policy.act([seen(0)], [ActionMask()])
        policy.act([look], [ActionMask()])
        (slot,) = look.signals.slots
        beliefs.append(policy.choice(policy.memories[0], look, ActionMask()).belief(slot, slot.seeds[0]).mean)
    assert beliefs == pytest.approx([50 * 0.1 - 8, 50 * 0.2 - 8])


def test_the_coefficients_of_the_package_know_every_feature_and_how_they_were_fitted():
    coefficients = load_coefficients()
    assert (coefficients.untried.features, coefficients.tried.features) == (SITUATION, EVIDENCE)
    assert 0 <= coefficients.hazard < coefficients.shrink <= 1
    assert 0 < coefficients.doubt <= 1
    assert decided(Forecaster(SPACE), seen(0)).op is Op.GERMINATE


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("{}", "does not hold"), ("{", "does not hold")]
)
def test_a_file_without_coefficients_is_named(text, message, tmp_path):
    file = tmp_path / "own.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingError, match=message) as caught:
        load_coefficients(str(file))
    assert [problem.path for problem in caught.value.problems] == ["coefficients"]


def test_it_continues_from_its_state_with_the_beliefs_that_it_had():
    looks = [seen(0), seen(1, seed("a/mlp", age=1)), seen(2)]
    looks += [seen(step, seed(mean=0.01 * step**2, age=step - 2), loss=2 - 0.01 * step**2) for step in range(3, 8)]
    uninterrupted = Forecaster(SPACE)
    actions = [uninterrupted.act([look], [ActionMask()])[0] for look in looks]
    half = Forecaster(SPACE)
    for look in looks[:5]:
        half.act([look], [ActionMask()])
    resumed = Forecaster(SPACE)
    resumed.load_state_dict(State(json.loads(json.dumps(half.state_dict().plain))))
    assert [resumed.act([look], [ActionMask()])[0] for look in looks[5:]] == actions[5:]
    (slot,) = looks[-1].signals.slots
    beliefs = [
        policy.choice(policy.memories[0], looks[-1], ActionMask()).belief(slot, slot.seeds[0])
        for policy in (uninterrupted, resumed)
    ]
    assert beliefs[0] == beliefs[1]
    assert list(resumed.choice(resumed.memories[0], seen(8), ActionMask()).candidates()) == []
