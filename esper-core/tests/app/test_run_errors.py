"""An error that ends a run says where the run directory and its report are, and how to resume."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from esper_core.app.checkpointing import CheckpointWriter
from esper_core.app.compose import prepare
from esper_core.app.run import resume, run
from esper_core.cli.main import main as command
from esper_core.leyline import GovernorStop, Interrupted, PluginError, RunFolderError
from esper_core.runs.records import read_run

FAILING = """
from pathlib import Path
from esper_core import RewardSpec, hookimpl
from esper_core.leyline import RewardBreakdown

class Reward:
    def __init__(self, metric): ...
    def score(self, now, before, twin, twin_before):
        if now.step >= {step} and not Path({mended!r}).exists():
            raise RuntimeError("no good")
        return RewardBreakdown({{"accuracy": 0.5}})

@hookimpl
def esper_register_rewards(registry):
    registry.add("judge", Reward, RewardSpec())
"""

WILD = """\
optimizer: {host: {kind: sgd, learning_rate: 10}}
governor: {rollbacks: 0}
checkpoints: {every: 1}
"""

JUDGED = "reward: failing/judge\ncheckpoints: {every: 1}\n"


def folder_in(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def told(error: BaseException) -> list[str]:
    """The lines of the last hint."""
    return error.problems[-1].hint.splitlines()


@pytest.fixture
def judged(install, configured, tmp_path) -> Path:
    """The file of a run whose reward fails in its second step, until there is a file ``mended``."""
    install("failing", FAILING.format(step=1, mended=str(tmp_path / "mended")))
    return configured(JUDGED)


@pytest.mark.members
def test_a_run_that_a_plugin_ended_says_where_it_is_and_goes_on_once_that_is_mended(judged, tmp_path) -> None:
    with pytest.raises(PluginError, match="no good") as caught:
        run(prepare(judged), runs_dir=tmp_path / "runs")
    folder = folder_in(tmp_path / "runs")
    assert told(caught.value)[-4:] == [
        f"Run directory: {folder}",
        f"Report: {folder / 'report.html'}",
        f"Resume it:  esper resume {folder}",
        "Fix the cause first: resuming repeats the failed step.",
    ]
    assert len(told(caught.value)) > 4, "whose fault it is, is said before"
    assert (folder / "report.html").is_file()
    assert "Run directory:" not in json.loads((folder / "manifest.json").read_text())["reason"]
    with pytest.raises(PluginError) as caught:
        resume(prepare(folder / "config.yaml"), read_run(folder))
    assert f"Resume it:  esper resume {folder}" in told(caught.value), "and once more"
    (tmp_path / "mended").touch()
    resume(prepare(folder / "config.yaml"), read_run(folder))
    assert read_run(folder).status == "done"


@pytest.mark.members
def test_a_run_that_the_governor_stopped_says_it_too_and_that_it_would_be_stopped_again(configured, tmp_path) -> None:
    with pytest.raises(GovernorStop) as caught:
        run(prepare(configured(WILD)), runs_dir=tmp_path / "my runs")
    folder = folder_in(tmp_path / "my runs")
    assert told(caught.value)[-4:] == [
        f"Run directory: {folder}",
        f"Report: {folder / 'report.html'}",
        f"Resume it:  esper resume {shlex.quote(str(folder))}",
        "Fix the cause first: resuming repeats the failed step.",
    ]
    with pytest.raises(GovernorStop) as once_more:
        resume(prepare(folder / "config.yaml"), read_run(folder))
    assert str(once_more.value) == str(caught.value), "as was said"


@pytest.mark.members
@pytest.mark.parametrize(("more", "status"), [(JUDGED, 3), (WILD, 4)], ids=["failed", "stopped"])
def test_the_command_says_it_last_and_once(more, status, judged, configured, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["run", str(configured(more)), "--runs-dir", str(tmp_path / "runs"), "--quiet"])
    assert ended.value.code == status
    said = capsys.readouterr().err
    folder = folder_in(tmp_path / "runs")
    assert said.count(f"  Run directory: {folder}\n") == 1
    assert said.count(f"  Report: {folder / 'report.html'}\n") == 1
    assert "esper r" in said.partition("Report: ")[2]


@pytest.mark.members
def test_a_run_without_a_report_and_a_checkpoint_names_no_report(install, configured, tmp_path) -> None:
    install("failing", FAILING.format(step=0, mended=str(tmp_path / "mended")))
    file = configured("reward: failing/judge\nplugins: {disable: [watch]}\n")
    with pytest.raises(PluginError) as caught:
        run(prepare(file), runs_dir=tmp_path / "runs")
    folder = folder_in(tmp_path / "runs")
    assert not (folder / "latest").exists()
    assert told(caught.value)[-3:-1] == [f"Run directory: {folder}", f"Resume it:  esper resume {folder}"]


def ended_by(error: BaseException, configured, tmp_path, monkeypatch, lost: str = "") -> tuple[BaseException, Path]:
    """What comes out of a run that ``error`` ends in its second step, and the run's folder.

    lost: a file of it that somebody took away before.
    """

    def pause(keeping, course):
        real(keeping, course)
        if course.step == 2:
            if lost:
                (folder_in(tmp_path / "runs") / lost).unlink()
            raise error

    real = CheckpointWriter.after_step
    monkeypatch.setattr(CheckpointWriter, "after_step", pause)
    prepared = prepare(configured("checkpoints: {every: 1}"))
    with pytest.raises(type(error)) as caught:
        run(prepared, runs_dir=tmp_path / "runs")
    return caught.value, folder_in(tmp_path / "runs")


@pytest.mark.members
def test_a_crash_says_it_below_its_traceback(configured, tmp_path, monkeypatch) -> None:
    error, folder = ended_by(ZeroDivisionError("ours"), configured, tmp_path, monkeypatch)
    (note,) = error.__notes__
    assert note.splitlines() == [
        f"Run directory: {folder}",
        f"Report: {folder / 'report.html'}",
        f"Resume it:  esper resume {folder}",
        "Fix the cause first: resuming repeats the failed step.",
    ]


@pytest.mark.members
def test_an_interruption_says_no_more_than_where_and_how(configured, tmp_path, monkeypatch) -> None:
    error, folder = ended_by(Interrupted(2), configured, tmp_path, monkeypatch)
    assert told(error) == [
        f"Run directory: {folder}",
        f"Report: {folder / 'report.html'}",
        f"Resume it:  esper resume {folder}",
    ]


@pytest.mark.members
def test_a_disk_that_is_full_says_it_too(configured, tmp_path, monkeypatch) -> None:
    full = RunFolderError.about(tmp_path, OSError(28, "No space left on device"))
    error, folder = ended_by(full, configured, tmp_path, monkeypatch)
    assert told(error)[-4:] == [
        f"Run directory: {folder}",
        f"Report: {folder / 'report.html'}",
        f"Resume it:  esper resume {folder}",
        "Fix the cause first: resuming repeats the failed step.",
    ]


@pytest.mark.members
@pytest.mark.parametrize(("kind", "lost"), [(RunFolderError, "events.jsonl"), (BrokenPipeError, "")])
def test_of_a_folder_that_is_gone_and_a_reader_that_went_away_there_is_no_more_to_say(
    kind, lost, configured, tmp_path, monkeypatch
) -> None:
    given = kind.about(tmp_path, OSError(2, "gone")) if kind is RunFolderError else kind()
    error, _ = ended_by(given, configured, tmp_path, monkeypatch, lost)
    assert not hasattr(error, "__notes__")
    assert "Run directory:" not in str([one.hint for one in getattr(error, "problems", ())])
