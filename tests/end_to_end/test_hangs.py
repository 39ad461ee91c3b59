"""A run whose own process hangs ends in bounded time, with the line at fault, and can be resumed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from esper_core.engines.processes import can_fork
from tests.end_to_end.conftest import SMALL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_fork(), reason="what watches a run is forked on Linux, without an accelerator"),
]

RUN = f"{SMALL}checkpoints: {{every: 1}}\npatience: 4\nplugins: {{local: [stuck.py]}}\n"
PLUGIN = """
import ctypes
import os
import time

from esper_core import hookimpl


def deadlock():
    # It holds Python's lock for ever, too.
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


@hookimpl
def esper_step_finished(events):
    if events[0].step == 3 and os.environ.get("HANG"):
        {hang}
"""


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize(
    ("hang", "at"),
    [("time.sleep(600)", "time.sleep(600)"), ("deadlock()", "library.pthread_mutex_lock(mutex)")],
)
def test_a_run_that_an_observer_blocks_is_ended_and_can_be_resumed(tmp_path, hang, at, engine):
    text = PLUGIN.format(hang=hang)
    (tmp_path / "stuck.py").write_text(text)
    line = max(number for number, one in enumerate(text.splitlines(), 1) if one.strip() == at)
    (tmp_path / "run.yaml").write_text(RUN)
    calm = {name: value for name, value in os.environ.items() if name != "HANG"}

    def esper(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("esper")), *arguments, "--engine", engine, "--quiet"]
        return subprocess.run(
            command, cwd=tmp_path, env={**calm, **more}, capture_output=True, text=True, timeout=120, check=False
        )

    ended = esper("run", "run.yaml", HANG="1")
    (run,) = (tmp_path / "runs").iterdir()
    assert ended.returncode == -signal.SIGKILL
    assert "E406 the run stood still for 4 seconds in " in ended.stderr
    assert f"{tmp_path / 'stuck.py'}:{line}" in ended.stderr
    assert json.loads((run / "manifest.json").read_text())["status"] == "failed"
    assert "esper_step_finished" in (run / "log.txt").read_text()
    assert esper("resume", run.name).returncode == 0
    assert esper("run", "run.yaml").returncode == 0
    whole = max((tmp_path / "runs").iterdir(), key=lambda one: one.stat().st_mtime)
    found = [json.loads((one / "summary.json").read_text())["results"] for one in (run, whole)]
    assert found[0] == found[1]
