"""The bandit learns which seed pays in which slot and germinates that."""

import json
import logging
import math
import statistics
from collections import Counter

import pytest

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    Observation,
    Op,
    Played,
    RewardBreakdown,
    Rollout,
    SeedSignals,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
    State,
    Turn,
)
from esper_policies.bandit import Bandit, Belief, Harvest, Record, harvests
from esper_testing.games import arms, learn, play

SPACE = ActionSpace({"early": ("a/conv", "a/mlp"), "late": ("a/conv",)})
ARMS = [("early", "a/conv"), ("early", "a/mlp"), ("late", "a/conv")]
HASTY = {"preview": 1, "first": 0.0, "speed": 1}
AT_ONCE = {"preview": 0, "first": 0.0, "speed": 0}
STEPS = 20


def growing(stage, blueprint="a/conv", age=9, slot="early"):
    return SlotSignals(slot, SlotState.OCCUPIED, 0, (SeedSignals(blueprint, stage, 0.0, 10, age),))


def seen(step=0, grows=None, steps=STEPS):
    """Return an observation in which all slots are free, except the one with a seed."""
    free = (SlotSignals(name, SlotState.FREE, fossils=0) for name in SPACE.slots)
    slots = tuple(grows if grows and grows.name == slot.name else slot for slot in free)
    return Observation(step, steps, Signals(step, 1.0, 1.0, 0.5, 10, 10, slots))


OPEN = ActionMask(dict.fromkeys(SPACE.slots, frozenset({Op.GERMINATE})), SPACE.blueprints)


def living(*ops, blueprint="a/conv", slot="early"):
    """Return the mask if a seed grows in one slot, and the other is free."""
    mine = frozenset(ops)
    room = {name: names for name, names in SPACE.blueprints.items() if name != slot}
    return ActionMask({**dict.fromkeys(room, frozenset({Op.GERMINATE})), slot: mine}, room, {slot: {blueprint: mine}})


def germinate(slot, blueprint):
    return Action(Op.GERMINATE, slot, blueprint, speed=1)


def part(actions, rewards, *, first=0, terminated=False):
    """Return a part of an episode; a reward of None is unknown."""
    turns = tuple(
        Turn(seen(first + number), OPEN, action, None if reward is None else RewardBreakdown({"team": reward}))
        for number, (action, reward) in enumerate(zip(actions, rewards, strict=True))
    )
    last = first + len(turns) - (not terminated)
    return Played(turns, seen(last), terminated)


def round_of(*episodes, number=0, arm="bandit"):
    return Rollout(arm, number, episodes)


def knowing(records, **settings):
    """Return a policy with records of its arms: count, mean, and sum of squared deviations."""
    policy = Bandit(SPACE, **{**HASTY, **settings})
    told = [[*arm, *numbers] for arm, numbers in records.items()]
    policy.load_state_dict(State({**policy.state_dict().plain, "records": told}))
    return policy


SURE_OF_LATE = {ARMS[0]: (500, 1.0, 1.0), ARMS[1]: (500, -2.0, 1.0), ARMS[2]: (500, 5.0, 1.0)}


def alive(policy, number=4):
    """Return what it germinates at the beginning of an episode in several environments."""
    return policy.act([seen()] * number, [OPEN] * number)


# It learns.


def test_it_finds_the_arm_that_pays_most():
    game = arms()
    policy = Bandit(game.space, **AT_ONCE)
    scores = learn(policy, game, rounds=40, episodes=8)
    assert statistics.fmean(scores[-10:]) > 0.8 * game.best
    best = max(policy.beliefs().items(), key=lambda pair: pair[1].mean)
    assert best[0] == ("early", "games/beech")
    assert best[1].mean == pytest.approx(4.0, abs=1.0)
    frozen = Bandit(game.space, learn=False, **AT_ONCE)
    frozen.load_state_dict(policy.state_dict())
    planted = {turn.action.blueprint for one in play(frozen, game, 20).episodes for turn in one.turns}
    assert planted == {"games/beech"}


def test_learning_does_not_depend_on_the_scale_of_rewards():
    scale = 1e4
    worth = {"only": {"games/a": 1.0 * scale, "games/b": 4.0 * scale, "games/c": -3.0 * scale}}
    game = arms(worth, noise=2.0 * scale)
    scores = learn(Bandit(game.space, **AT_ONCE), game, rounds=30, episodes=8)
    assert statistics.fmean(scores[-10:]) > 0.7 * game.best


