"""Results that the default run and the run on text must reach."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFAULT, TEXT = ROOT / "plugins.yaml", ROOT / "examples" / "bytes.yaml"


@pytest.mark.slow
def test_growth_beats_its_twin_by_15_points_over_8_seeds(esper, tmp_path):
    told = esper("run", DEFAULT, "--runs-dir", tmp_path, "--json", "--quiet").json["results"]
    (comparison,) = [one for one in told["comparisons"] if (one["a"], one["b"]) == ("heuristic", "twin")]
    assert comparison["n"] == 8
    assert comparison["difference"] >= 0.15
    assert comparison["ci_low"] > 0
    assert comparison["verdict"] == "better"
    (static,) = [one for one in told["comparisons"] if {one["a"], one["b"]} == {"heuristic", "capacity"}]
    assert static["n"] == 8
    assert {one["seed"] for one in told["arms"]["capacity"]["episodes"]} == set(range(8))


@pytest.mark.slow
def test_a_transformer_on_text_is_judged_by_perplexity_and_less_of_it_is_better(esper, tmp_path):
    sets = ("--set", "environments=8", "--set", "episode.batches=8", "--set", "capacity=false")
    told = esper("run", TEXT, "--runs-dir", tmp_path, "--json", "--quiet", *sets).json["results"]
    assert told["metric"] == {"name": "perplexity", "direction": "down", "unit": ""}
    means = {arm: own["test"]["mean"] for arm, own in told["arms"].items()}
    assert 1 < means["gru"] < means["twin"] < 256
    (comparison,) = [one for one in told["comparisons"] if (one["a"], one["b"]) == ("gru", "twin")]
    assert comparison["difference"] == pytest.approx(means["twin"] - means["gru"])
    assert comparison["verdict"] == "better"
