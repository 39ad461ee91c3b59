"""What ppo learns: known optima."""

import pytest

from esper_policies.ppo.policy import Ppo
from tests.support.games import GAMES, learn, play, score

OWN = {
    "width": 32,
    "together": 64,
    "learning_rate": 1e-3,
    "entropy": 0.05,
    "entropy_end": 0.01,
    "forget_names": 0.0,
    "passes": 4,
    "minibatch": 64,
}
COURSES = {"contextual": (35, 64), "memory": (30, 64), "delayed": (15, 32)}
"""Rounds, and episodes in each."""
ENOUGH = 0.9


def reached(name, seed, rounds, episodes):
    """Return the reached share of the distance from the worst sane player to the best one."""
    game = GAMES[name]()
    policy = Ppo(game.space, seed=seed, **OWN)
    learn(policy, game, rounds, episodes, seed=100_000 * seed)
    judged = Ppo(game.space, seed=seed, **OWN, learn=False)
    judged.load_state_dict(policy.state_dict())
    reward = score(play(judged, game, 200, 7_000_000))
    return (reward - game.worst_sane) / (game.best - game.worst_sane)


@pytest.mark.slow
@pytest.mark.parametrize("name", COURSES)
def test_run_06_it_reaches_an_optimum_that_is_known_with_4_of_5_seeds(name):
    shares = [reached(name, seed, *COURSES[name]) for seed in range(5)]
    assert sum(share >= ENOUGH for share in shares) >= 4, shares


@pytest.mark.install  # CI runs it for every change
def test_it_learns_a_contextual_bandit():
    assert reached("contextual", 1, 25, 64) >= ENOUGH
