"""The published results of the study of learned policies follow from its lines, and its command runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science.learned_policies.policies import MAIN_PRICE
from benchmarks.science.learned_policies.report import picture
from benchmarks.science.learned_policies.summary import summarise
from benchmarks.science.learned_policies.training import read_lines
from esper_study.growbench import Bench, Kept, Match, Node, shipped_table
from esper_study.growbench.puzzles import DECISIONS

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "benchmarks" / "science" / "learned_policies"


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


@pytest.mark.slow
def test_the_study_runs_by_one_command_and_continues(tmp_path):
    command = [sys.executable, "-m", "benchmarks.science.learned_policies", "--quick", "--into", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(found).keys() == json.loads((STUDY / "results.json").read_text(encoding="utf-8")).keys()
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stderr == ""
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == found
