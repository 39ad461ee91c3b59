"""Imitation of the heuristic and of any rollout."""

import logging
from dataclasses import replace

import pytest

from esper_core.leyline import WAIT, Action, Op
from esper_policies.heuristic import Heuristic
from esper_policies.ppo.policy import Ppo
from esper_testing.games import contextual, masked, play, score
from esper_testing.policies import episode, space_of

TINY = {"width": 16, "together": 16, "minibatch": 16, "learning_rate": 3e-3, "forget_names": 0.0}


class Knows:
    """Plays the contextual game optimally."""

    def act(self, observations, masks):
        paying = {1: "games/beech", 2: "games/cedar", 3: "games/ash"}
        return [
            Action(Op.GERMINATE, "early", paying[round(one.signals.validation_loss)], speed=4) for one in observations
        ]


def test_imitation_reproduces_the_decisions_of_a_rollout():
    game = contextual()
    policy = Ppo(game.space, **TINY)
    figures = policy.imitate(play(Knows(), game, 48))
    assert figures["agreement"] >= 0.95
    assert 0 < figures["passes"] < 100
    assert figures["imitation_loss"] < 1.0
    assert figures["return"] == pytest.approx(5.0)
    assert policy.round == 1
    judge = Ppo(game.space, **TINY, learn=False)
    judge.load_state_dict(policy.state_dict())
    assert score(play(judge, game, 100, 7000)) > 4.0, "episodes that nobody has shown"


def test_the_teacher_plays_until_the_policy_agrees():
    game = masked()
    policy = Ppo(game.space, **TINY, teacher="heuristic", teach_rounds=9)
    rollout = play(policy, game, 16)
    shown = [turn.action for one in play(Heuristic(game.space), game, 16).episodes for turn in one.turns]
    assert [turn.action.op for one in rollout.episodes for turn in one.turns] == [one.op for one in shown]
    figures = policy.update(rollout)
    assert figures["agreement"] >= 0.95
    assert "kl" not in figures
    assert policy._teacher is None, "it has learnt enough"
    own = policy.update(play(policy, game, 4, 50, 1))
    assert own["largest_first_ratio"] < 1e-6
    assert own["kl"] >= 0


def test_the_teacher_leaves_after_teach_rounds():
    game = masked()
    own = {**TINY, "learning_rate": 1e-9, "minibatch": 1000}
    policy = Ppo(game.space, **own, teacher="heuristic", teach_rounds=2, enough=1.0)
    assert policy.update(play(policy, game, 2))["agreement"] < 1.0
    assert policy._teacher is not None
    policy.update(play(policy, game, 2, 5, 1))
    assert policy._teacher is None


def test_a_teacher_acts_within_the_options_and_pace_of_the_policy():
    space = space_of(2)
    policy = Ppo(space, width=8, teacher="heuristic", speeds=[7], decide_every=3)
    for seed in range(4):
        for scene in episode(space, seed):
            (action,) = policy.act([scene.observation], [scene.mask])
            assert scene.mask.allows(action)
            if scene.observation.step % 3:
                assert action == WAIT
            if action.op in (Op.GERMINATE, Op.PRUNE):
                assert action.speed == 7


def test_a_round_without_known_rewards_teaches_nothing(caplog):
    game = contextual()
    policy = Ppo(game.space, **TINY, teacher="heuristic")
    rollout = play(policy, game, 2)
    unpaid = [replace(one, turns=tuple(replace(turn, reward=None) for turn in one.turns)) for one in rollout.episodes]
    with caplog.at_level(logging.WARNING, logger="esper"):
        assert policy.update(replace(rollout, episodes=tuple(unpaid))) == {}
    assert ["all rewards are unknown" in record.getMessage() for record in caplog.records] == [True]
    assert policy.imitate(replace(rollout, episodes=())) == {}
