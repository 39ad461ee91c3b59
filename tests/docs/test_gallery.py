"""The gallery: its figures are those of its results, and its commands run and keep what it says."""

import re
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
gallery = SimpleNamespace(**run_path(str(ROOT / "docs" / "gallery.py")))


def test_its_figures_are_drawn_from_its_results_and_small():
    drawn = gallery.pictures({name: gallery.load(name) for name in gallery.EXAMPLES})
    stored = {file: (gallery.PICTURES / file).read_text(encoding="utf-8") for file in drawn}
    assert [file for file in drawn if drawn[file] != stored[file]] == [], "python docs/gallery.py draws them"
    assert max(map(len, stored.values())) < 60_000
    assert sum(len(path.read_bytes()) for path in gallery.RESULTS.iterdir()) < 150_000


def test_its_last_example_grows_nothing_and_the_others_something():
    kept = {name: gallery.load(name)["found"][-1] for name in gallery.EXAMPLES}
    assert [name for name, told in kept.items() if told == "kept: nothing"] == ["nothing"]


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.EXAMPLES)
def test_its_commands_run_and_keep_what_it_says(name, tmp_path, monkeypatch):
    """With two networks in place of eight, which take minutes."""
    monkeypatch.chdir(tmp_path)
    example = gallery.EXAMPLES[name]
    few = "" if example.command.startswith("python") else " --set environments=2"
    result = gallery.result_of(gallery.run(example._replace(command=example.command + few), tmp_path / "runs"))
    kept = [set(re.findall(r"× (\w+)", one["found"][-1])) for one in (result, gallery.load(name))]
    assert kept[0] == kept[1]
    assert gallery.history_of(result).share_done == 1.0
