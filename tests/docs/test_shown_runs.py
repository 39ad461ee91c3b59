"""One command repeats the runs that the pages show, and the pages show and state their results."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.science.shown import page
from benchmarks.science.shown.__main__ import main, noted
from benchmarks.science.shown.runs import RUNS, Previews, previews
from esper_core.config import load_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN, POLICIES = DOCS / "why-grow.md", DOCS / "reference" / "policies.md"
Runs = Mapping[str, Mapping[str, Any]]


def script(path: Path) -> ModuleType:
    """Load a Python file that belongs to no package."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


measured = script(Path(__file__).with_name("measured.py"))


@pytest.fixture
def generate() -> ModuleType:
    return script(DOCS / "generate.py")


# --- running


def test_finished_runs_are_not_repeated_and_truncated_ones_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--quick", "--only", "previews, shuffled", "--into", str(tmp_path)]
    assert main(asked) == 0
    assert "previews, shuffled: " in capsys.readouterr().err
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    (own,) = found["runs"].values()
    assert own["kept"]["conv_light-0"] == {"conv_light": 2}, "the plan is carried out"
    assert {one["gain"]["n"] for one in own["rows"]} == {2}, "each preview was read"
    assert own["results"]["arms"]["twin"]["test"]["n"] == 2
    assert main(asked) == 0
    assert "previews, shuffled: " not in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["runs"] == found["runs"]
    log = tmp_path / "runs.jsonl"
    log.write_text(log.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert noted(log, quick=True) == {}
    assert log.read_text(encoding="utf-8") == ""


def test_runs_are_identified_by_command_and_size(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    lines = [{"name": "a", "command": command, "quick": quick} for command in "xy" for quick in (False, True)]
    log.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    assert noted(log, quick=False) == {("a", "x"): lines[0], ("a", "y"): lines[2]}


@pytest.mark.parametrize("part", [["--quick"], ["--only", "chance"]])
def test_partial_or_quick_results_are_not_written_for_the_pages(
    tmp_path: Path, part: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.science.shown.__main__.every_run", lambda quick: pytest.fail("something was run"))
    with pytest.raises(SystemExit) as ended:
        main([*part, "--write", "--into", str(tmp_path)], tmp_path / "pages.json")
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_command_produces_every_part_of_the_pages(tmp_path: Path) -> None:
    assert main(["--quick", "--into", str(tmp_path)]) == 0
    runs = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["runs"]
    assert list(runs) == [one.name for one in [*RUNS, *previews(quick=True)]]
    assert [name for name, part in page.PARTS.items() if not part(runs)] == []


@pytest.mark.parametrize("one", RUNS, ids=lambda one: one.name)
def test_a_command_sets_existing_keys(one: Any) -> None:
    asked = load_config(ROOT / one.file, one.changes)
    assert list(asked.overrides) == list(one.changes)
    assert one.command.count("--set") == len(one.changes)
    assert asked.config.environments == 8
    assert (asked.config.episode.steps, asked.config.episode.batches) == (200 if one.name == "longer" else 40, 32)


def test_no_rng_seed_counts_twice_or_was_used_for_calibration() -> None:
    firsts = [load_config(ROOT / one.file, one.changes).config.seed for one in RUNS if one.name in page.DEFAULTS]
    calibrated = [seed for one in previews(quick=False) for seed in range(one.seed, one.seed + one.seeds)]
    tried = [seed for first in firsts for seed in range(first, first + 8)]
    assert len(tried) == len(set(tried))
    assert not set(tried) & set(calibrated)


def test_the_page_shows_the_command_of_the_longer_run() -> None:
    (command,) = [one.command for one in RUNS if one.name == "longer"]
    assert f"```sh\n{command}\n```" in SHOWN.read_text(encoding="utf-8")


def test_a_plan_follows_its_arguments() -> None:
    plan = Previews("p", "mnist1d", (("mlp", "late"),), times=(5,)).config()["arms"]["mlp-5"]["policy"]["settings"]
    assert [(one["step"], one["op"], one["slot"]) for one in plan["plan"]] == [
        (5, "germinate", "late"),
        (11, "advance", "late"),
        (16, "fossilise", "late"),
    ]


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


def a_row(blueprint: str, planted: int, gain: float, nats: float, slot: str = "early") -> dict[str, Any]:
    means = {"gain": {"mean": gain}, "nats": {"mean": nats}, "points": {"mean": 9.4}}
    return {"blueprint": blueprint, "slot": slot, "planted": planted, **means}


def some_runs() -> dict[str, dict[str, Any]]:
    runs = {name: a_run(0.781, says=name, conv_light=7, pointwise=1) for name in page.DEFAULTS}
    runs["shuffled"] = a_run(0.5, says="shuffled")
    runs |= {name: a_run(0.49, arm="random", says=name, mlp=2) for name in page.CHANCE}
    runs["longer"] = a_run(0.6, arm="grown")
    rows = [a_row("conv_light", 0, 0.1, 0.4), a_row("conv_light", 5, 0.2, 0.9), a_row("mlp", 0, 0.01, -0.02, "late")]
    runs |= {name: {"command": "p", "rows": rows} for name in ("previews", "previews, shuffled")}
    return runs


def test_results_are_shown_with_sign_and_interval() -> None:
    runs = some_runs()
    assert "| 200 steps | 60.0 % | 59.0 to 62.0 % | 8 |" in page.longer(runs)
    assert "| default | +28.1 (27.1 to 30.1) | `esper run default.yaml` |" in page.other_seeds(runs)
    assert "\nheuristic  78.1 %         77.1 % to 80.1 %  8  6,154       +27.1\n" in page.default_run(runs)


def test_previews_are_shown_with_final_gain_and_ratio() -> None:
    shown = page.previews(some_runs())
    assert "| `conv_light` | .100 → .40 | .200 → .90 | 4.0 to 4.5 | +9, +9 |" in shown
    assert "| `mlp`, in `late`, shuffled | .010 → −.02 |  | +9 |" in shown


def test_pages_are_regenerated_from_the_results(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    monkeypatch.setattr(generate, "RUNS", file)
    text = "".join(f"<!-- from the code: {part} -->\nold text\n<!-- end -->\n" for part in page.PARTS)
    before = generate.written(text)
    assert before.count("Not measured yet") == len(page.PARTS) - 1
    assert before.count("old text") == 1, "what a terminal showed stays"
    file.write_text(json.dumps({"runs": some_runs()}), encoding="utf-8")
    now = generate.written(text)
    assert "old text" not in now
    assert page.default_run(some_runs()) in now
    assert set(generate.RAN) == set(page.PARTS)


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
    (
        POLICIES,
        "a factor of four fits those that let the host see something new",
        lambda runs: all(
            one["nats"]["mean"] / one["gain"]["mean"] >= 3.5
            for one in runs["previews"]["rows"]
            if one["blueprint"] == "conv_light"
        ),
    ),
]
"""Statements about runs that contain no figure."""


def over_all(own: Mapping[str, Any]) -> int:
    """Return the number of environments."""
    return int(own["results"]["arms"]["twin"]["test"]["n"])


@pytest.mark.parametrize(("told_on", "words", "holds"), CLAIMS, ids=[words for _, words, _ in CLAIMS])
def test_statements_about_runs_hold(told_on: Path, words: str, holds: Callable[[Runs], bool]) -> None:
    assert words in " ".join(told_on.read_text(encoding="utf-8").split())
    assert holds(measured.runs())


def test_false_statements_are_detected() -> None:
    false = some_runs()
    false["default"]["kept"]["heuristic"] = {"conv_light": 7, "mlp": 1}
    false["shuffled"]["kept"]["heuristic"] = {"conv_light": 1}
    false["previews"]["rows"] = [a_row("conv_light", 0, 0.1, 0.1)]
    false["chance, 2"] = a_run(0.6, arm="random")
    assert [words for _, words, holds in CLAIMS if holds(false)] == []


def test_runs_are_a_source_of_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "runs", some_runs)
    assert measured.ran("longer")[:2] == [pytest.approx((60.0, 59.0, 62.0)), pytest.approx((9.0,))]
    assert measured.ran("longer")[-1] == pytest.approx((10.0, 9.0, 12.0))
