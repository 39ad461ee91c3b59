"""An interrupted run prints what the guide on resuming shows."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "resume-a-run.md"
STUDY = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
environments: 1
capacity: false
episode: {steps: 10000, batches: 1, batch_size: 20}
"""
RUN_ID = re.compile(r"\d{8}-\d{6}-\w+-\w+")


def shown() -> list[str]:
    """Return the lines of the page between Ctrl-C and the next command."""
    (block,) = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    _, _, after = block.partition("^C\n")
    told, _, _ = after.partition("$ ")
    return told.splitlines()


def test_an_interrupted_run_prints_what_the_guide_shows(processes, tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    processes.start("run", tmp_path / "study.yaml", cwd=tmp_path)
    run = processes.interrupt(tmp_path / "runs")
    assert processes.wait() == 130
    expected = [RUN_ID.sub(run.name, line) for line in shown()]
    printed = [line for line in processes.err.splitlines() if " %, step " not in line]  # of progress, every few seconds
    assert printed[-len(expected) :] == expected
