"""Blueprints that were never seen are tried once per episode."""

from dataclasses import replace

import pytest

from esper_core.leyline import WAIT, Action, ActionMask, Op, rows_of
from esper_policies.ppo.encoding import Seen
from esper_policies.ppo.policy import Ppo, germination_of_new
from esper_testing.games import contextual, learn, play
from esper_testing.policies import episode, space_of

SPACE = space_of(2)
TINY = {"width": 8, "passes": 1, "together": 4}


def scene(step=0):
    """Return the observation of a step, and a mask in which everything can germinate."""
    seen = episode(SPACE, 3)[step].observation
    return seen, ActionMask({slot: frozenset({Op.GERMINATE}) for slot in SPACE.slots}, dict(SPACE.blueprints))


def planted(policy, steps):
    """Return what it germinates in the first steps of an episode."""
    acts = [policy.act([seen], [mask])[0] for seen, mask in map(scene, range(steps))]
    return [action.blueprint for action in acts if action.op is Op.GERMINATE]


def test_each_unknown_blueprint_is_tried_once_per_episode():
    names = list(dict.fromkeys(one for several in SPACE.blueprints.values() for one in several))
    policy = Ppo(SPACE, **TINY, learn=False, look_at_new=True)
    assert planted(policy, len(names)) == names
    assert policy._memories[0].looked_at == tuple(names)
    assert planted(policy, 1) == names[:1], "in another episode it looks again"


@pytest.mark.parametrize("ways", [{"learn": False}, {"look_at_new": True}], ids=["not asked to", "who learns"])
def test_nothing_is_tried_without_look_at_new_or_while_learning(ways):
    policy = Ppo(SPACE, **TINY, **ways)
    planted(policy, 3)
    assert policy._memories[0].looked_at == ()


def test_known_blueprints_are_not_tried(tmp_path):
    game = contextual()
    learn(Ppo(game.space, **TINY, save=str(tmp_path / "kept")), game, 1, 4)
    same = {"load": str(tmp_path / "kept"), "learn": False, "together": 4}
    plain, curious = Ppo(game.space, **same), Ppo(game.space, **same, look_at_new=True)
    acts = [[turn.action for one in play(own, game, 8).episodes for turn in one.turns] for own in (plain, curious)]
    assert acts[0] == acts[1]


def test_a_resumed_policy_remembers_what_it_tried():
    first, second = (Ppo(SPACE, **TINY, learn=False, look_at_new=True) for _ in range(2))
    planted(first, 1)
    second.load_state_dict(first.state_dict())
    seen, mask = scene(1)
    assert second.act([seen], [mask]) == first.act([seen], [mask])
    assert second._memories[0].looked_at == first._memories[0].looked_at


def test_trying_a_blueprint_replaces_only_waiting_and_germinating():
    observation, mask = scene()
    seen = Seen((), rows_of(SPACE, observation, mask))
    (slot, blueprint), *_ = seen.candidates
    new = Action(Op.GERMINATE, slot, blueprint)
    for decided in (WAIT, Action(Op.GERMINATE, *seen.candidates[-1])):
        assert germination_of_new(seen, mask, decided, (), ()) == new
    for op in (Op.ADVANCE, Op.PRUNE, Op.FOSSILISE, Op.RETARGET):
        assert germination_of_new(seen, mask, Action(op, slot), (), ()) is None
    names = [name for _, name in seen.candidates]
    assert germination_of_new(seen, mask, WAIT, names, ()) is None
    assert germination_of_new(seen, mask, WAIT, (), names) is None
    assert germination_of_new(seen, mask.shut(), WAIT, (), ()) is None


@pytest.mark.parametrize(("price", "looks"), [(10.0, True), (20.0, True), (20.1, False), (None, True)])
def test_look_up_to_limits_the_price_of_tries(price, looks):
    policy = Ppo(SPACE, **TINY, learn=False, look_at_new=True, look_up_to=20)
    seen, mask = scene()
    policy.act([replace(seen, price=price)], [mask])
    assert bool(policy._memories[0].looked_at) == looks
