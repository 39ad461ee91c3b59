"""A live table of growbench trains what is asked for, once, with the numbers of a recorded table."""

import json
from itertools import accumulate

import numpy as np
import pytest

from esper_run.app.episode import Episode
from esper_study.growbench import (
    Bench,
    FixedPlan,
    Match,
    Node,
    actions_to,
    after,
    end_nodes,
    live_table,
    nodes,
    puzzle,
)
from esper_study.growbench.engine import act_until_decision, measurements, train_puzzle
from esper_study.growbench.puzzles import DECISIONS

OTHER_SEED = 77_001


@pytest.fixture(scope="module")
def small():
    return puzzle(3)


@pytest.fixture(scope="module")
def bench(small):
    """A table of two seeds. What one test trains, the next ones find."""
    return Bench(live_table(small, [small.seed, OTHER_SEED]))


@pytest.mark.slow
def test_only_visited_nodes_are_trained_and_have_the_measurements_of_the_engine(small, tmp_path):
    bench = Bench(live_table(small, [small.seed, OTHER_SEED]))
    end = max(end_nodes(), key=lambda node: len(node.kept))
    unplayed, played = bench.table.runs
    assert unplayed.visited == played.visited == {Node(0)}
    assert np.isnan(bench.table.column("test_metric")).all()
    bench.play(FixedPlan(end), [Match(1, 40.0)])
    path = list(accumulate(actions_to(end), after, initial=Node(0)))
    assert played.visited == {*path, *(Node(decision) for decision in range(DECISIONS + 1))}
    assert unplayed.visited == {Node(0)}
    file = tmp_path / "puzzle.yaml"
    file.write_text(json.dumps(small.config()))
    play = Episode.of(file)
    moment = play.begin(OTHER_SEED)
    for action in actions_to(end):
        moment = act_until_decision(play, action)
    assert moment.over
    np.testing.assert_array_equal(bench.table.row(1, end), measurements(moment))


@pytest.mark.slow
def test_the_twin_of_a_seed_is_trained_once(small, monkeypatch):
    trained = []
    twin_of = Episode._train_twin
    monkeypatch.setattr(Episode, "_train_twin", lambda self, seed: trained.append(seed) or twin_of(self, seed))
    alone = live_table(small, [OTHER_SEED])
    monkeypatch.setattr("esper_run.app.episode.TWINS_KEPT", 1)
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
def test_a_live_table_equals_a_trained_one(bench, small):
    values, _ = train_puzzle(small)
    rows = np.stack([bench.table.row(0, node) for node in nodes()])
    np.testing.assert_array_equal(rows, values)
