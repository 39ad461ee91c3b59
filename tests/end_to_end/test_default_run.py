"""Results that the default run and the run on text must reach."""

from pathlib import Path

import pytest

from tests.end_to_end.conftest import compared

ROOT = Path(__file__).parents[2]
DEFAULT, TEXT = ROOT / "plugins.yaml", ROOT / "examples" / "bytes.yaml"


@pytest.mark.slow
def test_growth_beats_its_twin_by_15_points_over_8_seeds(esper, tmp_path):
    results = esper("run", DEFAULT, "--runs-dir", tmp_path, "--json", "--quiet").json["results"]
    comparison = compared(results, "heuristic", "twin")
    assert comparison["n"] == 8
    assert comparison["difference"] >= 0.15
    assert comparison["ci_low"] > 0
    assert comparison["verdict"] == "better"
    assert compared(results, "heuristic", "capacity")["n"] == 8
    assert {episode["seed"] for episode in results["arms"]["capacity"]["episodes"]} == set(range(8))


@pytest.mark.slow
def test_a_transformer_on_text_is_judged_by_perplexity_and_less_of_it_is_better(esper, tmp_path):
    sets = ("--set", "environments=8", "--set", "episode.batches=8", "--set", "capacity=false")
    results = esper("run", TEXT, "--runs-dir", tmp_path, "--json", "--quiet", *sets).json["results"]
    assert results["metric"] == {"name": "perplexity", "direction": "down", "unit": ""}
    means = {arm: arm_results["test"]["mean"] for arm, arm_results in results["arms"].items()}
    assert 1 < means["gru"] < means["twin"] < 256
    comparison = compared(results, "gru", "twin")
    assert comparison["difference"] == pytest.approx(means["twin"] - means["gru"])
    assert comparison["verdict"] == "better"
