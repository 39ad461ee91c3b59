"""A resumed ppo decides and learns as an uninterrupted one, whatever environments are beside it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from esper_core.leyline import Action, ActionMask, ActionSpace, Op, SlotSignals, SlotState
from esper_policies.ppo.encoding import see
from esper_policies.ppo.policy import Ppo
from esper_testing.policies import STRANGER, episode, same_state, space_of, written_and_read
from tests.support.games import delayed, play

TINY = {"width": 8, "passes": 2, "minibatch": 16, "learning_rate": 1e-2}


def same(first, second):
    return same_state(written_and_read(first.state_dict()), written_and_read(second.state_dict()))


@pytest.mark.parametrize("ways", [{}, {"together": 3, "decide_every": 2, "speed": 3}])
def test_a_policy_resumed_before_each_round_decides_and_learns_as_an_uninterrupted_one(ways):
    game = delayed()
    stays = Ppo(game.space, **TINY, **ways)
    for number in range(2):
        moves = Ppo(game.space, **TINY, **ways)
        moves.load_state_dict(written_and_read(stays.state_dict()))
        rollout, again = (play(policy, game, 3, 10 * number, number) for policy in (stays, moves))
        assert rollout == again
        assert stays.update(rollout) == moves.update(again)
        assert same(stays, moves)


def decisions(policy, episodes, place):
    """Return the decisions in one of some environments, and its memory in the end."""
    steps = zip(*episodes, strict=True)
    actions = [
        policy.act([scene.observation for scene in step], [scene.mask for scene in step])[place] for step in steps
    ]
    return actions, policy._memories[place].hidden


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(0, 2))
def test_run_08_decisions_in_an_environment_do_not_depend_on_others(seed, neighbours, before):
    space = space_of(3)
    scenes = episode(space, seed)
    beside = [episode(space, seed + 1 + n) for n in range(neighbours)]
    alone, crowd = (Ppo(space, width=8, learn=False) for _ in range(2))
    place = min(before, neighbours)
    actions, hidden = decisions(alone, [scenes], 0)
    again, held = decisions(crowd, [*beside[:place], scenes, *beside[place:]], place)
    assert actions == again
    assert torch.equal(hidden, held)


def test_draws_differ_between_seeds_environments_and_rounds():
    game, drawn = delayed(), {}
    for seed in (0, 1):
        policy = Ppo(game.space, width=8, together=16, seed=seed)
        for round_ in range(2):
            rollout = play(policy, game, 16, round_=round_)
            policy.round += 1
            drawn[seed, round_] = tuple(
                tuple(turn.action for turn in episode.turns) for episode in rollout.trajectories
            )
    assert len(set(drawn.values())) == 4
    assert len(set(drawn[0, 0])) > 4


def test_run_14_it_decides_among_unseen_blueprints_and_slots():
    learnt, done = Ppo(space_of(2), **TINY), set()
    for plugin, slots in (("unheard-of", 2), ("tried", 5), ("unheard-of", 1)):
        space = space_of(slots, plugin)
        policy = Ppo(space, **TINY, together=60)
        policy.network.load_state_dict(learnt.network.state_dict())
        scenes = [episode(space, seed, stranger=bool(seed % 2))[seed % 5] for seed in range(60)]
        actions = policy.act([scene.observation for scene in scenes], [scene.mask for scene in scenes])
        assert all(scene.mask.allows(action) for scene, action in zip(scenes, actions, strict=True))
        done |= {action.op for action in actions}
        assert {action.slot for action in actions} >= set(space.slots)
        assert {action.blueprint for action in actions} - {None} <= {*_names(space), STRANGER}
        assert STRANGER in {action.blueprint for action in actions}
    assert done >= {Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.PRUNE}


def _names(space):
    return [name for names in space.blueprints.values() for name in names]


def test_new_names_are_appended_when_the_action_space_grew():
    small = space_of(2)
    joined = ActionSpace({**small.blueprints, "new": ("more/blueprint-0", "tried/blueprint-0")})
    policy = Ppo(joined, **TINY)
    policy.load_state_dict(written_and_read(Ppo(small, **TINY).state_dict()))
    assert policy._names == list(dict.fromkeys(_names(small)))
    (scene, *_) = episode(joined, 3)
    (action,) = policy.act([scene.observation], [scene.mask])
    assert scene.mask.allows(action)


def test_it_can_act_on_a_seed_of_an_unknown_blueprint_and_waits_without_candidates():
    space = space_of(1)
    ops = frozenset({Op.PRUNE})
    scene = next(entry for entry in episode(space, 4, stranger=True) if entry.observation.signals.slots[0].living)
    slot = scene.observation.signals.slots[0]
    mask = ActionMask({slot.name: ops}, {}, {slot.name: {STRANGER: ops}})
    policy = Ppo(space, width=8, together=64)
    decided = policy.act([scene.observation] * 64, [mask] * 64)
    assert {(action.op, action.blueprint) for action in decided} == {(Op.WAIT, None), (Op.PRUNE, STRANGER)}
    space = ActionSpace({"early": ()})
    scene = episode(space_of(1), 1)[0]
    signals = replace(scene.observation.signals, slots=(SlotSignals("early", SlotState.EMBARGOED, fossils=0),))
    policy = Ppo(space, width=8)
    assert policy.act([replace(scene.observation, signals=signals)], [ActionMask({"early": frozenset()})]) == [Action()]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_forget_names_is_the_share_of_names_left_out(share):
    space = space_of(3)
    learns, plays = Ppo(space, width=8, forget_names=share), Ppo(space, width=8, forget_names=share, learn=False)
    plays._names = list(learns._names)
    scene = episode(space, 0)[0]
    seen = see(space, scene.observation, scene.mask, None)
    left = [number == 0 for environment in range(60) for number in learns._numbers(seen, environment, round_=3)]
    assert sum(left) / len(left) == pytest.approx(share, abs=0.1)
    assert learns._numbers(seen, 5, round_=3) == learns._numbers(seen, 5, round_=3)
    played = plays._numbers(seen, 5, round_=3)
    assert not any(played) if share == 1.0 else all(played), "of names that were never told nothing was learnt"
