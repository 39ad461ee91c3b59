"""``esper run`` and ``resume``: an interrupted run says where its directory and report are, and how to resume."""

from __future__ import annotations

import os
import shlex
import signal

import pytest

SHORT = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
environments: 1
capacity: false
episode: {steps: 9, batches: 1, batch_size: 20}
"""


@pytest.fixture
def interrupted(esper, after_step, tmp_path):
    """``interrupted(2, signal, "run", file)``: the answer of the command, which gets this signal after step 2."""

    def call(step: int, number: int, *arguments):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in the background
        after_step(step, lambda: os.kill(os.getpid(), number))
        try:
            return esper(*arguments, "--runs-dir", tmp_path / "my runs")
        finally:
            signal.signal(signal.SIGINT, before)

    return call


@pytest.mark.members
def test_interrupted_run_names_its_directory_and_its_report_each_time(interrupted, tmp_path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text(SHORT)
    answer = interrupted(2, signal.SIGINT, "run", file, "--name", "twice", "--json")
    (run,) = (tmp_path / "my runs").iterdir()
    last = f"  Resume it:  esper resume {shlex.quote(str(run))}\n"
    assert (answer.status, answer.out) == (130, "")
    assert answer.err.endswith(
        "E401 interrupted by signal 2; the current step was finished\n"
        f"  Run directory: {run}\n  Report: {run / 'report.html'}\n{last}"
    )
    assert (run / "report.html").is_file()
    answer = interrupted(5, signal.SIGTERM, "resume", "twice", "--quiet")
    assert (answer.status, f"  Run directory: {run}\n" in answer.err) == (143, True)
    assert answer.err.endswith(last)
    assert shlex.split(last.partition("esper ")[2]) == ["resume", str(run)], "the printed command can be typed"
