"""The pages on studies show what their commands printed, and the commands still find it."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(("part", "file"), [("simulated", "gates.txt"), ("wandering", "wandering.txt")])
def test_the_simulation_of_gates_still_prints_these_figures(part, file):
    """Trained figures may differ on another processor; simulated ones agree but for rounding."""
    command = [sys.executable, "-m", "benchmarks.science.gates", part]
    now = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    whole = (BENCHMARKS / "science" / file).read_text(encoding="utf-8")
    before = whole[whole.index("worthless seeds that pass") :]
    assert NUMBER.sub("", now) == NUMBER.sub("", before)
    assert list(map(float, NUMBER.findall(now))) == pytest.approx(list(map(float, NUMBER.findall(before))), abs=0.2)


NUMBER = re.compile(r"\d+\.?\d*")
INCUBATION = BENCHMARKS / "science" / "incubation.json"
NEAR = 1.5
"""How far a mean may differ on another machine, in widths of its interval."""


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def forced(results: Mapping[str, Any], blueprint: str, incubation: str = "shadow") -> Mapping[str, Any]:
    """Return the result of a seed on plain data that germinated after step 5 and was kept regardless of its gain."""
    key = {"place": "plain", "incubation": incubation, "blueprint": blueprint, "germination": 5}
    (result,) = [cell for cell in results["forced"] if cell.items() >= key.items()]
    return result


def test_the_operations_of_incubation_were_counted():
    row = r"^\| operations of an episode, `conv_light` germinated after step 5 of 40\b(.*)$"
    (cells,) = re.findall(row, (DOCS / "concepts" / "incubation.md").read_text(encoding="utf-8"), re.MULTILINE)
    costs = [forced(read(INCUBATION), "conv_light", way)["cost"] for way in ("shadow", "branch")]
    assert re.findall(r"\d+\.\d+", cells) == [f"{cost:.2f}" for cost in costs]


def test_the_page_counts_the_differences_between_branch_and_shadow():
    pairs = read(INCUBATION)["between"]
    figures = [pair[unit] for pair in pairs for unit in ("points", "nats")]
    sides = sorted("more" if low > 0 else "less" for _, low, high in figures if low > 0 or high < 0)
    assert (len(figures), sides) == (54, ["less"] * 6 + ["more"])
    most = max(abs(pair["points"][0]) for pair in pairs if pair["points"][1] > 0 or pair["points"][2] < 0)
    assert f"{most:.1f}" == "1.9"
    page = " ".join((DOCS / "concepts" / "incubation.md").read_text("utf-8").split())
    assert "of 54 figures that compare branch and shadow, seven differ, six in favour of the shadow and one" in page


@pytest.mark.slow
def test_the_study_still_finds_the_same(tmp_path):
    """For the part on the pages: counts are equal, other figures within the tolerance for another machine."""
    command = [sys.executable, "-m", "benchmarks.science.incubation"]
    options = ["--only", "plain shadow", "--into", str(tmp_path)]
    subprocess.run([*command, *options], cwd=ROOT, capture_output=True, check=True)
    measured, kept = read(tmp_path / "results.json"), read(INCUBATION)
    (alone,) = [twin for twin in kept["twins"] if twin["place"] == "plain"]
    assert measured["twins"][0]["metric"] == pytest.approx(alone["metric"], abs=2.0)
    for blueprint in ("conv_light", "pointwise", "mlp"):
        now, before = forced(measured, blueprint), forced(kept, blueprint)
        assert (now["added"], now["host_parameters"]) == (before["added"], before["host_parameters"])
        assert now["cost"] == pytest.approx(before["cost"], abs=0.005)
        for unit in ("points", "nats"):
            mean, low, high = before[unit]
            assert now[unit][0] == pytest.approx(mean, abs=NEAR * (high - low) / 2), (blueprint, unit)
