"""The simulation of verdicts runs by its command, and the page on statistics shows its results."""

import json
from pathlib import Path

import pytest

from benchmarks.science import verdicts
from benchmarks.science.verdicts import QUICK, WHOLE

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "science" / "verdicts.json"


@pytest.fixture(scope="module")
def kept():
    """The published figures."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_simulation_runs_by_one_command_and_is_repeatable(tmp_path, capsys):
    found = []
    for folder in (tmp_path / "once", tmp_path / "again"):
        assert verdicts.main(["--quick", "--write", str(folder)]) == 0
        found.append(json.loads((folder / "verdicts.json").read_text(encoding="utf-8")))
        assert set(found[-1].pop("by")) == {"date", "python", "numpy", "torch", "esper-core"}
        assert found[-1]["size"]["studies"] == QUICK.studies
        assert "## All figures" in (folder / "verdicts.md").read_text(encoding="utf-8")
    assert found[0] == found[1]
    assert "20 seeds, 5 arms" in capsys.readouterr().out


def test_repeated_simulations_agree_with_the_file(kept):
    """Two figures that take a second; the slow test simulates all of them."""
    assert verdicts.wrong(8, 2, WHOLE.studies) == kept["wrong"][0]
    assert {"n": 20, "told": verdicts.wrong_on_skewed(20, WHOLE.studies)} == kept["leaning"][1]


@pytest.mark.slow
def test_the_whole_simulation_agrees_with_the_file(kept):
    """A few verdicts may differ, since another machine rounds differently."""
    anew = verdicts.simulated(WHOLE)
    assert dict(numbers(anew)) == pytest.approx(dict(numbers({name: kept[name] for name in anew})), abs=0.1)


def numbers(found, path=""):
    """Yield every number with its path."""
    if isinstance(found, (int, float)):
        yield path, found
    elif not isinstance(found, str):
        for key, inner in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(inner, f"{path}/{key}")


def test_the_pages_show_the_figures_of_the_file(kept):
    assert FILE.with_suffix(".md").read_text(encoding="utf-8") == verdicts.page(kept)
    sizes = {name: kept["size"][name] for name in ("studies", "without_pairs")}
    assert verdicts.Size(**sizes) == WHOLE
    page = " ".join((ROOT / "docs" / "concepts" / "statistics.md").read_text(encoding="utf-8").split())
    sentences = [
        f"{WHOLE.studies:,} studies each",
        "{:.0f} % of cases with 8 RNG seeds, {:.0f} % with 20 and {:.0f} % with 40".format(
            *(one["told"] for one in kept["leaning"])
        ),
    ]
    assert [one for one in sentences if one not in page] == []
