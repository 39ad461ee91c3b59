"""One command repeats the runs that the pages show, and the pages show and state their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science.shown import page
from benchmarks.science.shown.__main__ import main, noted
from benchmarks.science.shown.runs import RUNS
from esper_core.config import load_config
from tests.docs import measured, test_how_to as how_to

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN = DOCS / "why-grow.md"
Runs = Mapping[str, Mapping[str, Any]]


# --- running


def test_finished_runs_are_not_repeated_and_truncated_ones_are(tmp_path, capsys):
    asked = ["--quick", "--only", "chance, 2", "--into", str(tmp_path)]
    assert main(asked) == 0
    assert "chance, 2: " in capsys.readouterr().err
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    (own,) = found["runs"].values()
    assert own["results"]["arms"]["twin"]["test"]["n"] == 2
    assert main(asked) == 0
    assert "chance, 2: " not in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["runs"] == found["runs"]
    log = tmp_path / "runs.jsonl"
    log.write_text(log.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert noted(log, quick=True) == {}
    assert log.read_text(encoding="utf-8") == ""


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
    assert (asked.config.episode.steps, asked.config.episode.batches) == (200 if one.name == "longer" else 40, 32)


def test_the_page_shows_the_command_of_the_longer_run():
    (command,) = [one.command for one in RUNS if one.name == "longer"]
    assert f"```sh\n{command}\n```" in SHOWN.read_text(encoding="utf-8")


# --- tables


def a_run(grown: float, *, arm: str = "heuristic", says: str = "", **kept: int) -> dict[str, Any]:
    """Return a run whose twin reaches one half and whose arm reaches ``grown``."""
    arms = {
        name: {
            "test": {"mean": mean, "ci_low": mean - 0.01, "ci_high": mean + 0.02, "n": 8},
            "params": 6154.0,
            "reward": reward,
        }
        for name, mean, reward in ((arm, grown, 100 * (grown - 0.5) - 1), ("twin", 0.5, 0.0))
    }
    difference = {"difference": grown - 0.5, "ci_low": grown - 0.51, "ci_high": grown - 0.48, "n": 8}
    judged = {"p": 0.1, "p_margin": None, "p_holm": 0.1, "verdict": "better" if grown > 0.52 else "no difference shown"}
    return {
        "command": f"esper run {says}.yaml",
        "says": says,
        "kept": {arm: kept, "twin": {}},
        "blended": {arm: sum(kept.values()), "twin": 0},
        "results": {
            "metric": {"name": "accuracy", "direction": "up", "unit": "%"},
            "arms": arms,
            "comparisons": [{"a": arm, "b": "twin", "why": "", **difference, **judged}],
        },
    }


def some_runs() -> dict[str, dict[str, Any]]:
    runs = {name: a_run(0.781, says=name, conv_light=7, pointwise=1) for name in page.DEFAULTS}
    runs["shuffled"] = a_run(0.5, says="shuffled")
    runs |= {name: a_run(0.49, arm="random", says=name, mlp=2) for name in page.CHANCE}
    runs["longer"] = a_run(0.6, arm="grown")
    return runs


def test_results_are_shown_with_sign_and_interval():
    runs = some_runs()
    assert "| 200 steps | 60.0 % | 59.0 to 62.0 % | 8 |" in page.longer(runs)
    assert "| default | +28.1 (27.1 to 30.1) | `esper run default.yaml` |" in page.other_seeds(runs)
    assert "\nheuristic  78.1 %         77.1 % to 80.1 %  8  6,154       unknown  +27.1\n" in page.default_run(runs)


def test_pages_are_regenerated_from_the_results(monkeypatch, tmp_path):
    generate = how_to.script(DOCS / "generate.py")
    file = tmp_path / "results.json"
    monkeypatch.setattr(generate, "RUNS", file)
    text = "".join(f"<!-- from the code: {part} -->\nold text\n<!-- end -->\n" for part in page.PARTS)
    file.write_text(json.dumps({"runs": some_runs()}), encoding="utf-8")
    now = generate.written(text)
    assert "old text" not in now
    assert page.default_run(some_runs()) in now


# --- prose


def over_twin(runs: Runs, name: str) -> Mapping[str, Any]:
    return page.comparison(runs[name], "random", "twin")


CLAIMS: list[tuple[Path, str, Callable[[Runs], bool]]] = [
    (
        SHOWN,
        "keeps a convolution in each of eight environments and nothing else",
        lambda runs: runs["default"]["kept"]["heuristic"] == {"conv_light": 8},
    ),
    (
        SHOWN,
        "| positions permuted | nothing in 8 |",
        lambda runs: runs["shuffled"]["kept"]["heuristic"] == {} and over_all(runs["shuffled"]) == 8,
    ),
    (
        SHOWN,
        "Random actions show no gain over the twin with any of three RNG seeds",
        lambda runs: all(over_twin(runs, name)["verdict"] == "no difference shown" for name in page.CHANCE),
    ),
    (
        SHOWN,
        "their reward is negative",
        lambda runs: all(runs[name]["results"]["arms"]["random"]["reward"] < 0 for name in page.CHANCE),
    ),
]
"""Statements about runs that contain no figure."""


def over_all(own: Mapping[str, Any]) -> int:
    """Return the number of environments."""
    return int(own["results"]["arms"]["twin"]["test"]["n"])


@pytest.mark.parametrize(("told_on", "words", "holds"), CLAIMS, ids=[words for _, words, _ in CLAIMS])
def test_statements_about_runs_hold(told_on, words, holds):
    assert words in " ".join(told_on.read_text(encoding="utf-8").split())
    assert holds(measured.runs())


def test_runs_are_a_source_of_figures(monkeypatch):
    monkeypatch.setattr(measured, "runs", some_runs)
    assert measured.ran("longer")[:2] == [pytest.approx((60.0, 59.0, 62.0)), pytest.approx((9.0,))]
    assert measured.ran("longer")[-1] == pytest.approx((10.0, 9.0, 12.0))
