"""Results: arms paired by seed, verdicts that need enough of them."""

from __future__ import annotations

import math

import pytest

from esper_core.leyline import Metric
from esper_core.leyline.events import EpisodeFinished
from esper_core.runs.statistics import results


def episode(arm: str, seed: int, test: float, reward: float | None = 1.0) -> EpisodeFinished:
    return EpisodeFinished(
        round=0, arm=arm, seed=seed, test_loss=1.0, test_metric=test, validation_metric=test,
        parameters=120 if arm == "grown" else 100, host_parameters=100, fossils=int(arm == "grown"),
        steps=4, reward=reward,
    )  # fmt: skip


def test_arms_are_paired_seed_by_seed_whatever_the_order():
    noise = [0.3, 0.1, 0.5, 0.2, 0.4, 0.35, 0.15, 0.45]
    episodes = [episode("twin", seed, value) for seed, value in enumerate(noise)]
    episodes += [episode("grown", seed, noise[seed] + 0.2 + 0.001 * seed) for seed in reversed(range(8))]
    found = results(Metric("accuracy", "up", "%"), ["grown", "twin"], episodes, margin=0.0)
    (comparison,) = found["comparisons"]
    assert (comparison["a"], comparison["b"], comparison["verdict"], comparison["n"]) == ("grown", "twin", "better", 8)
    assert comparison["difference"] == pytest.approx(0.2035)
    assert 0.2 < comparison["ci_low"] < 0.2035 < comparison["ci_high"] < 0.21
    assert comparison["p"] == pytest.approx(2 / 256)
    assert found["arms"]["grown"]["params"] == 120
    assert [e["seed"] for e in found["arms"]["grown"]["episodes"]] == list(range(8))


def test_b8_drl_13_few_seeds_or_a_wide_margin_show_no_difference():
    episodes = [
        episode(arm, seed, 0.5 + 0.2 * (arm == "grown") + 0.001 * seed)
        for arm in ("grown", "twin")
        for seed in range(7)
    ]
    metric = Metric("accuracy")
    assert results(metric, ["grown", "twin"], episodes, 0.0)["comparisons"][0]["verdict"] == "no difference shown"
    episodes += [episode("grown", 7, 0.7), episode("twin", 7, 0.5)]
    assert results(metric, ["grown", "twin"], episodes, 0.0)["comparisons"][0]["verdict"] == "better"
    assert results(metric, ["grown", "twin"], episodes, 0.3)["comparisons"][0]["verdict"] == "no difference shown"


def test_where_less_is_better_less_is_better():
    episodes = [
        episode(arm, seed, (3.0 if arm == "grown" else 4.0) + 0.01 * seed)
        for arm in ("grown", "twin")
        for seed in range(8)
    ]
    found = results(Metric("perplexity", "down"), ["grown", "twin"], episodes, 0.0)
    assert found["comparisons"][0]["verdict"] == "better"
    assert found["comparisons"][0]["difference"] == pytest.approx(1.0)


def test_a_reward_that_is_unknown_stays_unknown_and_one_episode_has_no_interval():
    found = results(Metric("accuracy"), ["grown"], [episode("grown", 0, 0.5, reward=None)], 0.0)
    assert found["arms"]["grown"]["reward"] is None
    assert found["arms"]["grown"]["test"] == {"mean": 0.5, "ci_low": None, "ci_high": None, "n": 1}
    assert found["comparisons"] == []


def test_a_figure_that_is_no_number_makes_its_arm_unknown_and_not_the_run_fail():
    episodes = [episode(arm, seed, 0.5 + 0.01 * seed) for arm in ("grown", "twin") for seed in range(8)]
    episodes[3] = episode("grown", 3, float("inf"))
    found = results(Metric("perplexity", "down"), ["grown", "twin"], episodes, 0.0)
    assert math.isnan(found["arms"]["grown"]["test"]["mean"])
    assert found["comparisons"][0]["verdict"] == "no difference shown"
    assert found["comparisons"][0]["difference"] is None


@pytest.mark.parametrize("huge", [1.7e308, -1.7e308, 1e200])
def test_figures_whose_squares_are_no_numbers_are_unknown_and_end_no_run(huge):
    episodes = [episode(arm, seed, 1.0 + seed) for arm in ("grown", "twin") for seed in range(8)]
    episodes[3] = episode("grown", 3, huge)
    episodes[4] = episode("grown", 4, -huge)
    found = results(Metric("perplexity", "down"), ["grown", "twin"], episodes, 0.0)
    assert math.isnan(found["arms"]["grown"]["test"]["mean"])
    assert found["arms"]["twin"]["test"]["mean"] == 4.5
    assert found["comparisons"][0]["verdict"] == "no difference shown"
