"""The published results of the study of learned policies follow from its lines, and its command runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science.learned_policies.evaluation import costs_of, nodes_of, seconds_of, trained_seeds
from benchmarks.science.learned_policies.many_seeds import FIRST_SEED, FRESH, SEEDS
from benchmarks.science.learned_policies.policies import MAIN_PRICE
from benchmarks.science.learned_policies.report import picture
from benchmarks.science.learned_policies.summary import summarise
from benchmarks.science.learned_policies.training import append_line, read_lines
from esper_core.leyline import WAIT, Action, Op
from esper_study.growbench import CANDIDATES, COLUMNS, Bench, FixedPlan, Kept, Match, Node, puzzle, shipped_table
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, STEPS

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "benchmarks" / "science" / "learned_policies"
PLANT = Action(Op.GERMINATE, *CANDIDATES[1])


@pytest.fixture(scope="module")
def bench():
    return Bench(shipped_table())


@pytest.fixture(scope="module")
def results():
    return json.loads((STUDY / "results.json").read_text(encoding="utf-8"))


def is_same(found: Any, stored: Any) -> bool:
    """Compare results; numbers to 1e-9, since intervals may round differently in the last bit."""
    if isinstance(found, dict) and isinstance(stored, dict):
        return found.keys() == stored.keys() and all(is_same(found[key], stored[key]) for key in found)
    if isinstance(found, list | tuple) and isinstance(stored, list | tuple):
        return len(found) == len(stored) and all(map(is_same, found, stored))
    return bool(found == (pytest.approx(stored, rel=1e-9) if isinstance(stored, float) else stored))


def test_results_follow_from_the_lines_of_each_problem_and_rng_seed(results):
    assert is_same(json.loads(json.dumps(summarise(STUDY))), results)


def test_picture_shows_the_results(results):
    file = ROOT / "docs" / "pictures" / "learned-policies.svg"
    assert file.read_text(encoding="utf-8") == picture(results)


def test_rewards_are_those_of_the_kept_seeds_in_the_shipped_table(bench):
    lines, numbers = read_lines(STUDY / "table.jsonl"), bench.table.of_part("held_out")
    assert [bench.table.puzzles[number].name for number in numbers] == [line["problem"] for line in lines]
    for number, line in zip(numbers, lines, strict=True):
        for own in (policy[f"{MAIN_PRICE:g}"] for policy in line["policies"].values()):
            ends = [Node(DECISIONS, tuple(Kept(*one) for one in kept)) for kept in own["kept"]]
            found = [bench.total_reward(Match(number, MAIN_PRICE), end) for end in ends]
            assert found == pytest.approx(own["reward"], abs=1e-4)


def test_repeated_problems_are_the_held_out_ones_and_fresh_ones_with_unused_rng_seeds(bench):
    known = len(bench.table.of_part("held_out"))
    for name, numbers in (("other_rng_seeds", range(known)), ("fresh_problems", range(known, known + FRESH))):
        lines = read_lines(STUDY / f"{name}.jsonl")
        assert sorted(line["problem"] for line in lines) == list(numbers)
        assert {len(own) for line in lines for one in line["policies"].values() for own in one["reward"]} == {SEEDS}
    repeated = range(FIRST_SEED, FIRST_SEED + SEEDS)
    assert [n for n in range(400) for part in ("train", "held_out") if puzzle(n, part).seed in repeated] == []


def test_costs_of_an_episode_count_the_host_beside_an_incubating_seed(bench):
    match, end = Match(bench.table.of_part("held_out")[0], MAIN_PRICE), Node(DECISIONS, (Kept(0, 0, 1),))
    place = bench.table.places[match.puzzle][CANDIDATES[0][0]]
    seed, host = place.candidate(CANDIDATES[0][1]), bench.table.row(match.puzzle, Node(0))
    episode = bench.play(FixedPlan(end), [match])[0].episodes[0]
    parameters, operations = costs_of(bench, match, episode, end)
    assert parameters == pytest.approx(1 + seed.parameters / host[COLUMNS.index("parameters")])
    assert operations == pytest.approx(1 + ((STEPS - 1) * seed.flops / place.host_flops + DECIDE_EVERY) / STEPS)
    alone = bench.play(FixedPlan(Node(DECISIONS)), [match])[0].episodes[0]
    assert costs_of(bench, match, alone, Node(DECISIONS)) == (1, 1)


def test_seeds_are_trained_while_they_incubate_and_after_they_are_kept():
    other = Action(Op.GERMINATE, *CANDIDATES[3])
    pruned = [PLANT, Action(Op.PRUNE, *CANDIDATES[1]), other, WAIT]
    assert trained_seeds(pruned) == [([], 1), ([], None), ([], 3), ([], 3)]
    kept = [PLANT, WAIT, Action(Op.ADVANCE, *CANDIDATES[1]), other]
    assert trained_seeds(kept) == [([], 1), ([], 1), ([1], None), ([1], 3)]
    impossible = [WAIT, Action(Op.ADVANCE, *CANDIDATES[1]), PLANT, other]
    assert trained_seeds(impossible) == [([], None), ([], None), ([], 1), ([], 1)]


class TimedRun:
    """A run that takes a second where a seed trains beside the host, and half a second elsewhere."""

    def seconds(self, node: Node) -> float:
        return 1.0 if node.kept or node.pending else 0.5


def test_seconds_of_an_episode_are_those_of_its_nodes():
    pruned = [PLANT, Action(Op.PRUNE, *CANDIDATES[1]), WAIT, WAIT]
    assert nodes_of(pruned) == [Node(0), Node(0).planted(1), Node(2), Node(3), Node(4)]
    assert seconds_of(TimedRun(), [WAIT] * DECISIONS) == 1.0
    assert seconds_of(TimedRun(), pruned) == pytest.approx((0.5 + 1.0 + 3 * 0.5) / 2.5)


def test_truncated_lines_are_skipped_and_do_not_spoil_others(tmp_path):
    log = tmp_path / "log.jsonl"
    for number in range(2):
        append_line(log, {"number": number, "more": {"of": "it"}})
    whole = log.read_bytes()
    for end in range(len(whole) // 2 + 1, len(whole)):
        log.write_bytes(whole[:end])
        assert read_lines(log)[:1] == [{"number": 0, "more": {"of": "it"}}]
        append_line(log, {"number": 2})
        assert read_lines(log)[-1] == {"number": 2}


@pytest.mark.slow
def test_the_study_runs_by_one_command_and_continues(tmp_path):
    command = [sys.executable, "-m", "benchmarks.science.learned_policies", "--quick", "--into", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(found).keys() == json.loads((STUDY / "results.json").read_text(encoding="utf-8")).keys()
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stderr == ""
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == found
