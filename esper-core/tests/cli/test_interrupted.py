"""An interrupted run says where its directory and its report are, and how to resume."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from threading import Event, Thread

import pytest

LONG = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
environments: 1
capacity: false
episode: {steps: 10000, batches: 1, batch_size: 20}
"""

MARKER = '"step-finished"'


@pytest.fixture
def interrupted(esper, tmp_path):
    """``interrupted("run", file)``: what the command answers that is sent a signal once more steps were finished."""

    def steps(runs: Path) -> int:
        return sum(file.read_text(errors="replace").count(MARKER) for file in runs.glob("*/events.jsonl"))

    def call(*arguments: str | Path, number: int = signal.SIGINT):
        runs, over = tmp_path / "my runs", Event()
        before = steps(runs)

        def send() -> None:
            while not over.wait(0.05):
                if steps(runs) > before:
                    os.kill(os.getpid(), number)
                    return

        sender = Thread(target=send)
        sender.start()
        try:
            return esper(*map(str, arguments), "--runs-dir", str(runs))
        finally:
            over.set()
            sender.join()

    return call


@pytest.mark.members
@pytest.mark.parametrize("more", [[], ["--json"], ["--quiet"]])
def test_an_interrupted_run_tells_its_folder_its_report_and_the_way_on(interrupted, tmp_path, more) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG)
    answer = interrupted("run", file, *more)
    (run,) = (tmp_path / "my runs").iterdir()
    assert (answer.status, answer.out) == (130, "")
    assert answer.err.endswith(
        "E401 interrupted by signal 2; the current step was finished\n"
        f"  Run directory: {run}\n"
        f"  Report: {run / 'report.html'}\n"
        f"  Resume it:  esper resume {shlex.quote(str(run))}\n"
    )
    assert (run / "report.html").is_file()


@pytest.mark.members
def test_a_run_that_is_interrupted_once_more_tells_it_once_more(interrupted, esper, tmp_path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG)
    interrupted("run", file, "--name", "twice")
    (run,) = (tmp_path / "my runs").iterdir()
    answer = interrupted("resume", "twice", "--quiet", number=signal.SIGTERM)
    assert answer.status == 143
    assert f"  Run directory: {run}\n" in answer.err
    assert answer.err.endswith(f"  Resume it:  esper resume {shlex.quote(str(run))}\n")
    # What is told is what can be typed.
    command = shlex.split(answer.err.splitlines()[-1].partition("esper ")[2])
    assert command == ["resume", str(run)]


@pytest.mark.members
def test_without_a_report_none_is_told(interrupted, tmp_path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG + "plugins: {disable: [watch]}\n")
    answer = interrupted("run", file, "--quiet")
    assert "Run directory: " in answer.err
    assert "Report:" not in answer.err
