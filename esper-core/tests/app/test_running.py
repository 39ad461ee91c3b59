"""How a run ends in its manifest, and what has to be the same for it to go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper_core.app import training
from esper_core.app.compose import Composition
from esper_core.app.keeping import Keeping
from esper_core.app.preparing import prepare
from esper_core.app.running import resume, run
from esper_core.cli.main import main as command
from esper_core.leyline import GovernorStop, PluginError, Problem, RunFolderError
from esper_core.runs.reading import read_run


class Pipe:
    """A listener whose reader went away."""

    def hear(self, event: object) -> None:
        """Nothing."""

    def settle(self) -> None:
        """As writing to a closed pipe does."""
        raise BrokenPipeError


@pytest.mark.members
def test_a_pipe_that_nobody_reads_is_told_with_its_status(configured, tmp_path) -> None:
    with pytest.raises(BrokenPipeError):
        run(prepare(configured()), runs_dir=tmp_path / "runs", listeners=[Pipe()])
    (directory,) = (tmp_path / "runs").iterdir()
    told = json.loads((directory / "manifest.json").read_text())
    assert (told["status"], told["exit"]) == ("failed", 141)


@pytest.mark.members
@pytest.mark.parametrize("kind", [GovernorStop, PluginError])
def test_a_control_that_goes_wrong_takes_nothing_from_what_the_study_found(run_small, monkeypatch, kind) -> None:
    """As when a block that was kept late is too hot for a host that has it from the start."""
    studies: list[object] = []

    def run_one(course):
        studies.append(course)
        if len(studies) == 2:
            raise kind(Problem("E402", "a loss is not finite"))
        return real(course)

    real = training.run_study
    monkeypatch.setattr(training, "run_study", run_one)
    monkeypatch.setattr(Composition, "follow_up", lambda self, around, finished: self.study(around))
    told = run_small()
    assert len(studies) == 2
    assert list(told["summary"]["results"]["arms"]) == ["schedule", "twin"]
    assert told["manifest"]["status"] == "done"
    said = "the control by static capacity is missing, and what the study found stands: E402 a loss is not finite"
    assert told["summary"]["warnings"][-1] == said


@pytest.fixture
def halfway(configured, tmp_path, monkeypatch) -> Path:
    """The directory of a run that was ended after its second step; it has a plugin file, which does nothing."""

    def pause(keeping, course):
        real(keeping, course)
        if course.step == 2:
            raise KeyboardInterrupt

    real = Keeping.pause
    (tmp_path / "own_plugin.py").write_text("from esper_core import hookimpl\n")
    prepared = prepare(configured("checkpoints: {every: 1}\nplugins: {local: [own_plugin.py]}"))
    with monkeypatch.context() as patch:
        patch.setattr(Keeping, "pause", pause)
        with pytest.raises(KeyboardInterrupt):
            run(prepared, runs_dir=tmp_path / "runs")
    (directory,) = (tmp_path / "runs").iterdir()
    return directory


def go_on(directory: Path, was: str, now: str) -> None:
    file = directory / "config.yaml"
    assert was in file.read_text()
    file.write_text(file.read_text().replace(was, now))
    resume(prepare(file), read_run(directory))


@pytest.mark.members
def test_a_run_does_not_go_on_as_another_one(halfway) -> None:
    events = (halfway / "events.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=r"config\.yaml changed.*: episode\.steps is 4, and was 3") as caught:
        go_on(halfway, "steps: 3", "steps: 4")
    assert caught.value.problems[0].code == "E413"
    assert (halfway / "events.jsonl").read_bytes() == events
    go_on(halfway, "steps: 4", "steps: 3")
    assert read_run(halfway).status == "done"


@pytest.mark.members
@pytest.mark.parametrize("more", ["", "# mended\n"])
def test_a_plugin_file_that_is_another_one_by_now_is_told(halfway, capsys, more) -> None:
    file = halfway / "own_plugin.py"
    file.write_text(file.read_text() + more)
    command.main(["resume", str(halfway), "--quiet"], standalone_mode=False)
    told = f"{halfway.name} began with another own_plugin.py, and goes on with this one: its numbers may be others"
    assert (told in capsys.readouterr().err) == bool(more)


@pytest.mark.members
def test_a_run_may_go_on_with_other_lanes(halfway) -> None:
    go_on(halfway, "lanes: auto", "lanes: 1")
    assert read_run(halfway).status == "done"
