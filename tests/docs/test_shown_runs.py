"""One command repeats the runs that the pages show, and the pages show and state their results."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science.shown import page
from benchmarks.science.shown.__main__ import main
from benchmarks.science.shown.runs import RUNS
from esper_core.config import load_config
from tests.docs import measured

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN = DOCS / "why-grow.md"
Runs = Mapping[str, Mapping[str, Any]]


@pytest.mark.parametrize("part", [["--quick"], ["--only", "chance"]])
def test_partial_or_quick_results_are_not_written_for_the_pages(tmp_path, part, monkeypatch):
    monkeypatch.setattr("benchmarks.science.shown.__main__.every_run", lambda quick: pytest.fail("something was run"))
    with pytest.raises(SystemExit) as ended:
        main([*part, "--write", "--into", str(tmp_path)], tmp_path / "pages.json")
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_command_produces_every_part_of_the_pages(tmp_path):
    assert main(["--quick", "--into", str(tmp_path)]) == 0
    runs = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["runs"]
    assert list(runs) == [one.name for one in RUNS]
    assert [name for name, part in page.PARTS.items() if not part(runs)] == []


@pytest.mark.parametrize("one", RUNS, ids=lambda one: one.name)
def test_a_command_sets_existing_keys(one):
    asked = load_config(ROOT / one.file, one.changes)
    assert list(asked.overrides) == list(one.changes)
    assert one.command.count("--set") == len(one.changes)
    assert asked.config.environments == 8
    assert asked.config.episode.steps == (200 if one.name == "longer" else 40)


def test_the_page_shows_the_command_of_the_longer_run():
    (command,) = [one.command for one in RUNS if one.name == "longer"]
    assert f"```sh\n{command}\n```" in SHOWN.read_text(encoding="utf-8")


def over_twin(runs: Runs, name: str) -> Mapping[str, Any]:
    return page.comparison(runs[name], "random", "twin")


CLAIMS: list[tuple[Path, str, Callable[[Runs], bool]]] = [
    (
        SHOWN,
        "It keeps a convolution in each of eight environments and nothing else;",
        lambda runs: runs["default"]["kept"]["heuristic"] == {"conv_light": 8},
    ),
    (
        SHOWN,
        "at the other rates one block in each, a convolution in 15 of 16.",
        lambda runs: (
            Counter(runs["low rate"]["kept"]["heuristic"]) + Counter(runs["high rate"]["kept"]["heuristic"])
            == {"conv_light": 15, "pointwise": 1}
        ),
    ),
    (
        SHOWN,
        "| positions permuted | nothing in 8 |",
        lambda runs: runs["shuffled"]["kept"]["heuristic"] == {} and over_all(runs["shuffled"]) == 8,
    ),
    (
        SHOWN,
        "| a host that lacks little | nothing in 8 |",
        lambda runs: runs["no deficit"]["kept"]["heuristic"] == {} and over_all(runs["no deficit"]) == 8,
    ),
    (
        SHOWN,
        "Random actions gain over the twin as well, but less, since they keep a convolution in 15 of 24 networks only",
        lambda runs: (
            all(over_twin(runs, name)["verdict"] == "better" for name in page.CHANCE)
            and sum(runs[name]["kept"]["random"]["conv_light"] for name in page.CHANCE) == 15
        ),
    ),
    (
        SHOWN,
        "their reward is negative",
        lambda runs: all(runs[name]["results"]["arms"]["random"]["reward"] < 0 for name in page.CHANCE),
    ),
]
"""Statements about runs that contain no figure."""


def over_all(own: Mapping[str, Any]) -> int:
    return int(own["results"]["arms"]["twin"]["test"]["n"])


@pytest.mark.parametrize(("told_on", "words", "holds"), CLAIMS, ids=[words for _, words, _ in CLAIMS])
def test_statements_about_runs_hold(told_on, words, holds):
    assert words in " ".join(told_on.read_text(encoding="utf-8").split())
    assert holds(measured.runs())
