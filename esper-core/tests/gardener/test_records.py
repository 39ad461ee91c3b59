"""The run directory of a loop can be read as that of a run."""

from collections.abc import Callable
from typing import Any

import pytest

from esper_core import load_run, read_events
from esper_core.leyline.events import EpisodeFinished, RunFinished, RunStarted, StageChanged, StepFinished
from esper_core.runs.directory import is_locked
from esper_core.runs.records import read_growth

MakeLoop = Callable[..., Any]


def test_a_loop_that_was_closed_is_a_finished_run(make_loop, tmp_path):
    loop = make_loop().tended(run_dir=tmp_path, name="mine")
    path = loop.gardener.path
    assert is_locked(path)
    said = loop.epochs(5)
    loop.gardener.close()
    assert not is_locked(path)
    run = load_run(path)
    assert run.status == "done"
    assert path.name.endswith("-mine")
    assert read_growth(path) == {loop.gardener.arm: [[f"{loop.variety.id} in stem"]]}
    events = list(read_events(path / "events.jsonl"))
    assert isinstance(events[0], RunStarted)
    assert [type(one) for one in events[-2:]] == [EpisodeFinished, RunFinished]
    assert [one.signals for one in events if isinstance(one, StepFinished)] == [one.signals for one in said]
    changes = [one for one in events if isinstance(one, StageChanged)]
    assert changes == [change for one in said for change in one.changes]
    assert {one.arm for one in changes} == {loop.gardener.arm}


def test_an_error_in_the_loop_is_how_the_run_ended(make_loop, tmp_path):
    loop = make_loop().tended(run_dir=tmp_path)
    loop.epoch()
    with pytest.raises(ZeroDivisionError), loop.gardener:
        raise ZeroDivisionError
    run = load_run(loop.gardener.path)
    assert run.status == "failed"
    assert "ZeroDivisionError" in run.manifest["reason"]


def test_nothing_is_written_without_a_folder(make_loop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = make_loop().tended()
    loop.epoch()
    loop.gardener.close()
    assert loop.gardener.path is None
    assert not list(tmp_path.iterdir())
