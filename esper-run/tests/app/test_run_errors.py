"""An error that ends a run says where the run directory and its report are, and how to resume."""

import json
import logging
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import GovernorStop, Interrupted, PluginError, RunFolderError
from esper_run.app.compose import prepare
from esper_run.app.run import resume, run
from esper_run.runs.records import read_run
from tests.support.hostile_plugin import plugin

WILD = """\
optimizer: {host: {kind: sgd, weight_decay: 1.0e+30}}
governor: {rollbacks: 0}
checkpoints: {every: 1}
"""

FIX_FIRST = "Fix the cause first: resuming repeats the failed step."

pytestmark = pytest.mark.members


def folder_in(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def ended(kind: type[BaseException], file: Path, runs: Path) -> tuple[Any, Path]:
    """Return what a run of this configuration raises, and the run's folder."""
    with pytest.raises(kind) as caught:
        run(prepare(file), runs_dir=runs)
    return caught.value, folder_in(runs)


def how_to_resume(folder: Path) -> list[str]:
    resume_it = f"Resume it:  esper resume {shlex.quote(str(folder))}"
    return [f"Run directory: {folder}", f"Report: {folder / 'report.html'}", resume_it]


def hint_of(error: BaseException) -> list[str]:
    return error.problems[-1].hint.splitlines()


@pytest.fixture
def judged(install, configured, tmp_path) -> Path:
    """Return the file of a run whose reward fails in its third step, unless a file ``mended`` exists."""
    mended = str(tmp_path / "mended")
    install("hostile", plugin({"reward": f"if not os.path.exists({mended!r}): raise RuntimeError('no good')"}))
    return configured("reward: hostile/reward\ncheckpoints: {every: 1}\n")


def test_run_that_a_plugin_ended_can_be_resumed_once_the_plugin_is_fixed(judged, tmp_path) -> None:
    error, folder = ended(PluginError, judged, tmp_path / "runs")
    assert "no good" in str(error)
    assert hint_of(error)[-4:] == [*how_to_resume(folder), FIX_FIRST]
    assert len(hint_of(error)) > 4, "the package to blame is named before"
    assert (folder / "report.html").is_file()
    assert "Run directory:" not in json.loads((folder / "manifest.json").read_text())["reason"]
    with pytest.raises(PluginError) as caught:
        resume(prepare(folder / "config.yaml"), read_run(folder))
    assert hint_of(caught.value)[-4:] == [*how_to_resume(folder), FIX_FIRST]
    (tmp_path / "mended").touch()
    resume(prepare(folder / "config.yaml"), read_run(folder))
    assert read_run(folder).status == "done"


def test_the_copy_of_a_file_is_named_with_which_a_run_is_resumed(configured, tmp_path) -> None:
    file = configured("reward: hostile/reward\nplugins: {local: [hostile.py]}\ncheckpoints: {every: 1}\n")
    (file.parent / "hostile.py").write_text(plugin({"reward": "raise RuntimeError('no good')"}))
    error, folder = ended(PluginError, file, tmp_path / "runs")
    assert (folder / "hostile.py").is_file()
    assert "Fix the cause first, in the run's copy of hostile.py: resuming repeats" in hint_of(error)[-1]


def test_run_that_the_governor_stopped_is_stopped_again_with_the_same_message(configured, tmp_path) -> None:
    error, folder = ended(GovernorStop, configured(WILD), tmp_path / "my runs")
    assert hint_of(error)[-4:] == [*how_to_resume(folder), FIX_FIRST]
    with pytest.raises(GovernorStop) as once_more:
        resume(prepare(folder / "config.yaml"), read_run(folder))
    assert str(once_more.value) == str(error)


def test_command_prints_how_to_resume_once(judged, tmp_path, esper) -> None:
    answer = esper("run", judged, "--runs-dir", tmp_path / "runs", "--quiet")
    assert answer.status == 3
    assert [answer.err.count(f"  {line}\n") for line in how_to_resume(folder_in(tmp_path / "runs"))] == [1, 1, 1]


@pytest.mark.usefixtures("judged")
def test_run_without_a_report_names_none(configured, tmp_path) -> None:
    unwatched = configured("reward: hostile/reward\ncheckpoints: {every: 100}\nplugins: {disable: [watch]}\n")
    error, folder = ended(PluginError, unwatched, tmp_path / "runs")
    assert not (folder / "latest").exists()
    assert hint_of(error)[-3:-1] == [f"Run directory: {folder}", f"Resume it:  esper resume {folder}"]


@pytest.fixture
def ended_by(configured, after_step, tmp_path):
    """``ended_by(error)``: return what a run raises if this error occurs in its second step, and the run's folder.

    lost: a file of the run that is deleted before.
    """

    def end(error: BaseException, lost: str = "") -> tuple[BaseException, Path]:
        def fail() -> None:
            if lost:
                (folder_in(tmp_path / "runs") / lost).unlink()
            raise error

        after_step(2, fail)
        return ended(type(error), configured("checkpoints: {every: 1}"), tmp_path / "runs")

    return end


def test_signal_ends_a_run_with_a_checkpoint_and_how_to_resume(configured, after_step, tmp_path) -> None:
    after_step(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    error, folder = ended(Interrupted, configured("checkpoints: {every: 100}"), tmp_path / "runs")
    assert hint_of(error) == how_to_resume(folder)
    assert (folder / "latest").read_text() == "000002\n"


def test_crash_and_full_disk_say_where_the_run_is_and_how_to_resume(ended_by, tmp_path) -> None:
    error, folder = ended_by(ZeroDivisionError("ours"))
    assert error.__notes__ == ["\n".join([*how_to_resume(folder), FIX_FIRST])], "below its traceback"
    shutil.rmtree(tmp_path / "runs")
    error, folder = ended_by(RunFolderError.about(tmp_path, OSError(28, "No space left on device")))
    assert hint_of(error)[-4:] == [*how_to_resume(folder), FIX_FIRST]


@pytest.mark.parametrize("lost", ["events.jsonl", ""])
def test_lost_folder_and_broken_pipe_do_not_say_how_to_resume(lost: str, ended_by, tmp_path) -> None:
    error, folder = ended_by(RunFolderError.about(tmp_path, OSError(2, "gone")) if lost else BrokenPipeError(), lost)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["status"], manifest["exit"]) == ("failed", 1 if lost else 141)
    assert not hasattr(error, "__notes__")
    assert "Run directory:" not in str([problem.hint for problem in getattr(error, "problems", ())])


def test_log_that_cannot_be_written_costs_no_traceback(configured, tmp_path, monkeypatch, capfd) -> None:
    def no_space(handler: logging.FileHandler) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logging.FileHandler, "_open", no_space)
    run(prepare(configured()), runs_dir=tmp_path / "runs")
    assert "Traceback" not in capfd.readouterr().err
