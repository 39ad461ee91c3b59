"""What the default run must reach, on the machine at hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEFAULT, PLAN = ROOT / "plugins.yaml", ROOT / "examples" / "plan.yaml"


@pytest.mark.slow
def test_growth_beats_its_twin_by_15_points_over_8_seeds_within_a_minute(
    esper: Callable[..., Any], tmp_path: Path
) -> None:
    began = time.process_time()  # of both cores: what else the machine does is not the run's fault
    told = esper("run", DEFAULT, "--runs-dir", tmp_path, "--json", "--quiet").json["results"]
    assert time.process_time() - began < 2 * 60
    (comparison,) = [one for one in told["comparisons"] if (one["a"], one["b"]) == ("heuristic", "twin")]
    assert comparison["n"] == 8
    assert comparison["difference"] >= 0.15
    assert comparison["ci_low"] > 0
    assert comparison["verdict"] == "better"


@pytest.mark.slow
def test_rewards_of_a_plan_count_what_growth_cost(esper: Callable[..., Any], tmp_path: Path) -> None:
    sets = ("--set", "environments=2", "--set", "episode.steps=20")
    arms = esper("run", PLAN, "--runs-dir", tmp_path, "--json", "--quiet", *sets).json["results"]["arms"]
    assert arms["twin"]["reward"] == 0
    assert arms["schedule"]["params"] > arms["twin"]["params"]
