"""``load_run``: a run directory as a plain record, and the errors for folders that are none."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from esper_core import load_run
from esper_core.leyline import RunFolderError
from esper_core.runs import records

NAME = "20261121-101512-quiet-otter"


def test_a_finished_run_is_loaded_by_its_folder_its_id_and_its_words(write_run, tmp_path) -> None:
    path = write_run(NAME, {"grown": [0.8] * 8, "twin": [0.5] * 8})
    for name in (path, str(path), NAME, "quiet-otter"):
        run = load_run(name, runs_dir=tmp_path / "runs")
        assert (run.id, run.status, run.seconds, run.reason) == (NAME, "done", 10.0, "")
        assert run.events == run.path / "events.jsonl"
    assert run.results is not None
    assert run.results["comparisons"][0]["difference"] == pytest.approx(0.3)
    assert run.config()["episode"] == {"steps": 40, "batches": 32}
    assert repr(run) == f"<Run {NAME}: done>"


def test_a_run_that_failed_shows_its_reason_on_one_printable_line(write_run) -> None:
    run = load_run(write_run(NAME, status="failed", reason="E232 it raised\nred\x1b[31m"))
    assert repr(run) == f"<Run {NAME}: failed; E232 it raised red\\x1b[31m>"
    assert run.results is None


def test_a_notebook_shows_what_the_registered_package_makes_of_a_run_and_else_plain_text(
    write_run, monkeypatch
) -> None:
    run = load_run(write_run(NAME))
    monkeypatch.setattr(records, "entry_points", lambda **_: EntryPoints())
    assert run._repr_html_() is None
    found = EntryPoint("run", "builtins:repr", "esper.notebook")
    monkeypatch.setattr(records, "entry_points", lambda **asked: EntryPoints([found]).select(**asked))
    assert run._repr_html_() == repr(run)


def test_what_is_not_a_run_is_refused_with_a_suggestion(write_run, tmp_path) -> None:
    path = write_run(NAME)
    for wrong, message in {
        path.parent: "it has no manifest.json",
        path / "config.yaml": f"there is no run {path}/config.yaml",
        tmp_path / "runs" / "20261121-101512-quiet-oter": f"Did you mean {path}",
        "quiet-oter": "there is no run quiet-oter",
    }.items():
        with pytest.raises(RunFolderError) as refusal:
            load_run(wrong, runs_dir=tmp_path / "runs")
        assert refusal.value.problems[0].code == "E420"
        assert message in str(refusal.value)
    (path / "manifest.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"E430 cannot read .*manifest\.json: it is no JSON"):
        load_run(path)
