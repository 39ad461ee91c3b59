"""Published results of studies follow from their records, and the studies run by one command."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.science import verdicts
from benchmarks.science.forecaster import __main__ as forecaster
from benchmarks.science.forecaster.curves import Curves
from benchmarks.science.forecaster.episodes import play
from benchmarks.science.forecaster.problems import problems
from benchmarks.science.forecaster.regressions import NOISY, Row, Rows, coverage, fit, standardised
from benchmarks.science.learned_policies.policies import MAIN_PRICE, PRICES, heuristic, matches
from benchmarks.science.learned_policies.report import picture
from benchmarks.science.learned_policies.summary import summarise
from benchmarks.science.learned_policies.training import read_lines
from benchmarks.science.verdicts import QUICK, WHOLE
from esper_core.leyline import WAIT
from esper_policies.forecaster import Forecaster
from esper_policies.heuristic import Heuristic
from esper_policies.posteriors import COEFFICIENTS, EVIDENCE
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
@pytest.mark.parametrize(
    ("study", "keys", "printed"),
    [
        ("learned_policies", set, ""),
        ("forecaster", lambda results: set(results["groups"]), "written: {}/results.json\n"),
    ],
)
def test_a_study_runs_by_one_command_and_continues(study, keys, printed, tmp_path):
    """printed: what is printed where nothing is left to do."""
    command = [sys.executable, "-m", f"benchmarks.science.{study}", "--quick", "--into", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    results = (tmp_path / "results.json").read_text(encoding="utf-8")
    published = json.loads((STUDY.with_name(study) / "results.json").read_text(encoding="utf-8"))
    assert keys(json.loads(results)) == keys(published)
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stderr == printed.format(tmp_path)
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == results


FORECAST = ROOT / "benchmarks" / "science" / "forecaster"


def test_results_of_the_forecaster_follow_from_the_rewards_on_each_problem():
    results = json.loads((FORECAST / "results.json").read_text(encoding="utf-8"))
    assert is_same(forecaster.summarise(read_lines(FORECAST / "rewards.jsonl")), results["groups"])
    shipped = json.loads((resources.files("esper_policies") / COEFFICIENTS).read_text(encoding="utf-8"))
    assert shipped["fitted"] == results["fitted"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [Heuristic, Forecaster])
def test_episodes_on_curves_are_those_of_the_engine(make, tmp_path):
    """The first learns to keep a seed, and the other to drop one."""
    for problem in (problems("train", "wide-cnn1d", 3)[2], problems("train", "pointwise-mlp", 1)[0]):
        curves = Curves(problem, tmp_path)
        played, engine = play(make, curves), curves.episode
        now, policy, reward = engine.begin(problem.seed), make(engine.space), 0.0
        while not now.over:
            (action,) = policy.act([now.observation], [now.mask])
            now = engine.act(action if now.mask.allows(action) else WAIT)
            reward += now.reward.total
        assert reward == pytest.approx(played.reward, abs=1e-4)


def synthetic_rows(generator, problems):
    """Return looks at seeds whose gain follows some features, with more noise early in the episode."""
    rows = []
    for problem in range(problems):
        for _ in range(4):
            values = generator.normal(size=len(EVIDENCE))
            noise = 0.05 + 0.1 * (values[EVIDENCE.index("left")] > 0)
            gain = 0.1 + 0.05 * values[EVIDENCE.index("recent")] + noise * generator.normal()
            rows.append(Row(f"{problem}", f"{problem}", tuple(values), gain))
    return Rows.of(rows)


def test_intervals_of_a_fit_cover_the_gains_of_problems_that_it_has_not_seen():
    generator = np.random.RandomState(0)
    fitted, residuals = fit(synthetic_rows(generator, 150), EVIDENCE, NOISY["tried"])
    unseen = synthetic_rows(generator, 500)
    for shares in (
        coverage(residuals, np.ones(len(residuals))),
        coverage(standardised(fitted, unseen), unseen.weights),
    ):
        assert list(shares.values()) == pytest.approx([0.5, 0.8, 0.95], abs=0.07)
    weights = dict(zip(EVIDENCE, fitted["weights"][1:], strict=True))
    assert max(weights, key=lambda name: abs(weights[name])) == "recent"


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
