"""The pages on studies show what their commands printed, and the commands still find it."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science.shown import page
from benchmarks.science.shown.__main__ import main
from benchmarks.science.shown.runs import RUNS
from esper_core.config import load_config
from tests.docs.test_answers import script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.slow
def test_the_simulation_of_gates_still_prints_these_figures():
    """The simulation agrees to the digit; trained figures may differ on another processor."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.science.gates"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    studies = script(DOCS / "studies.py")
    before, now = studies.GATES.read_text(encoding="utf-8"), run.stdout
    assert studies.NUMBER.sub("", now) == studies.NUMBER.sub("", before)
    for where, numbers in studies.gates(before).items():
        assert studies.gates(now)[where] == pytest.approx(numbers, abs=0.0011), where
    for where, (gain, *_) in studies.trials(before).items():
        assert studies.trials(now)[where][0] == pytest.approx(gain, abs=0.02), where


INCUBATION = BENCHMARKS / "science" / "incubation.json"
FRACTION = re.compile(r"[+-]?\d+\.\d+")
NEAR = 1.5
"""How far a mean may differ on another machine, in widths of its interval."""


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def cells(page: Path, begin: str) -> list[str]:
    """Return the cells of the only table row on a page that begins so."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {begin}")]
    assert len(lines) == 1, (page, begin)
    return [cell.strip().replace("−", "-") for cell in lines[0].strip("|").split("|")]


def numbers(cell: str) -> list[str]:
    """Return the numbers with a fraction in a cell, as written."""
    return FRACTION.findall(cell)


def forced(found: Mapping[str, Any], blueprint: str, incubation: str = "shadow") -> Mapping[str, Any]:
    """Return the result of a seed on plain data that germinated after step 5 and was kept regardless of its gain."""
    (own,) = [
        one
        for one in found["forced"]
        if (one["place"], one["incubation"], one["blueprint"], one["germination"])
        == ("plain", incubation, blueprint, 5)
    ]
    return own


def half(low: float, high: float) -> float:
    return (high - low) / 2


def test_the_operations_of_incubation_were_counted():
    begin = "operations of an episode, `conv_light` germinated after step 5 of 40"
    told = cells(DOCS / "concepts" / "incubation.md", begin)[1:]
    found = [forced(read(INCUBATION), "conv_light", way)["cost"] for way in ("shadow", "branch")]
    assert [numbers(cell) for cell in told] == [[f"{one:.2f}"] for one in found]


def test_the_page_counts_the_differences_between_branch_and_shadow():
    pairs = read(INCUBATION)["between"]
    figures = [one[what] for one in pairs for what in ("points", "nats")]
    sides = sorted("more" if low > 0 else "less" for _, low, high in figures if low > 0 or high < 0)
    assert (len(figures), sides) == (54, ["less"] * 4 + ["more"] * 3)
    most = max(abs(one["points"][0]) for one in pairs if one["points"][1] > 0 or one["points"][2] < 0)
    assert f"{most:.1f}" == "2.4"
    page = " ".join((DOCS / "concepts" / "incubation.md").read_text("utf-8").split())
    assert "of 54 figures that compare branch and shadow, seven differ, four in favour of the shadow and three" in page


@pytest.mark.slow
def test_the_study_still_finds_the_same(tmp_path):
    """For the part on the pages: counts are equal, other figures within the tolerance for another machine."""
    command = [sys.executable, "-m", "benchmarks.science.incubation"]
    asked = ["--only", "plain shadow", "--into", str(tmp_path)]
    subprocess.run([*command, *asked], cwd=ROOT, capture_output=True, check=True)
    found, kept = read(tmp_path / "results.json"), read(INCUBATION)
    (alone,) = [one for one in kept["twins"] if one["place"] == "plain"]
    assert found["twins"][0]["metric"] == pytest.approx(alone["metric"], abs=2.0)
    for blueprint in ("conv_light", "pointwise", "mlp"):
        now, before = forced(found, blueprint), forced(kept, blueprint)
        assert (now["added"], now["host_parameters"]) == (before["added"], before["host_parameters"])
        assert now["cost"] == pytest.approx(before["cost"], abs=0.005)
        for what in ("points", "nats"):
            mean, low, high = before[what]
            assert now[what][0] == pytest.approx(mean, abs=NEAR * half(low, high)), (blueprint, what)


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


def kept(runs: Runs, *names: str, arm: str = "heuristic") -> Counter[str]:
    """Return the blocks that an arm kept in some runs with eight environments each."""
    assert {runs[name]["results"]["arms"]["twin"]["test"]["n"] for name in names} == {8}
    return sum((Counter(runs[name]["kept"][arm]) for name in names), Counter())


CLAIMS: list[tuple[str, Callable[[Runs], bool]]] = [
    (
        "It keeps a convolution in each of eight environments and nothing else;",
        lambda runs: kept(runs, "default") == {"conv_light": 8},
    ),
    (
        "at the other rates one block in each, a convolution in 15 of 16.",
        lambda runs: kept(runs, "low rate", "high rate") == {"conv_light": 15, "pointwise": 1},
    ),
    ("| positions permuted | nothing in 8 |", lambda runs: kept(runs, "shuffled") == {}),
    ("| a host that lacks little | nothing in 8 |", lambda runs: kept(runs, "no deficit") == {}),
    (
        "Random actions gain over the twin as well, but less, since they keep a convolution in 15 of 24 networks only",
        lambda runs: (
            all(page.comparison(runs[name], "random", "twin")["verdict"] == "better" for name in page.CHANCE)
            and kept(runs, *page.CHANCE, arm="random")["conv_light"] == 15
        ),
    ),
    (
        "their reward is negative",
        lambda runs: all(runs[name]["results"]["arms"]["random"]["reward"] < 0 for name in page.CHANCE),
    ),
]
"""Statements about runs that contain no figure."""


@pytest.mark.parametrize(("words", "holds"), CLAIMS, ids=[words for words, _ in CLAIMS])
def test_statements_about_runs_hold(words, holds):
    assert words in " ".join(SHOWN.read_text(encoding="utf-8").split())
    assert holds(script(DOCS / "figures.py").runs())
