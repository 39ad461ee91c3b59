"""Published results of studies follow from their records, and the studies run by one command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science import verdicts
from benchmarks.science.learned_policies.policies import MAIN_PRICE, PRICES, heuristic, matches
from benchmarks.science.learned_policies.report import picture
from benchmarks.science.learned_policies.summary import summarise
from benchmarks.science.learned_policies.training import read_lines
from benchmarks.science.verdicts import QUICK, WHOLE
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


def is_same(computed: Any, stored: Any) -> bool:
    """Compare results; numbers to 1e-9, since intervals may round differently in the last bit."""
    if isinstance(computed, dict) and isinstance(stored, dict):
        return computed.keys() == stored.keys() and all(is_same(computed[key], stored[key]) for key in computed)
    if isinstance(computed, list | tuple) and isinstance(stored, list | tuple):
        return len(computed) == len(stored) and all(map(is_same, computed, stored))
    return bool(computed == (pytest.approx(stored, rel=1e-9) if isinstance(stored, float) else stored))


def test_results_follow_from_the_lines_of_each_problem_and_rng_seed(results):
    assert is_same(json.loads(json.dumps(summarise(STUDY))), results)


def test_picture_shows_the_results(results):
    file = ROOT / "docs" / "pictures" / "learned-policies.svg"
    assert file.read_text(encoding="utf-8") == picture(results)


def test_rewards_are_those_of_the_kept_seeds_in_the_shipped_table(bench):
    lines, numbers = read_lines(STUDY / "table.jsonl"), bench.table.of_part("held_out")
    assert [bench.table.puzzles[number].name for number in numbers] == [line["problem"] for line in lines]
    for number, line in zip(numbers, lines, strict=True):
        for results in (policy[f"{MAIN_PRICE:g}"] for policy in line["policies"].values()):
            ends = [Node(DECISIONS, tuple(Kept(*seed) for seed in kept)) for kept in results["kept"]]
            rewards = [bench.total_reward(Match(number, MAIN_PRICE), end) for end in ends]
            assert rewards == pytest.approx(results["reward"], abs=1e-4)


def test_the_tuned_rules_still_earn_the_recorded_rewards(bench):
    tuned = json.loads((STUDY / "heuristic.json").read_text(encoding="utf-8"))
    lines, numbers = read_lines(STUDY / "table.jsonl"), bench.table.of_part("held_out")
    for price in PRICES:
        played = matches(numbers, (price,))
        _, ends = bench.play(heuristic(bench, tuned[f"{price:g}"]), played)
        rewards = [bench.total_reward(match, end) for match, end in zip(played, ends, strict=True)]
        recorded = [line["policies"]["heuristic"][f"{price:g}"]["reward"][0] for line in lines]
        assert rewards == pytest.approx(recorded, abs=1e-4)


@pytest.mark.slow
def test_a_study_runs_by_one_command_and_continues(tmp_path, results):
    command = [sys.executable, "-m", "benchmarks.science.learned_policies", "--quick", "--into", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    stored = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert set(json.loads(stored)) == set(results)
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stderr == ""
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == stored


FILE = ROOT / "benchmarks" / "science" / "verdicts.json"


@pytest.fixture(scope="module")
def kept():
    """The published figures."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_simulation_runs_by_one_command_and_is_repeatable(tmp_path, capsys):
    documents = []
    for folder in (tmp_path / "once", tmp_path / "again"):
        assert verdicts.main(["--quick", "--write", str(folder)]) == 0
        documents.append(json.loads((folder / "verdicts.json").read_text(encoding="utf-8")))
        assert set(documents[-1].pop("by")) == {"date", "python", "numpy", "torch", "esper-core"}
        assert documents[-1]["size"]["studies"] == QUICK.studies
        assert "## All figures" in (folder / "verdicts.md").read_text(encoding="utf-8")
    assert documents[0] == documents[1]
    assert "20 seeds, 5 arms" in capsys.readouterr().out


@pytest.mark.slow
def test_the_whole_simulation_agrees_with_the_file(kept):
    """A few verdicts may differ, since another machine rounds differently."""
    anew = verdicts.simulated(WHOLE)
    assert dict(numbers(anew)) == pytest.approx(dict(numbers({name: kept[name] for name in anew})), abs=0.1)


def numbers(data, path=""):
    """Yield every number with its path."""
    if isinstance(data, (int, float)):
        yield path, data
    elif not isinstance(data, str):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from numbers(inner, f"{path}/{key}")


def test_the_page_shows_the_figures_of_the_file(kept):
    assert FILE.with_suffix(".md").read_text(encoding="utf-8") == verdicts.page(kept)
    sizes = {name: kept["size"][name] for name in ("studies", "without_pairs")}
    assert verdicts.Size(**sizes) == WHOLE
    assert f"{WHOLE.studies:,} studies each" in (ROOT / "docs/concepts/statistics.md").read_text(encoding="utf-8")
