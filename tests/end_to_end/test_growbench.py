"""Policies can be played on growbench, and are paid what the reward ``team`` pays."""

import math
from importlib import resources

import pytest

from esper_core.leyline import Metric
from esper_policies.heuristic import Heuristic
from esper_policies.ppo.policy import Ppo
from esper_policies.random_policy import Random
from esper_policies.static import Static
from esper_rewards.potentials import Team
from esper_study.growbench import Bench, Match, Node, Oracle, nodes, score, shipped_table
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, LAST_DECISION, RAMP
from esper_study.growbench.table import CARD, NUMBERS

PRICES = (0.0, 7.0, 40.0)
PPO = {"decide_every": DECIDE_EVERY, "auto_fossilise": True, "one_at_a_time": True, "width": 16, "speeds": (RAMP,)}
QUICK = {**PPO, "passes": 1}


@pytest.fixture(scope="module")
def bench():
    home = resources.files("esper_study.growbench")
    if not (home / NUMBERS).is_file() and not (home / CARD).is_file():
        pytest.skip("no table is shipped with this copy: python -m esper_study.growbench --pack FOLDER makes one")
    return Bench(shipped_table())


@pytest.fixture
def matches(bench):
    return [Match(number, price) for number in bench.table.of_part("train")[:3] for price in PRICES]


@pytest.mark.parametrize("price", PRICES)
def test_every_node_has_the_reward_of_team(bench, price):
    team = Team(metric=Metric("accuracy"), price=price)
    for number in range(min(5, len(bench.table.puzzles))):
        match = Match(number, price)
        for node in nodes():
            seen, _ = bench.observe(match, node)
            assert bench.potential(match, node) == pytest.approx(team.potential(seen.signals, seen.twin), abs=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda space: Heuristic(space, preview=DECIDE_EVERY, last=LAST_DECISION, speed=RAMP, price=0.0),
            id="heuristic",
        ),
        pytest.param(lambda space: Random(space, speeds=(RAMP,)), id="random"),
        pytest.param(lambda space: Ppo(space, **QUICK), id="ppo"),
        pytest.param(Static, id="static"),
    ],
)
def test_a_policy_can_be_played_and_does_what_it_may(bench, matches, make):
    policy = make(bench.space)
    for round_ in range(2):
        rollout, reached = bench.play(policy, matches, round_)
        for played in rollout.trajectories:
            assert len(played.turns) == DECISIONS
            assert all(turn.mask.allows(turn.action) for turn in played.turns)
        figures = policy.update(rollout) if hasattr(policy, "update") else {}
        assert all(math.isfinite(value) for value in figures.values())
        outcome = score(bench, matches, reached)
        assert outcome.reward <= outcome.best
    if isinstance(policy, Static):
        assert set(reached) == {Node(DECISIONS)}
    elif isinstance(policy, Random | Heuristic):
        assert len(set(reached)) > 1


def test_a_policy_can_begin_with_what_the_best_plans_of_the_table_do(bench):
    training = [Match(number, 20.0) for number in bench.table.of_part("train")[:6]]
    best, _ = bench.play(Oracle(bench, training), training)
    policy = Ppo(bench.space, **PPO, learning_rate=3e-3, forget_names=0.0)
    judge = Ppo(bench.space, **PPO, learn=False)
    figures = policy.imitate(best)
    assert figures["agreement"] >= 0.95
    judge.load_state_dict(policy.state_dict())
    _, reached = bench.play(judge, training)
    assert score(bench, training, reached).regret < 0.15
