"""A run that is killed at any moment resumes to identical results."""

import json
import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

RUN = """
task: {use: mnist1d, settings: {samples: 400, validation: 100}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
  late: {blueprints: [mlp]}
arms:
  planned: {policy: {use: schedule, settings: {plan: [
    {step: 0, slot: early, op: germinate, blueprint: conv_light},
    {step: 2, slot: early, op: advance},
    {step: 4, slot: early, op: fossilise},
    {step: 4, slot: late, op: germinate, blueprint: mlp}]}}}
%sgrowth: {gates: "off", incubation: %s, nursery: 1, embargo: 1}
environments: %d
rounds: %d
lanes: %d
engine: %s
episode: {steps: 6, batches: 2, batch_size: 20}
checkpoints: {every: 1}
"""


def found_in(run: Path) -> tuple[object, ...]:
    """Return all that a run found: results, events without its name, numbers of its last checkpoint, and networks."""
    results = json.loads((run / "summary.json").read_text())["results"]
    events = re.sub(r'"run":"[^"]*"', "", (run / "events.jsonl").read_text())
    newest = run / "checkpoints" / (run / "latest").read_text().strip()
    numbers = {name: tensor.tolist() for name, tensor in load_file(newest / "tensors.safetensors").items()}
    networks = [file.read_text() for file in sorted(run.glob("networks/*/growth.json"))]  # with sums of the tensors
    assert networks
    return results, events, json.loads((run / "growth.json").read_text()), repr(sorted(numbers.items())), networks


def newest_in(runs: Path) -> int:
    """Return the number of the run's newest checkpoint; 0: none; -1: no folder yet."""
    numbers = [int(path.name) for path in runs.glob("*/checkpoints/*") if path.name.isdecimal()]
    return max(numbers, default=0 if list(runs.glob("*/manifest.json")) else -1)


def folder_in(runs: Path) -> Path | None:
    return next((file.parent for file in runs.glob("*/config.yaml")), None)


def configuration(file: Path, *, small: bool = True, incubation: str = "shadow", engine: str = "threads") -> Path:
    """Write a configuration with a checkpoint after every step: of one arm and one round, or of two."""
    lanes = 1 if small else 2
    environments = 2 if engine == "processes" else 1
    chance_arm = "" if small else "  chance: {policy: random}\n"
    file.write_text(RUN % (chance_arm, incubation, environments, lanes, lanes, engine))
    return file


def resume_after_kill(
    processes: Any, file: Path, runs: Path, checkpoint: int, seconds: float
) -> tuple[Path | None, bool]:
    """Run, kill ``seconds`` after this checkpoint, and resume. Return the run and whether the kill hit it.

    The run is None if there was nothing to resume.
    """
    pid = processes.start("run", file, "--runs-dir", runs, "--quiet")
    processes.wait_for(lambda: newest_in(runs) >= checkpoint)
    time.sleep(seconds)
    with suppress(ProcessLookupError):  # the run ended first
        os.kill(pid, signal.SIGKILL)
    hit = processes.wait() == -signal.SIGKILL
    if (run := folder_in(runs)) is None:
        return None, hit
    assert processes.call("resume", run, "--quiet") == 0, processes.err[-2000:]
    return run, hit


@pytest.mark.parametrize(
    ("kills", "changes"),
    [
        pytest.param(1, {}, marks=pytest.mark.install),  # CI runs it for every change
        pytest.param(40, {"small": False}, marks=pytest.mark.slow),
        pytest.param(40, {"small": False, "incubation": "branch"}, marks=pytest.mark.slow),
        pytest.param(20, {"small": False, "engine": "processes"}, marks=pytest.mark.slow),
    ],
)
def test_run_13_a_run_killed_at_any_moment_resumes_to_identical_results(kills, changes, processes, tmp_path):
    file = configuration(tmp_path / "run.yaml", **changes)
    assert processes.call("run", file, "--runs-dir", tmp_path / "whole", "--quiet") == 0, processes.err
    uninterrupted = next((tmp_path / "whole").iterdir())
    expected = found_in(uninterrupted)
    last = int((uninterrupted / "latest").read_text())
    seconds = json.loads((uninterrupted / "summary.json").read_text())["timing"]["total"] / last
    draw, hits = random.Random(1), 0
    for number in range(kills):
        checkpoint, moment = draw.randint(-1, last - 1), draw.uniform(0, 1.5) * seconds
        run, hit = resume_after_kill(processes, file, tmp_path / str(number), checkpoint, moment)
        if run is not None:
            hits += hit
            assert found_in(run) == expected, f"killed {moment:.3f} s after checkpoint {checkpoint}"
    assert kills < 10 or hits >= kills // 2, "too few kills hit a run that could be resumed"


def test_run_13_a_run_killed_before_its_last_checkpoint_was_named_resumes_from_it(esper, tmp_path):
    file = configuration(tmp_path / "run.yaml")
    assert esper("run", file, "--runs-dir", tmp_path / "runs", "--quiet").status == 0
    run = next((tmp_path / "runs").iterdir())
    expected, last = found_in(run), int((run / "latest").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "running", "finished": None, "exit": None}))
    (run / "latest").write_text(f"{last - 1:06}\n")
    (run / "summary.json").unlink()
    assert esper("resume", run, "--quiet").status == 0
    assert int((run / "latest").read_text()) == last
    assert found_in(run) == expected
