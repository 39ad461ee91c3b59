"""Is a problem that is trained while it is played the one that a table would tell?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from esper_core import Play
from esper_policies.chance import Random
from esper_policies.ppo.policy import Ppo
from esper_tasks.growbench import building
from esper_tasks.growbench.growing import growing
from esper_tasks.growbench.plans import Node, ends, nodes, place_of
from esper_tasks.growbench.playing import Bench, Match, actions_to
from esper_tasks.growbench.puzzles import DECISIONS, EVERY, LAST, puzzle
from esper_tasks.growbench.regret import Fixed

OTHER_SEED = 77_001


@pytest.fixture(scope="module")
def small():
    return puzzle(3)


@pytest.fixture
def bench(small):
    return Bench(growing(small, [small.seed, OTHER_SEED]))


def test_only_what_somebody_asks_for_is_trained(bench):
    own, other = bench.table.courses
    assert own.known == other.known == {Node(0)}
    bench.play(Fixed(Node(DECISIONS)), [Match(0, 40.0)])
    assert own.known == {Node(decision) for decision in range(DECISIONS + 1)}
    assert other.known == {Node(0)}


def test_a_column_has_what_is_known_by_then(bench):
    end = Node(DECISIONS)
    assert np.isnan(bench.table.column("test_metric")).all()
    bench.play(Fixed(end), [Match(1, 40.0)])
    own, other = bench.table.column("test_metric")
    assert np.isnan(own).all()
    assert [nodes()[place] for place in np.flatnonzero(~np.isnan(other))] == [end]
    assert other[place_of()[end]] == bench.table.row(1, end)[building.COLUMNS.index("test_metric")]


def test_each_seed_is_a_course_of_its_own(bench):
    end = Node(DECISIONS)
    rows = [bench.table.row(place, end) for place in range(2)]
    assert not np.array_equal(*rows)


def test_it_is_what_the_engine_comes_to(bench, small, tmp_path):
    file = tmp_path / "puzzle.yaml"
    file.write_text(json.dumps(small.config()))
    end = max(ends(), key=lambda one: len(one.kept))
    play = Play.of(file)
    moment = play.begin(OTHER_SEED)
    for action in actions_to(end):
        moment = building.go(play, action)
    assert moment.over
    np.testing.assert_array_equal(bench.table.row(1, end), np.array(building.numbers(moment), dtype=np.float32))


def test_in_which_order_ways_are_gone_changes_nothing(small):
    some = list(ends())[::20]
    there, back = (growing(small, [OTHER_SEED]) for _ in range(2))
    told = {node: there.row(0, node) for node in some}
    for node in reversed(some):
        np.testing.assert_array_equal(back.row(0, node), told[node])


def test_the_twin_of_a_course_is_trained_once_however_many_courses_there_are(small, monkeypatch):
    trained = []
    twin_of = Play._undisturbed
    monkeypatch.setattr(Play, "_undisturbed", lambda self, seed: trained.append(seed) or twin_of(self, seed))
    alone = growing(small, [OTHER_SEED])
    monkeypatch.setattr("esper_core.app.episode.TWINS_KEPT", 1)
    beside = growing(small, [small.seed, OTHER_SEED])
    for decision in range(1, 4):
        for place in (0, 1):
            beside.row(place, Node(decision))
        np.testing.assert_array_equal(alone.row(0, Node(decision)), beside.row(1, Node(decision)))
    assert trained == [OTHER_SEED, small.seed, OTHER_SEED]


def test_how_long_a_step_took_is_known_and_no_part_of_it_is_that_of_others(small, monkeypatch):
    clock = iter(range(1_000_000))
    monkeypatch.setattr("esper_tasks.growbench.growing.time.process_time", lambda: float(next(clock)))
    course = growing(small, [OTHER_SEED]).courses[0]
    (end,) = [node for node in ends() if len(node.kept) == 2][:1]
    course.row(end)
    began = next(clock)
    assert [course.seconds(node) for node in course.known] == [1.0] * len(course.known), "a beginning and an end each"
    assert course.seconds(Node(DECISIONS)) == 1.0, "what nobody asked for is trained"
    assert next(clock) > began + 1


def test_any_policy_plays_it(bench):
    policy = Random(bench.space, seed=0, speeds=(2,))
    _, reached = bench.play(policy, [Match(place, 40.0) for place in (0, 1)])
    assert all(node.over for node in reached)
    assert all(set(reached[place : place + 1]) <= course.known for place, course in enumerate(bench.table.courses))


def learnt(bench, seeds, rounds):
    """After each round of a gardener at four prices: decisions so far, and how many of them had to be trained."""
    gardener = Ppo(bench.space, seed=0, speeds=[2], decide_every=EVERY, last=LAST)
    matches = [Match(place, price) for place in range(seeds) for price in (10.0, 20.0, 40.0, 80.0)]
    decisions = 0
    for round_ in range(rounds):
        rollout, _ = bench.play(gardener, matches, round_)
        assert gardener.update(rollout)
        decisions += sum(len(episode.turns) for episode in rollout.episodes)
        yield decisions, sum(len(course.known) - 1 for course in bench.table.courses)


def test_a_gardener_learns_at_several_prices_and_no_way_is_trained_twice(small):
    (first, trained), (second, by_then) = learnt(Bench(growing(small, [small.seed])), seeds=1, rounds=2)
    assert (first, second) == (4 * DECISIONS, 8 * DECISIONS)
    assert trained < first
    assert by_then - trained < trained, "what was gone in the first round is known in the second"


@pytest.mark.slow
def test_most_of_what_a_gardener_does_is_known_before_long_as_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "growbench.md").read_text(encoding="utf-8")
    decisions, trained = map(
        int, re.search(r"of the first (\d+)\s+decisions [^.]*? (\d+)\s+were trained", page).groups()
    )
    *_, (made, found) = learnt(Bench(growing(puzzle(500, "held_out"), [1, 2])), seeds=2, rounds=5)
    assert made == decisions
    assert found == pytest.approx(trained, rel=0.1), "another processor may decide otherwise here and there"


@pytest.mark.slow
def test_it_tells_what_a_table_tells(bench, small):
    values, _ = building.build(small)
    told = np.stack([bench.table.row(0, node) for node in nodes()])
    np.testing.assert_array_equal(told, values)
