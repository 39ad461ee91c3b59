"""An interrupted run prints what the guide on resuming shows, and resumes by the words of its id."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "resume-a-run.md"
ESPER = [sys.executable, "-c", "from esper_core.cli import main; main()"]
STUDY = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
environments: 1
capacity: false
episode: {steps: 150, batches: 1, batch_size: 20}
"""
RUN_ID = re.compile(r"\d{8}-\d{6}-(\w+-\w+)")
PATIENCE = 60.0
"""Seconds to wait for the first step of a run."""


def shown() -> list[str]:
    """Return the lines of the page between Ctrl-C and the next command."""
    (block,) = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    _, _, after = block.partition("^C\n")
    told, _, _ = after.partition("$ ")
    return told.splitlines()


def test_an_interrupted_run_prints_what_the_guide_shows_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    interruptible = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    run = subprocess.Popen(
        [*ESPER, "run", "study.yaml"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **interruptible
    )
    end = time.monotonic() + PATIENCE
    while not any(b"step-finished" in one.read_bytes() for one in tmp_path.glob("runs/*/events.jsonl")):
        assert time.monotonic() < end, "it never began"
        time.sleep(0.02)
    os.kill(run.pid, signal.SIGINT)
    _, told = run.communicate()
    assert run.returncode == 130
    (folder,) = (tmp_path / "runs").iterdir()
    words = RUN_ID.fullmatch(folder.name)
    assert words is not None
    wanted = [RUN_ID.sub(folder.name, line) for line in shown()]
    assert told.decode().splitlines()[-len(wanted) :] == wanted
    done = subprocess.run([*ESPER, "resume", words[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
