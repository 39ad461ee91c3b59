"""A run that is killed at any moment resumes to identical results."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

HERE = Path(__file__).parent

RUN = """
task: {use: mnist1d, settings: {samples: 400, validation: 100}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
  late: {blueprints: [mlp]}
arms:
  planned:
    policy:
      use: schedule
      settings:
        plan:
          - {step: 0, slot: early, op: germinate, blueprint: conv_light}
          - {step: 2, slot: early, op: advance}
          - {step: 4, slot: early, op: fossilise}
          - {step: 4, slot: late, op: germinate, blueprint: mlp}
  chance: {policy: random}
growth: {incubation: %s, nursery: 1, embargo: 1}
environments: %d
rounds: 2
lanes: %d
workers: %s
episode: {steps: 6, batches: 2, batch_size: 20}
checkpoints: {every: 1}
"""


@dataclass(frozen=True)
class Server:
    """Starts ``esper`` in a process of its own, at once."""

    process: subprocess.Popen[str]
    log: Path

    def start(self, *argv: str | Path) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"argv": [str(one) for one in argv], "log": str(self.log)}) + "\n")
        self.process.stdin.flush()
        return self._number()

    def wait(self) -> int:
        return self._number()

    def call(self, *argv: str | Path) -> int:
        self.start(*argv)
        return self.wait()

    def _number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = [sys.executable, str(HERE / "forked_cli.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Server(process, tmp_path_factory.mktemp("log") / "log.txt")
        assert process.stdin is not None
        process.stdin.close()


def found_in(run: Path) -> tuple[object, ...]:
    """All that a run found: results, events but for the run's name, and the numbers of its last checkpoint."""
    results = json.loads((run / "summary.json").read_text())["results"]
    events = re.sub(r'"run":"[^"]*"', "", (run / "events.jsonl").read_text())
    newest = run / "checkpoints" / (run / "latest").read_text().strip()
    numbers = {name: tensor.tolist() for name, tensor in load_file(newest / "tensors.safetensors").items()}
    return results, events, json.loads((run / "growth.json").read_text()), repr(sorted(numbers.items()))


def newest_in(runs: Path) -> int:
    """The newest checkpoint of the run there; 0: a folder without any; -1: nothing yet."""
    there = [int(one.name) for one in runs.glob("*/checkpoints/*") if one.name.isdecimal()]
    return max(there, default=0 if list(runs.glob("*/manifest.json")) else -1)


def folder_in(runs: Path) -> Path | None:
    """The one run directory that was begun there, as far as that a run could go on."""
    return next((one.parent for one in runs.glob("*/config.yaml")), None)


def survive(server: Server, file: Path, runs: Path, checkpoint: int, seconds: float) -> tuple[Path | None, bool]:
    """Run, kill ``seconds`` after there was this checkpoint, and go on: where, and whether the kill was quicker.

    None where nothing was there to go on from.
    """
    pid = server.start("run", file, "--runs-dir", runs, "--quiet")
    deadline = time.monotonic() + 120
    while newest_in(runs) < checkpoint and time.monotonic() < deadline:
        time.sleep(0.004)
    time.sleep(seconds)
    with suppress(ProcessLookupError):  # it was quicker
        os.kill(pid, signal.SIGKILL)
    hit = server.wait() == -signal.SIGKILL
    if (run := folder_in(runs)) is None:
        return None, hit
    assert server.call("resume", run, "--quiet") == 0, server.log.read_text()[-2000:]
    return run, hit


def kill_often(
    server: Server, tmp_path: Path, times: int, seed: int, *, incubation: str, lanes: int, workers: str = "threads"
) -> None:
    file = tmp_path / "run.yaml"
    environments = 2 if workers == "processes" else 1
    file.write_text(RUN % (incubation, environments, lanes, workers))
    assert server.call("run", file, "--runs-dir", tmp_path / "whole", "--quiet") == 0, server.log.read_text()
    whole = next((tmp_path / "whole").iterdir())
    expected = found_in(whole)
    last = int((whole / "latest").read_text())
    seconds = json.loads((whole / "summary.json").read_text())["timing"]["total"] / last
    chance, survived = random.Random(seed), 0
    for number in range(times):
        checkpoint, moment = chance.randint(-1, last - 1), chance.uniform(0, 1.5) * seconds
        run, hit = survive(server, file, tmp_path / str(number), checkpoint, moment)
        if run is not None:
            survived += hit
            assert found_in(run) == expected, f"killed {moment:.3f} s after checkpoint {checkpoint}"
    assert survived >= times // 2, "of so many kills that hit a run which had something to go on from"


def test_run_13_a_run_that_is_killed_at_any_moment_goes_on_to_the_same_numbers(server: Server, tmp_path: Path) -> None:
    kill_often(server, tmp_path, 10, seed=1, incubation="shadow", lanes=1)


def test_run_13_also_on_branches_and_two_lanes(server: Server, tmp_path: Path) -> None:
    kill_often(server, tmp_path, 6, seed=2, incubation="branch", lanes=2)


def test_run_13_also_in_two_processes(server: Server, tmp_path: Path) -> None:
    kill_often(server, tmp_path, 4, seed=5, incubation="shadow", lanes=2, workers="processes")


def test_run_13_a_run_that_was_killed_before_its_last_checkpoint_was_named_names_it(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN % ("shadow", 1, 1, "threads"))
    assert server.call("run", file, "--runs-dir", tmp_path / "runs", "--quiet") == 0, server.log.read_text()
    run = next((tmp_path / "runs").iterdir())
    expected, last = found_in(run), int((run / "latest").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "running", "finished": None, "exit": None}))
    (run / "latest").write_text(f"{last - 1:06}\n")
    (run / "summary.json").unlink()
    assert server.call("resume", run, "--quiet") == 0, server.log.read_text()
    assert int((run / "latest").read_text()) == last
    assert found_in(run) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("incubation", "seed"), [("shadow", 3), ("branch", 4)])
def test_run_13_and_so_it_is_a_hundred_times(server: Server, tmp_path: Path, incubation: str, seed: int) -> None:
    kill_often(server, tmp_path, 50, seed, incubation=incubation, lanes=2)


def test_a_run_that_another_process_is_at_work_on_is_left_to_it(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN % ("shadow", 1, 1, "threads"))
    pid = server.start("run", file, "--runs-dir", tmp_path / "runs", "--quiet", "--set", "rounds=40")
    while newest_in(tmp_path / "runs") < 1:
        time.sleep(0.004)
    run = folder_in(tmp_path / "runs")
    assert run is not None
    os.kill(pid, signal.SIGSTOP)  # it is at work, as far as anybody can see, for as long as this takes
    try:
        before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
        second = subprocess.run(
            [sys.executable, "-m", "esper_core", "resume", run], capture_output=True, text=True, check=False
        )
        assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    finally:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        server.wait()
    assert second.returncode == 1
    assert second.stderr.startswith("E412 ")
    assert "manifest.json has its process id" in second.stderr
