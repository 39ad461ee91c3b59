"""Published results of studies follow from their records, and the studies run by one command."""

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
    documents = []
    for folder in (tmp_path / "once", tmp_path / "again"):
        assert verdicts.main(["--quick", "--write", str(folder)]) == 0
        documents.append(json.loads((folder / "verdicts.json").read_text(encoding="utf-8")))
        assert set(documents[-1].pop("by")) == {"date", "python", "numpy", "torch", "esper-core"}
        assert documents[-1]["size"]["studies"] == QUICK
        assert "## All figures" in (folder / "verdicts.md").read_text(encoding="utf-8")
    assert documents[0] == documents[1]
    assert "20 seeds, 5 arms" in capsys.readouterr().out


@pytest.mark.slow
def test_the_whole_simulation_agrees_with_the_file(kept):
    """A few verdicts may differ, since another machine rounds differently."""
    anew = verdicts.simulated(WHOLE)
    assert dict(numbers(anew)) == pytest.approx(dict(numbers({name: kept[name] for name in anew})), abs=0.1)


def numbers(data, path=""):
    """Yield every number with its path."""
    if isinstance(data, (int, float)):
        yield path, data
    elif not isinstance(data, str):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from numbers(inner, f"{path}/{key}")


def test_the_page_shows_the_figures_of_the_file(kept):
    assert FILE.with_suffix(".md").read_text(encoding="utf-8") == verdicts.page(kept)
    assert kept["size"]["studies"] == WHOLE
    assert f"{WHOLE:,} studies each" in (ROOT / "docs/concepts/statistics.md").read_text(encoding="utf-8")
