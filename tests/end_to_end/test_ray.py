"""Runs on a Ray cluster: identical results on any number of nodes, with nodes lost, and after a change of engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import run_once
from tests.end_to_end.test_kills import found_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")]

RUN = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
arms:
  planned: {policy: {use: schedule, settings: {plan: [
    {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2},
    {step: 2, op: advance, slot: early},
    {step: 5, op: fossilise, slot: early}]}}}
  other: {policy: %s}
environments: 3
rounds: 2
lanes: 3
episode: {steps: 7, batches: 2, batch_size: 20}
checkpoints: {every: 1}
"""
"""Two rounds, after each of which a policy may learn; then the study of the controls."""

RUNS = {
    "learning": RUN % "{use: ppo, settings: {width: 8, passes: 2, minibatch: 8, learning_rate: 0.01}}",
    "random": RUN % "random",
}

MOMENTS = 6
"""Moments at which a node is lost in each of ``RUNS``; two of them in one run."""


@pytest.fixture(scope="module", params=RUNS)
def text(request: pytest.FixtureRequest) -> str:
    """The configuration."""
    return RUNS[request.param]


@pytest.fixture(scope="module")
def expected(text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """What a run with threads finds."""
    return found_in(run_once(tmp_path_factory.mktemp("threads"), text, "--engine", "threads"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Any]]]:
    """``cluster(text, nodes=2, kill=[30])``: run on so many nodes of a cluster, and return how it ended."""
    folder = tmp_path_factory.mktemp("cluster")
    script = Path(__file__).with_name("ray_cluster.py")
    with (folder / "log").open("w") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        server = subprocess.Popen([sys.executable, script], text=True, **pipes)

    def ask(text: str, folder: Path = folder, **job: Any) -> dict[str, Any]:
        assert server.stdin is not None
        assert server.stdout is not None
        (folder / "run.yaml").write_text(text)
        request = {"file": str(folder / "run.yaml"), "runs": str(folder / "runs"), **job}
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, (folder / "log").read_text()[-3000:]
        return dict(json.loads(answer))

    yield ask
    server.communicate(timeout=60)


def test_processes_and_ray_on_any_number_of_nodes_produce_the_results_of_threads(tmp_path, text, expected, cluster):
    assert found_in(run_once(tmp_path, text, "--engine", "processes")) == expected
    for nodes in (1, 2, 3):
        ran = cluster(text, nodes=nodes, sets=[f"lanes={nodes}"])
        assert found_in(Path(ran["run"])) == expected, nodes


def test_a_lost_node_changes_no_result_whenever_it_is_lost(text, expected, cluster):
    event_count = cluster(text, nodes=3)["events"]
    moments = [number * event_count // (MOMENTS + 1) for number in range(1, MOMENTS + 1)]
    for index, pair in enumerate(zip(moments[::2], moments[1::2], strict=True)):
        ran = cluster(text, nodes=5, kill=pair, delay=0.03 * (index % 2))
        assert found_in(Path(ran["run"])) == expected, (pair, ran["warnings"])
        replaced = (Path(ran["run"]) / "log.txt").read_text().count("and is replaced")
        assert replaced >= 2, pair


def test_workers_that_do_not_start_end_the_run_with_the_cpus_that_there_are(cluster):
    ran = cluster(RUNS["random"], nodes=1, sets=["lanes=3", "engine.settings.wait_seconds=20"])
    assert "E404 3 workers of one CPU each did not start in 20 seconds: the cluster has 1 CPUs" in ran["error"]


def begun(folder: Path, text: str, checkpoint: int, *options: str, **env: str) -> subprocess.Popen[bytes]:
    """Start a run in a folder, and return its process when it has this checkpoint."""
    (folder / "run.yaml").write_text(text)
    command = [sys.executable, "-m", "esper_run", "run", "run.yaml", "--quiet", *options]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **env})
    while not list(folder.glob(f"runs/*/checkpoints/{checkpoint:06}")):
        assert process.poll() is None
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(("first", "then"), [("threads", "ray"), ("ray", "processes")])
def test_a_run_is_resumed_on_another_engine(first, then, tmp_path, text, expected):
    process = begun(tmp_path, text, 3, "--engine", first)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    (run,) = (tmp_path / "runs").iterdir()
    again = [sys.executable, "-m", "esper_run", "resume", str(run), "--quiet", "--engine", then]
    subprocess.run(again, cwd=tmp_path, check=True)
    assert found_in(run) == expected


def test_a_run_whose_machine_is_lost_is_resumed_from_its_store(tmp_path):
    """The driver is killed, and with it the head of the cluster; its run directory is gone, too."""
    text = RUNS["random"].replace("steps: 7", "steps: 30")
    expected = found_in(run_once(tmp_path / "threads", text, "--engine", "threads"))
    store = f"file://{tmp_path}/store"
    process = begun(tmp_path, text, 12, "--engine", "ray", "--set", f"store={store}")
    process.kill()
    process.wait()
    (run,) = (tmp_path / "runs").iterdir()
    run.rename(tmp_path / "lost")
    (tmp_path / "store" / run.name / "lease.json").unlink()  # as E412 says, since its process is dead
    again = [sys.executable, "-m", "esper_run", "resume", f"{store}/{run.name}", "--quiet", "--engine", "ray"]
    subprocess.run(again, cwd=tmp_path, check=True)
    assert found_in(run) == expected


HOSTILE = """
import os, signal, time
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl


class Block(nn.Module):
    def __init__(self, site):
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.passes += 1
        if self.passes == 6:
            self.act()
        return self.mix(inputs)


class Crash(Block):
    def act(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Hang(Block):
    def act(self):
        time.sleep(600)


@hookimpl
def esper_register_blueprints(registry):
    for kind in (Crash, Hang):
        registry.add(kind.__name__.lower(), kind, BlueprintSpec("sequence"))
"""


SMALL_RUN = """\
task: stripes
host: pointwise-mlp
plugins: {local: [hostile.py]}
slots:
  early: {blueprints: [%s]}
policy: {use: schedule, settings: {plan: [{step: 0, op: germinate, slot: early, blueprint: %s}]}}
environments: 2
lanes: 2
patience: 5
capacity: false
episode: {steps: 4, batches: 2, batch_size: 20}
checkpoints: {every: 1}
"""


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_seed_that_ends_its_worker_is_taken_out_as_with_processes(kind, tmp_path, cluster):
    configuration = SMALL_RUN % (kind, kind)
    (tmp_path / "hostile.py").write_text(HOSTILE)
    expected = run_once(tmp_path, configuration, "--engine", "processes")
    ran = cluster(configuration, tmp_path, nodes=2)
    assert found_in(Path(ran["run"])) == found_in(expected)
    lost = [text for text in ran["warnings"] if "is taken out" in text]
    assert lost, ran["warnings"]
    assert all(f"hostile/{kind}" in text for text in lost)
    assert "seed-lost" in (expected / "events.jsonl").read_text()


def marked(mark: str) -> list[str]:
    """Return the commands of all processes with an environment variable that has this value."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                commands.append((process / "cmdline").read_text().replace("\0", " "))
    return commands


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_finishes_its_step_and_leaves_no_process(end, code, tmp_path):
    mark = f"mark-{tmp_path}-{end}"
    process = begun(tmp_path, RUNS["random"].replace("steps: 7", "steps: 400"), 3, "--engine", "ray", MARK=mark)
    assert [process_command for process_command in marked(mark) if "raylet" in process_command]
    process.send_signal(end)
    assert process.wait() == code
    deadline = time.monotonic() + 20
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