def test_it_germinates_nothing_where_every_seed_costs():
    game = arms({"early": {"games/a": -3.0, "games/b": -1.5}, "late": {"games/a": -2.0}}, noise=2.0)
    policy = Bandit(game.space, **AT_ONCE)
    learn(policy, game, rounds=60, episodes=8)
    ops = Counter(turn.action.op for one in play(policy, game, 200, 9000).episodes for turn in one.turns)
    assert ops[Op.WAIT] > 180


def test_beliefs_are_normal_inverse_gamma_posteriors():
    brought = [3.0, 5.0, 10.0]
    record = Record()
    for one in brought:
        record = record.and_then(one)
    assert (record.pulls, record.mean, record.spread) == (3, 6.0, pytest.approx(26.0))
    # Reference: the prior has the weight of a quarter of an episode with return 0, and noise 4.
    weight, noise = (0.5 / 1.0) ** 2, 0.5 * 8.0
    total = weight + 3
    mean = math.fsum(brought) / total
    squares = math.fsum((one - mean) ** 2 for one in brought) + weight * mean**2
    scale = noise**2 + squares / 2
    belief = record.belief(size=8.0, width=1.0)
    assert belief.mean == pytest.approx(mean)
    assert belief.deviation == pytest.approx(math.sqrt(scale / (1 + 1.5) / total))
    assert belief.freedom == 5.0
    assert Record().belief(7.0, 3.0) == Belief(0.0, 21.0, 2.0)


# Learning.


def test_a_seed_is_credited_with_the_return_of_its_episode():
    policy = Bandit(SPACE)
    figures = policy.update(
        round_of(
            part([germinate(*ARMS[1]), Action(Op.ADVANCE, *ARMS[0]), WAIT], [1.0, 2.5, 4.0]),
            part([WAIT, germinate(*ARMS[1])], [0, -0.5]),
        )
    )
    assert policy.state_dict().plain["records"] == [["early", "a/mlp", 2, 3.5, 32.0]]
    assert figures["early/a/mlp/pulls"] == 2.0
    assert figures["early/a/mlp/mean"] == pytest.approx(3.5, rel=0.1)
    assert figures["late/a/conv/pulls"] == figures["late/a/conv/mean"] == 0.0
    assert figures["taught"] == 2.0


@pytest.mark.parametrize(
    ("actions", "rewards", "brought"),
    [
        ([germinate(*ARMS[0]), WAIT, germinate(*ARMS[2])], [1.0, 2.0, 5.0], {ARMS[0]: 4.0, ARMS[2]: 4.0}),
        ([germinate(*ARMS[0]), WAIT, WAIT], [1.0, None, 2.0], {ARMS[0]: 3.0}),
        ([germinate(*ARMS[0])], [None], {}),
        ([WAIT, WAIT], [1.0, 2.0], {}),
        *(([germinate(*ARMS[0]), WAIT], [1.0, wild], {}) for wild in (math.nan, math.inf, -math.inf, 1e200)),
    ],
)
def test_seeds_share_the_known_and_finite_return_of_an_episode(actions, rewards, brought):
    policy = Bandit(SPACE, seeds=2)
    figures = policy.update(round_of(part(actions, rewards)))
    assert policy.state_dict().plain["records"] == [[*arm, 1, mean, 0.0] for arm, mean in brought.items()]
    assert figures["taught"] == bool(brought)
    assert all(map(math.isfinite, figures.values()))


def test_parts_of_an_episode_with_rollbacks_are_joined():
    cut = part([WAIT, germinate(*ARMS[0]), WAIT], [0.0, 1.0, -3.0], terminated=True)
    again = part([germinate(*ARMS[2])], [-1.0], first=4, terminated=True)
    rest = part([WAIT, WAIT], [2.0, 7.0], first=6)
    other = part([germinate(*ARMS[1])], [9.0])
    assert harvests([other, cut, again, rest, other]) == [
        Harvest((ARMS[1],), 9.0),
        Harvest((ARMS[0], ARMS[2]), 6.0),
        Harvest((ARMS[1],), 9.0),
    ]
    assert harvests([cut, other]) == [Harvest((ARMS[0],), -2.0), Harvest((ARMS[1],), 9.0)]
    late = part([germinate(*ARMS[1])], [2.0], first=4)
    assert harvests([part([WAIT], [1.0]), late]) == [Harvest((), 1.0), Harvest((ARMS[1],), 2.0)]
    assert harvests([part([], [])]) == [Harvest((), None)]


