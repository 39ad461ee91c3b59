"""The heuristic policy keeps a useful seed and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Esper = Callable[..., Any]

GARDEN = """\
task: mnist1d
host: pointwise-mlp
slots:
  early: {blueprints: [pointwise, conv_light]}
  late: {blueprints: [mlp]}
policy: heuristic
growth: {nursery: 3}
environments: 4
capacity: false
"""
USEFUL = ("early", "blueprints/conv_light")
"""The host sees each position by itself; what it lacks are neighbours, and nothing in the late slot gives them."""

SHORT = ("environments=1", "episode={steps: 20, batches: 26}", "policy.settings={preview: 4, speed: 2, first: 0.25}")
"""Too short to tell a convolution from what else would pay; long enough to tell it from what would not."""


@pytest.fixture
def grown(esper: Esper, tmp_path: Path) -> Callable[..., tuple[list[list[tuple[str, str]]], dict[str, Any]]]:
    """Runs the garden with changes; what each environment kept, by slot and blueprint, and the results."""

    def run(*changes: str) -> tuple[list[list[tuple[str, str]]], dict[str, Any]]:
        file = tmp_path / "garden.yaml"
        file.write_text(GARDEN)
        sets = [part for change in changes for part in ("--set", change)]
        answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--json", "--quiet", *sets)
        assert answer.code == 0, answer.err
        episodes = json.loads((Path(answer.json["run"]) / "growth.json").read_text())["episodes"]
        own = [episode["grown"] for episode in episodes if episode["arm"] == "heuristic"]
        return [[(fossil["slot"], fossil["blueprint"]) for fossil in kept] for kept in own], answer.json["results"]

    return run


def test_run_05_it_keeps_a_useful_seed_and_prunes_useless_ones(grown: Any) -> None:
    """What a seed has shown, and what is unknown of it, reaches whoever decides: a useful one is kept, others go."""
    kept, _ = grown(*SHORT, "slots.early.blueprints=[conv_light]")
    assert kept == [[USEFUL]]


def test_an_episode_too_short_for_anything_is_told(esper: Esper, small: Path, tmp_path: Path) -> None:
    small.write_text(small.read_text().replace("use: schedule", "use: heuristic").partition("  settings:")[0] + TAIL)
    answer = esper("run", small, "--runs-dir", tmp_path / "runs")
    assert answer.code == 0
    assert "not carried out in 2 of 2 episodes: any blueprint, which needs 16 steps" in answer.err


TAIL = "environments: 2\ncapacity: false\nepisode: {steps: 8, batches: 4, batch_size: 20}\n"


def test_planting_that_would_end_before_it_begins_is_refused_with_its_place(esper: Esper, tmp_path: Path) -> None:
    (tmp_path / "garden.yaml").write_text(GARDEN)
    answer = esper("check", tmp_path / "garden.yaml", "--set", "policy.settings={first: 0.7}")
    assert answer.code == 2
    assert "E120 first is later than last" in answer.err
    assert "Received: 0.7 and 0.6" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("gates", ["off", "strict"])
def test_from_a_nursery_it_keeps_the_best_in_every_environment(gates: str, grown: Any) -> None:
    kept, results = grown(f'growth.gates="{gates}"')
    assert kept == [[USEFUL]] * 4
    assert results["comparisons"][0]["difference"] >= 0.2


@pytest.mark.slow
def test_without_a_nursery_it_keeps_the_first_that_pays_and_nothing_useless(grown: Any) -> None:
    kept, _ = grown("growth.nursery=1", "slots.early.blueprints=[conv_light, pointwise]")
    assert kept == [[USEFUL]] * 4


@pytest.mark.slow
def test_where_neighbours_mean_nothing_it_keeps_next_to_nothing_and_does_no_harm(grown: Any) -> None:
    kept, results = grown("task=mnist1d-shuffled")
    assert sum(map(len, kept)) <= 1
    assert results["comparisons"][0]["difference"] > -0.02


@pytest.mark.slow
@pytest.mark.parametrize("changes", [["twin=false"], ["growth.incubation=branch"], ["slots.early.stack=2"]])
def test_it_keeps_the_useful_seed_without_a_twin_on_a_branch_and_in_a_stack(changes: list[str], grown: Any) -> None:
    kept, _ = grown("environments=2", *changes)
    assert all(fossils[:1] == [USEFUL] for fossils in kept)
    assert not any(slot == "late" for fossils in kept for slot, _ in fossils)
