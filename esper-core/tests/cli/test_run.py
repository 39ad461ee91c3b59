"""``esper run`` and ``resume``: an interrupted run says where its directory and report are, and how to resume."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from threading import Event, Thread

import pytest

pytestmark = pytest.mark.members

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
    """``interrupted("run", file)``: the answer of the command, which gets a signal once more steps were finished."""

    def steps(runs: Path) -> int:
        return sum(file.read_text(errors="replace").count(MARKER) for file in runs.glob("*/events.jsonl"))

    def call(*arguments: str | Path, number: int = signal.SIGINT):
        runs, over = tmp_path / "my runs", Event()
        before = steps(runs)

        def send() -> None:
            while not over.wait(0.02):
                if steps(runs) > before:
                    os.kill(os.getpid(), number)
                    return

        own = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in a background shell
        sender = Thread(target=send)
        sender.start()
        try:
            return esper(*map(str, arguments), "--runs-dir", str(runs))
        finally:
            over.set()
            sender.join()
            signal.signal(signal.SIGINT, own)

    return call


def test_interrupted_run_names_its_directory_and_its_report_each_time(interrupted, tmp_path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG)
    answer = interrupted("run", file, "--name", "twice", "--json")
    (run,) = (tmp_path / "my runs").iterdir()
    last = f"  Resume it:  esper resume {shlex.quote(str(run))}\n"
    assert (answer.status, answer.out) == (130, "")
    assert answer.err.endswith(
        "E401 interrupted by signal 2; the current step was finished\n"
        f"  Run directory: {run}\n  Report: {run / 'report.html'}\n{last}"
    )
    assert (run / "report.html").is_file()
    answer = interrupted("resume", "twice", "--quiet", number=signal.SIGTERM)
    assert (answer.status, f"  Run directory: {run}\n" in answer.err) == (143, True)
    assert answer.err.endswith(last)
    assert shlex.split(last.partition("esper ")[2]) == ["resume", str(run)], "the printed command can be typed"


def test_interrupted_run_without_a_report_names_none(interrupted, tmp_path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG + "plugins: {disable: [watch]}\n")
    answer = interrupted("run", file, "--quiet")
    assert "Run directory: " in answer.err
    assert "Report:" not in answer.err