def test_new_blueprints_are_tried_and_records_of_others_kept():
    told = knowing({**SURE_OF_LATE, ("gone", "b/gone"): (3, 1.0, 1.0)}).state_dict()
    policy = Bandit(ActionSpace({**SPACE.blueprints, "late": ("a/conv", "b/new")}), **HASTY)
    policy.load_state_dict(told)
    both = ActionMask(OPEN.ops, {**OPEN.blueprints, "late": ("a/conv", "b/new")})
    chosen = {action.blueprint for _ in range(20) for action in policy.act([seen()] * 4, [both] * 4)}
    assert chosen == {"a/conv", "b/new"}
    policy.update(round_of(part([germinate("late", "c/stranger")], [2.0])))
    assert {tuple(record[:2]) for record in policy.state_dict().plain["records"]} == {
        *ARMS,
        ("gone", "b/gone"),
        ("late", "c/stranger"),
    }


# Decisions.


def test_it_germinates_within_the_time_that_settings_allow():
    policy = knowing(SURE_OF_LATE, first=0.25, preview=3, speed=4)
    wanted = Action(Op.GERMINATE, "late", "a/conv", speed=4)
    found = [policy.act([seen(step)], [OPEN])[0] for step in range(6)]
    assert found == [WAIT] * 5 + [wanted]
    for step, due in ((12, True), (13, False)):
        late = knowing(SURE_OF_LATE, first=0.25, preview=3, speed=4)
        late.act([seen(0)], [OPEN.shut()])
        assert (late.act([seen(step)], [OPEN])[0] == wanted) == due


def test_episodes_that_are_too_short_are_reported():
    policy = Bandit(SPACE, preview=3, speed=4, first=0.1)
    policy.act([seen(steps=8), seen(steps=9)], [OPEN] * 2)
    life = "a preview of 3 and a ramp of 4"
    said = (f"any blueprint, which needs 9 steps ({life}): use more steps (episode.steps) or a shorter preview",)
    assert policy.unfinished() == [said, ()]
    never = ("any blueprint: the settings first and last leave no step for a germination",)
    assert Bandit(SPACE, preview=3, speed=4, first=1.0).impossible(100) == never


def test_a_seed_is_advanced_after_its_preview_and_fossilised_when_possible():
    policy = knowing(SURE_OF_LATE, preview=3)
    policy.act([seen()], [OPEN])
    advance, fossilise = Action(Op.ADVANCE, "early", "a/conv"), Action(Op.FOSSILISE, "early")
    for stage, age, ops, action in [
        (Stage.TRAINING, 2, {Op.ADVANCE, Op.PRUNE}, WAIT),
        (Stage.TRAINING, 3, {Op.PRUNE}, WAIT),
        (Stage.TRAINING, 3, {Op.ADVANCE, Op.PRUNE}, advance),
        (Stage.TRAINING, None, {Op.ADVANCE}, advance),
        (Stage.BLENDING, 5, {Op.PRUNE}, WAIT),
        (Stage.HOLDING, 9, {Op.PRUNE}, WAIT),
        (Stage.HOLDING, 9, {Op.PRUNE, Op.FOSSILISE}, fossilise),
    ]:
        assert policy.act([seen(4, growing(stage, age=age))], [living(*ops)]) == [action]
    assert policy.act([seen(4, growing(Stage.TRAINING, "b/odd"))], [living(Op.ADVANCE, blueprint="b/odd")]) == [
        Action(Op.ADVANCE, "early", "b/odd")
    ]


def test_it_waits_where_its_choice_is_impossible():
    policy = knowing(SURE_OF_LATE)
    only_early = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": SPACE.blueprints["early"]})
    found = [policy.act([seen(step)], [mask])[0] for step, mask in enumerate([only_early, OPEN.shut(), OPEN])]
    assert found == [WAIT, WAIT, germinate("late", "a/conv")]


