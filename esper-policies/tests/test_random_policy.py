"""The random policy: uniform legal actions, independent between environments."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st
from pydantic import ValidationError

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    Blend,
    Observation,
    Op,
    Resumable,
    Signals,
    State,
)
from esper_policies.random_policy import Random

SPACE = ActionSpace({"early": ("a/conv", "a/mlp", "a/norm"), "late": ("a/mlp",)})
FREE = ActionMask({"early": frozenset({Op.GERMINATE}), "late": frozenset()}, {"early": ("a/conv", "a/mlp")})
NURSERY = ActionMask(
    {
        "early": frozenset({Op.GERMINATE, Op.ADVANCE, Op.PRUNE}),
        "late": frozenset({Op.PRUNE, Op.FOSSILISE, Op.RETARGET}),
    },
    {"early": ("a/norm",)},
    {
        "early": {"a/mlp": frozenset({Op.PRUNE}), "a/conv": frozenset({Op.ADVANCE, Op.PRUNE})},
        "late": {"a/mlp": frozenset({Op.PRUNE, Op.FOSSILISE, Op.RETARGET})},
    },
)
IN_NURSERY = [
    WAIT,
    Action(Op.GERMINATE, "early", "a/norm"),
    Action(Op.ADVANCE, "early", "a/conv"),
    Action(Op.PRUNE, "early", "a/conv"),
    Action(Op.PRUNE, "early", "a/mlp"),
    Action(Op.PRUNE, "late", "a/mlp"),
    Action(Op.FOSSILISE, "late"),
]
FREE_CHOICES = Random(SPACE).choices(FREE)
GOLDEN = "120012010002121210220022"
"""What it does in 24 steps with the seed 7, by number in FREE_CHOICES."""


def seen(step):
    return Observation(step, 40, Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=()))


def played(policy, mask, *, environments=1, steps=400, first=0):
    """For each environment what it does in one episode, from its step ``first`` on."""
    actions = [policy.act([seen(step)] * environments, [mask] * environments) for step in range(first, steps)]
    return list(zip(*actions, strict=True))


def test_it_chooses_among_what_is_possible_and_waiting_each_of_them_once():
    assert Random(SPACE).choices(ActionMask()) == [WAIT]
    assert Random(SPACE).choices(FREE.shut()) == [WAIT]
    assert Random(SPACE).choices(NURSERY) == IN_NURSERY


def test_what_acts_on_a_slot_without_saying_on_which_seed_is_one_choice():
    mask = ActionMask({"early": frozenset({Op.ADVANCE, Op.PRUNE})})
    assert Random(SPACE).choices(mask) == [WAIT, Action(Op.ADVANCE, "early"), Action(Op.PRUNE, "early")]


def test_the_order_in_which_seeds_are_told_is_nothing_to_it():
    backwards = {slot: dict(reversed(seeds.items())) for slot, seeds in NURSERY.seeds.items()}
    turned = ActionMask(NURSERY.ops, NURSERY.blueprints, backwards)
    assert Random(SPACE).choices(turned) == IN_NURSERY


def test_a_target_is_chosen_anew_only_where_there_are_several():
    assert [one.op for one in Random(SPACE, targets=[0.5, 1.0]).choices(NURSERY)].count(Op.RETARGET) == 1


def test_each_choice_is_as_likely_as_any_other():
    actions = [action for actions in played(Random(SPACE), NURSERY, environments=10, steps=700) for action in actions]
    expected = len(actions) / len(IN_NURSERY)
    counts = Counter(actions)
    assert set(counts) == set(IN_NURSERY)
    surprise = sum((count - expected) ** 2 / expected for count in counts.values())
    assert surprise < 22.5  # 1 in 1000, of chi-square with 6 degrees of freedom


def test_how_a_seed_is_blended_in_is_drawn_from_the_lists_and_makes_nothing_likelier():
    lists = {"blends": ["add", "gate", "multiply"], "speeds": [0, 3], "targets": [0.25, 1.0]}
    plain, rich = (played(Random(SPACE, **more), FREE)[0] for more in ({}, lists))
    assert [(one.op, one.blueprint) for one in plain] == [(one.op, one.blueprint) for one in rich]
    planted = [action for action in rich if action.op is Op.GERMINATE]
    ways = Counter((action.blend, action.speed, action.target) for action in planted)
    assert set(ways) == {
        (blend, speed, target) for blend in map(Blend, lists["blends"]) for speed in (0, 3) for target in (0.25, 1.0)
    }
    assert max(ways.values()) < 3 * min(ways.values())


def test_an_op_is_given_only_what_it_reads():
    actions = played(Random(SPACE, blends=["gate"], speeds=[7], targets=[0.5]), NURSERY)[0]
    assert set(actions) == {
        WAIT,
        Action(Op.GERMINATE, "early", "a/norm", blend=Blend.GATE, speed=7, target=0.5),
        Action(Op.ADVANCE, "early", "a/conv"),
        Action(Op.PRUNE, "early", "a/conv", speed=7),
        Action(Op.PRUNE, "early", "a/mlp", speed=7),
        Action(Op.PRUNE, "late", "a/mlp", speed=7),
        Action(Op.FOSSILISE, "late"),
    }


@given(st.integers(0, 2**70), st.integers(1, 8), st.lists(st.sampled_from([FREE, NURSERY, ActionMask()]), min_size=1))
def test_what_it_does_in_an_environment_is_the_same_with_1_and_with_8(seed, environments, masks):
    alone, beside = Random(SPACE, seed=seed), Random(SPACE, seed=seed)
    for step, mask in enumerate(masks):
        others = [ActionMask() if (step + place) % 2 else FREE for place in range(environments - 1)]
        first, *_ = beside.act([seen(step)] * environments, [mask, *others])
        assert [first] == alone.act([seen(step)], [mask])
        assert mask.allows(first)


def test_seeds_episodes_environments_and_steps_are_drawn_for_apart():
    def ops(policy, **more):
        return ["".join(str(FREE_CHOICES.index(one)) for one in place) for place in played(policy, FREE, **more)]

    policy = Random(SPACE)
    draws = [*ops(policy, environments=4), *ops(policy, environments=4), *ops(Random(SPACE, seed=1), environments=4)]
    assert len(set(draws)) == 12
    for one, other in pairwise(draws):
        alike = sum(a == b for a, b in zip(one, other, strict=True)) / len(one)
        assert 0.23 < alike < 0.44  # a third, by chance
    assert len({draw[:20] for draw in draws} | {draws[0][at : at + 20] for at in range(1, 300)}) == 12 + 299


def test_its_draws_are_the_same_on_every_machine():
    assert "".join(str(FREE_CHOICES.index(one)) for one in played(Random(SPACE, seed=7), FREE, steps=24)[0]) == GOLDEN


def test_no_global_generator_is_asked_or_set():
    before = random.getstate(), torch.get_rng_state()
    one = played(Random(SPACE), NURSERY)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    random.seed(1)
    assert played(Random(SPACE), NURSERY) == one


def test_what_it_remembers_is_the_episode_of_each_environment():
    policy, heir = Random(SPACE), Random(SPACE)
    played(policy, FREE, environments=2, steps=3)
    played(policy, FREE, environments=3, steps=3)
    assert isinstance(policy, Resumable)
    assert policy.state_dict() == State({"episodes": [2, 2, 1]})
    played(heir, FREE, environments=5)
    heir.load_state_dict(State(json.loads(json.dumps(policy.state_dict().plain))))
    assert played(heir, FREE, environments=3, first=3) == played(policy, FREE, environments=3, first=3)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"seed": -1}, ("seed",)),
        ({"blends": []}, ("blends",)),
        ({"blends": ["mix"]}, ("blends", 0)),
        ({"speeds": [2, -1]}, ("speeds", 1)),
        ({"targets": [0.0]}, ("targets", 0)),
        ({"targets": [float("nan")]}, ("targets", 0)),
    ],
)
def test_settings_out_of_bounds_are_refused_with_their_place(settings, place):
    with pytest.raises(ValidationError) as caught:
        Random(SPACE, **settings)
    assert caught.value.errors()[0]["loc"] == place
