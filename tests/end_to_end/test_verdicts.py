"""The simulation of verdicts runs by its command, and the page on statistics shows its results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.science import verdicts
from benchmarks.science.verdicts import QUICK, WHOLE

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "science" / "verdicts.json"


@pytest.fixture(scope="module")
def kept():
    """What was found, as it stands in the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_it_runs_by_one_command_and_finds_the_same_again(tmp_path, capsys):
    found = []
    for folder in (tmp_path / "once", tmp_path / "again"):
        assert verdicts.main(["--quick", "--write", str(folder)]) == 0
        found.append(json.loads((folder / "verdicts.json").read_text(encoding="utf-8")))
        assert set(found[-1].pop("by")) == {"date", "python", "numpy", "torch", "esper-core"}
        assert found[-1]["size"]["studies"] == QUICK.studies
        assert "## All figures" in (folder / "verdicts.md").read_text(encoding="utf-8")
    assert found[0] == found[1]
    assert "20 seeds, 5 arms" in capsys.readouterr().out


def test_what_means_nothing_is_not_written_where_the_pages_read_it(capsys):
    with pytest.raises(SystemExit) as ended:
        verdicts.main(["--quick", "--write"])
    assert ended.value.code == 2
    assert "name a folder" in capsys.readouterr().err


def test_figures_simulated_anew_are_those_of_the_file(kept):
    """Those that take a second; the slow test simulates all of them."""
    assert verdicts.wrong(8, 2, WHOLE.studies) == kept["wrong"][0]
    assert {"n": 20, "told": verdicts.leaning(20, WHOLE.studies)} == kept["leaning"][1]


@pytest.mark.slow
def test_all_that_is_simulated_anew_is_as_the_file_has_it(kept):
    """To a verdict or two: another machine rounds otherwise."""
    anew = verdicts.simulated(WHOLE)
    assert dict(numbers(anew)) == pytest.approx(dict(numbers({name: kept[name] for name in anew})), abs=0.1)


def numbers(found, way=""):
    """Every number, with the way that leads there."""
    if isinstance(found, (int, float)):
        yield way, found
    elif not isinstance(found, str):
        for key, inner in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(inner, f"{way}/{key}")


def test_the_page_is_that_of_the_file_and_tells_how_many_were_simulated(kept):
    assert FILE.with_suffix(".md").read_text(encoding="utf-8") == verdicts.page(kept)
    sizes = {name: kept["size"][name] for name in ("studies", "without_pairs", "intervals")}
    assert verdicts.Size(**sizes) == WHOLE
    page = " ".join((ROOT / "docs" / "concepts" / "statistics.md").read_text(encoding="utf-8").split())
    told = [
        f"{WHOLE.studies:,} studies each",
        "{:.0f} % of cases with 8 RNG seeds, {:.0f} % with 20 and {:.0f} % with 40".format(
            *(one["told"] for one in kept["leaning"])
        ),
    ]
    assert [one for one in told if one not in page] == []


def test_no_arm_is_better_than_another_by_what_it_is_drawn_from():
    """The true mean is 0 wherever a verdict counts as wrong, or an interval as one that holds it."""
    random = np.random.RandomState(0)
    for name, draw in [*verdicts.KINDS.items(), *verdicts.VALUES.items()]:
        values = draw(random, (400_000,))
        assert abs(np.median(values.reshape(100, -1).mean(axis=1))) < 0.02, name
        assert values.std() > 0.05, name


def test_a_verdict_is_told_as_a_study_tells_it():
    clear, weak = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.1, 1.0], [0.9, 1.0, 1.1, -0.7, 1.0, 0.8, 1.2, 1.0]
    noise = [0.5, -0.4, 0.3, -0.6, 0.2, -0.1, 0.4, -0.3]
    assert verdicts.any_told([clear]) == verdicts.any_told([clear, noise]) == (True, True)
    assert verdicts.any_told([weak]) == (True, True)
    assert verdicts.any_told([weak] * 6) == (True, False)
    assert verdicts.any_told([noise]) == (False, False)
    assert verdicts.told_apart(clear, noise)
    assert not verdicts.told_apart(clear[:7], noise), "seven are too few"
    assert not verdicts.told_apart(noise, noise)


def test_the_levels_of_the_accelerated_bootstrap_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    random = np.random.RandomState(3)
    values = random.standard_exponential(20)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="BCa", vectorized=True, rng=np.random.default_rng(0)
    ).confidence_interval
    means = np.sort(values[random.randint(0, 20, (20_000, 20))].mean(axis=1))
    assert verdicts.percentiles(means, *verdicts.bca_levels(values, means)) == pytest.approx(theirs, rel=0.02)
    plain = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    assert verdicts.percentiles(means, 0.025, 0.975) == pytest.approx(plain, rel=0.02)
    assert plain != pytest.approx(theirs, rel=0.02)