def test_the_next_seed_follows_in_another_slot():
    both, alone = knowing(SURE_OF_LATE, seeds=2), knowing(SURE_OF_LATE)
    grows = growing(Stage.TRAINING, age=0, slot="late")
    for step, slot, mask, action in [
        (0, None, OPEN, germinate("late", "a/conv")),
        (1, grows, living(Op.PRUNE, slot="late"), WAIT),
        (2, None, OPEN, germinate("early", "a/conv")),
        (3, None, OPEN, WAIT),
    ]:
        assert both.act([seen(step, slot)], [mask]) == [action]
        assert alone.act([seen(step, slot)], [mask]) == [action if step < 2 else WAIT]
    assert both.act([seen(0)], [OPEN]) == [germinate("late", "a/conv")]


def test_without_learning_it_chooses_the_best_arm_and_records_nothing():
    policy = knowing({ARMS[0]: (2, 3.0, 50.0), ARMS[1]: (2, 2.9, 50.0)}, learn=False)
    assert {action.blueprint for _ in range(10) for action in alive(policy)} == {"a/conv"}
    before = policy.state_dict().plain["records"]
    figures = policy.update(round_of(part([germinate(*ARMS[0])], [-90.0])))
    assert policy.state_dict().plain["records"] == before
    assert (figures["taught"], figures["explored"], figures["early/a/conv/pulls"]) == (0.0, 0.0, 2.0)
    assert alive(Bandit(SPACE, learn=False, **HASTY)) == [WAIT] * 4


# Random draws, and state.


def test_after_explore_rounds_it_chooses_the_best_arm_and_still_learns():
    close = {ARMS[0]: (2, 3.0, 50.0), ARMS[1]: (2, 2.9, 50.0)}
    trying = knowing(close, explore_rounds=1)
    assert len({action.blueprint for action in alive(trying, 24)}) > 1
    assert {action.blueprint for action in alive(knowing(close, explore_rounds=0), 24)} == {"a/conv"}
    told = trying.update(round_of(part([germinate(*ARMS[0])], [3.0])))
    assert (told["taught"], {action.blueprint for action in alive(trying, 24)}) == (1.0, {"a/conv"})


def test_draws_differ_between_seeds_episodes_and_environments():
    policy = Bandit(SPACE, **HASTY)
    rounds = [alive(policy, 400), alive(policy, 400), alive(Bandit(SPACE, seed=1, **HASTY), 400)]
    assert len({tuple(action.blueprint for action in found) for found in rounds}) == 3
    for found in rounds:
        count = Counter((action.slot, action.blueprint) for action in found)
        assert 25 < count.pop((None, None)) < 80  # an eighth: the draws for all three arms are below 0
        assert set(count) == set(ARMS)
        assert min(count.values()) > 85


def handed_over(policy, **settings):
    """Return a policy built in the same way that has loaded the state from a checkpoint."""
    heir = Bandit(policy.space, **settings)
    heir.load_state_dict(State(json.loads(json.dumps(policy.state_dict().plain, allow_nan=False))))
    return heir


# Warnings.


def always(*episodes):
    """Play the same round repeatedly."""
    return [round_of(*episodes, number=number) for number in range(14)]


UNPAID = part([germinate(*ARMS[0])], [None])
ALIKE = [part([germinate(*arm)], [reward]) for arm in ARMS for reward in (-5.0, 5.5)]
KNOWN = "after 10 rounds no seed is known to be better or worse than none"


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("rounds", "settings", "said"),
    [
        (always(UNPAID), {}, ["all rewards of 3 rounds are unknown"]),
        (always(*ALIKE), {}, [KNOWN]),
        (always(part([germinate(*ARMS[0])], [0.0])), {}, [KNOWN]),
        (always(part([WAIT], [0.0])), {"learn": False}, ["learn: false"]),
        (always(part([germinate(*ARMS[0])], [5.0]), part([WAIT], [0.0])), {}, []),
        (always(part([germinate(*ARMS[0])], [-5.0]), part([WAIT], [0.0])), {}, []),
        ([round_of(part([germinate(*ARMS[0])], [4.0])), *always(UNPAID)[:5]], {}, []),
    ],
    ids=["unpaid", "arms alike", "worthless", "does not learn", "pays", "costs", "paid once"],
)
def test_reasons_for_not_learning_are_reported_once(rounds, settings, said, resumed, caplog):
    """resumed: whether another one takes over before each round."""
    policy = Bandit(SPACE, **settings)
    with caplog.at_level(logging.WARNING, logger="esper"):
        for rollout in rounds:
            policy = handed_over(policy, **settings) if resumed else policy
            policy.update(rollout)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(said)
    assert all(one.startswith("arm bandit: bandit: ") and words in one for one, words in zip(told, said, strict=True))
