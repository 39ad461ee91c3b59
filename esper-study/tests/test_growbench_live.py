"""A live table of growbench trains what is asked for, once, with the numbers of a recorded table."""

import json

import numpy as np
import pytest

from esper_core.app.episode import Episode
from esper_policies.ppo.policy import Ppo
from esper_study.growbench import (
    COLUMNS,
    Bench,
    FixedPlan,
    Match,
    Node,
    actions_to,
    end_nodes,
    live_table,
    nodes,
    puzzle,
)
from esper_study.growbench.engine import act_until_decision, measurements, train_puzzle
from esper_study.growbench.graph import node_index
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, LAST_DECISION

OTHER_SEED = 77_001


@pytest.fixture(scope="module")
def small():
    return puzzle(3)


@pytest.fixture(scope="module")
def bench(small):
    """A table of two seeds. What one test trains, the next ones find."""
    return Bench(live_table(small, [small.seed, OTHER_SEED]))


def test_only_visited_nodes_are_trained(small):
    bench, end = Bench(live_table(small, [small.seed, OTHER_SEED])), Node(DECISIONS)
    own, other = bench.table.runs
    assert own.visited == other.visited == {Node(0)}
    assert np.isnan(bench.table.column("test_metric")).all()
    bench.play(FixedPlan(end), [Match(0, 40.0)])
    assert own.visited == {Node(decision) for decision in range(DECISIONS + 1)}
    assert other.visited == {Node(0)}
    own, other = bench.table.column("test_metric")
    assert np.isnan(other).all()
    assert [nodes()[place] for place in np.flatnonzero(~np.isnan(own))] == [end]
    assert own[node_index()[end]] == bench.table.row(0, end)[COLUMNS.index("test_metric")]


def test_rows_are_the_measurements_of_the_engine(bench, small, tmp_path):
    file = tmp_path / "puzzle.yaml"
    file.write_text(json.dumps(small.config()))
    end = max(end_nodes(), key=lambda one: len(one.kept))
    play = Episode.of(file)
    moment = play.begin(OTHER_SEED)
    for action in actions_to(end):
        moment = act_until_decision(play, action)
    assert moment.over
    np.testing.assert_array_equal(bench.table.row(1, end), measurements(moment))


@pytest.mark.slow
def test_the_order_of_training_does_not_change_the_numbers(bench, small):
    some = end_nodes()[::40]
    found = {node: bench.table.row(1, node) for node in some}
    assert not np.array_equal(bench.table.row(0, some[0]), found[some[0]]), "another seed has other numbers"
    alone = live_table(small, [OTHER_SEED])
    for node in reversed(some):
        np.testing.assert_array_equal(alone.row(0, node), found[node])


@pytest.mark.slow
def test_the_twin_of_a_seed_is_trained_once(small, monkeypatch):
    trained = []
    twin_of = Episode._train_twin
    monkeypatch.setattr(Episode, "_train_twin", lambda self, seed: trained.append(seed) or twin_of(self, seed))
    alone = live_table(small, [OTHER_SEED])
    monkeypatch.setattr("esper_core.app.episode.TWINS_KEPT", 1)
    beside = live_table(small, [small.seed, OTHER_SEED])
    for decision in range(1, 4):
        for place in (0, 1):
            beside.row(place, Node(decision))
        np.testing.assert_array_equal(alone.row(0, Node(decision)), beside.row(1, Node(decision)))
    assert trained == [OTHER_SEED, small.seed, OTHER_SEED]


@pytest.mark.slow
def test_seconds_count_each_step_once(small, monkeypatch):
    clock = iter(range(1_000_000))
    monkeypatch.setattr("esper_study.growbench.engine.time.process_time", lambda: float(next(clock)))
    run = live_table(small, [OTHER_SEED]).runs[0]
    (end,) = [node for node in end_nodes() if len(node.kept) == 2][:1]
    run.row(end)
    began = next(clock)
    assert [run.seconds(node) for node in run.visited] == [1.0] * len(run.visited), "one start and one stop each"
    assert run.seconds(Node(DECISIONS)) == 1.0, "a node is trained when it is asked for"
    assert next(clock) > began + 1


@pytest.mark.slow
def test_a_learner_trains_no_path_twice(small):
    """A learner at four prices trains fewer nodes than it decides in, and in the second round fewer still."""
    bench = Bench(live_table(small, [small.seed]))
    policy = Ppo(bench.space, seed=0, speeds=[2], decide_every=DECIDE_EVERY, last=LAST_DECISION)
    trained = [0]
    for round_ in range(2):
        rollout, _ = bench.play(policy, [Match(0, price) for price in (10.0, 20.0, 40.0, 80.0)], round_)
        assert policy.update(rollout)
        assert sum(len(episode.turns) for episode in rollout.episodes) == 4 * DECISIONS
        trained.append(sum(len(run.visited) - 1 for run in bench.table.runs))
    assert trained[1] < 4 * DECISIONS
    assert trained[2] - trained[1] < trained[1]


@pytest.mark.slow
def test_a_live_table_equals_a_trained_one(bench, small):
    values, _ = train_puzzle(small)
    found = np.stack([bench.table.row(0, node) for node in nodes()])
    np.testing.assert_array_equal(found, values)
