"""Hostile plugins: seeds are contained in their worker; what else hangs, crashes or exits ends in bounded time, named.

Each row puts a few lines of code at a place of one plugin, ``hostile.py``, which is harmless otherwise. Rows of seeds
act in different environments, so that several share a run. A run of the harmless plugin is what all are compared with.
"""

from __future__ import annotations

import json
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from esper_core.engines.processes import can_fork

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_fork(), reason="worker processes are forked on Linux, without an accelerator"),
]

ENVIRONMENTS = 4
RUN = """
task: hostile/task
host: hostile/host
slots: {early: {at: stem, blueprints: ["hostile/*"]}}
arms: {own: {policy: hostile/policy}}
reward: hostile/reward
sinks: [hostile/sink]
optimizer: {host: {schedule: hostile/schedule}}
environments: 4
lanes: 2
engine: processes
episode: {steps: 6, batches: 2, batch_size: 20}
growth: {gates: "off"}
capacity: false
checkpoints: {every: 2}
patience: 3
plugins: {local: [hostile.py]}
"""

PLUGIN = """
import builtins, ctypes, fcntl, gc, os, resource, shutil, signal, sys, threading, time, warnings
import numpy as np
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl
from esper_core.leyline import (
    WAIT, Action, HostSpec, Op, PluginInfo, PolicySpec, ReportSection, RewardBreakdown, RewardSpec, ScheduleSpec,
    SinkSpec, State, TaskSpec
)
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.stripes import stripes

RUN = os.getpid()
STARTED = False
STEP = 0

def deadlock():  # with Python's lock
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def read_null():
    ctypes.string_at(0)

def allocate():
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
    kept = []
    while True:
        kept.append(bytearray(16 << 20))

def kill(number):
    os.kill(os.getpid(), number)

def recurse(depth=0):
    return recurse(depth + 1)

def fork_and_forget():
    if os.fork() == 0:
        time.sleep(10)
        os._exit(0)

#at import

class Hostile(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()
    @staticmethod
    def backward(context, gradient):
        os._exit(5)

#blocks

class Host(PointwiseMlp):
    def forward(self, inputs):
        if STARTED and self.training:
            #at host
            pass
        return super().forward(inputs)

class Task:
    def __init__(self):
        #at task
        self.own = stripes()
        self.metric, self.shape = self.own.metric, self.own.shape
    def split(self, name):
        #at split
        return self.own.split(name)
    def losses(self, outputs, targets):
        if STARTED:
            #at losses
            pass
        return self.own.losses(outputs, targets)
    def scores(self, outputs, targets):
        if STARTED:
            #at scores
            pass
        return self.own.scores(outputs, targets)

class Schedule:
    def factor(self, step, steps):
        if STARTED and step == 2:
            #at schedule
            pass
        return 1.0

class Policy:
    def __init__(self, space):
        #at policy
        self.learnt = 0
    def act(self, observations, masks):
        if observations[0].step == 2:
            #at act
            pass
        wanted = {1: Op.GERMINATE, 3: Op.ADVANCE}.get(observations[0].step)
        chosen = []
        for place, mask in enumerate(masks):
            blueprint = f"hostile/b{place}" if wanted is Op.GERMINATE else None
            able = wanted and mask.allows(action := Action(wanted, "early", blueprint))
            chosen.append(action if able else WAIT)
        return chosen
    def update(self, rollout):
        #at learn
        self.learnt += 1
        return {}
    def state_dict(self):
        #at policy state
        return State({"learnt": self.learnt})
    def load_state_dict(self, state):
        self.learnt = state.plain["learnt"]

class Reward:
    def __init__(self, metric): pass
    def score(self, now, before, twin, twin_before):
        if STARTED and now.step == 2:
            #at reward
            pass
        return RewardBreakdown({})

class Sink:
    def __init__(self, run):
        #at sink
        pass
    def hear(self, event):
        if event.type == "step-finished" and event.step == 2:
            #at hear
            pass
    def settle(self):
        #at settle
        pass
    def close(self):
        #at close
        pass

@hookimpl
def esper_plugin_info():
    #at info
    return PluginInfo(api=1, summary="Hostile.")
@hookimpl
def esper_register_blueprints(registry):
    #at registration
    for number, block in enumerate(BLOCKS):
        registry.add(f"b{number}", block, BlueprintSpec("sequence", "c*c + c"))
@hookimpl
def esper_register_hosts(registry): registry.add("host", Host, HostSpec())
@hookimpl
def esper_register_policies(registry): registry.add("policy", Policy, PolicySpec())
@hookimpl
def esper_register_rewards(registry): registry.add("reward", Reward, RewardSpec())
@hookimpl
def esper_register_schedules(registry): registry.add("schedule", Schedule, ScheduleSpec())
@hookimpl
def esper_register_sinks(registry): registry.add("sink", Sink, SinkSpec())
@hookimpl
def esper_register_tasks(registry): registry.add("task", Task, TaskSpec())
@hookimpl
def esper_configured(config):
    #at configured
    pass
@hookimpl
def esper_run_started(run):
    global STARTED
    STARTED = True
    #at started
@hookimpl
def esper_run_finished(run, outcome):
    #at finished
    pass
@hookimpl
def esper_stage_changed(event):
    #at stage
    pass
@hookimpl
def esper_step_finished(events):
    if events[0].step == 3:
        #at step
        pass
@hookimpl
def esper_update_finished(event):
    #at update
    pass
@hookimpl
def esper_check_health(snapshot):
    if snapshot.signals.step == 2:
        #at health
        pass
@hookimpl
def esper_report_sections(run):
    #at report
    return [ReportSection("Energy", "12.5 Wh")]
@hookimpl(wrapper=True)
def esper_run(context):
    #at before
    result = yield
    #at after
    return result
"""

BLOCK = """
class Block{number}(nn.Conv1d):
    def __init__(self, site):
        super().__init__(site.channels, site.channels, 1)
        if STARTED:
            #at factory
            pass
    def forward(self, inputs):
        if STARTED and self.training:
            #at training
            pass
        if STARTED and not self.training:
            #at evaluation
            pass
        outputs = super().forward(inputs)
        #at outputs
        return outputs
    def state_dict(self, *arguments, **named):
        if STARTED:
            #at state
            pass
        return super().state_dict(*arguments, **named)
    def named_parameters(self, *arguments, **named):
        if STARTED:
            #at parameters
            pass
        return super().named_parameters(*arguments, **named)
    #at members
"""


def plugin(harm: dict[str, str] | None = None, blocks: dict[int, tuple[str, str]] | None = None) -> str:
    """Return the plugin with code at places, and code at places of blueprints by their number."""
    blocks = blocks or {}
    made = [
        _with(BLOCK.format(number=number), dict([blocks[number]] if number in blocks else []))
        for number in range(ENVIRONMENTS)
    ]
    names = ", ".join(f"Block{number}" for number in range(ENVIRONMENTS))
    return _with(PLUGIN, harm or {}).replace("#blocks", "".join(made) + f"\nBLOCKS = [{names}]\n")


def _with(template: str, harm: dict[str, str]) -> str:
    def put(found: re.Match[str]) -> str:
        code = harm.pop(found["place"], "pass" if found["indent"] else "")
        return "\n".join(found["indent"] + line for line in code.splitlines())

    harm = dict(harm)
    text = re.sub(r"^(?P<indent> *)#at (?P<place>.+)$", put, template, flags=re.MULTILINE)
    assert not harm, harm
    return text


class World:
    """Runs the plugin, in a folder of its own, in other processes."""

    def __init__(self, processes: Any, folder: Path) -> None:
        self._processes, self.folder = processes, folder
        folder.mkdir(exist_ok=True)

    def call(self, text: str, *arguments: str, engine: str = "processes", seconds: float = 60.0) -> int:
        """Return the exit status of a command with this plugin."""
        (self.folder / "run.yaml").write_text(RUN)
        (self.folder / "hostile.py").write_text(text)
        command, *rest = arguments
        self._processes.start(command, *rest, "--quiet", "--engine", engine, cwd=self.folder)
        status: int = self._processes.wait(seconds)
        return status

    @property
    def said(self) -> str:
        return str(self._processes.err)

    @property
    def path(self) -> Path | None:
        """The run directory, if there is one."""
        return next((self.folder / "runs").glob("*"), None)

    @property
    def manifest(self) -> Any:
        assert self.path is not None
        return json.loads((self.path / "manifest.json").read_text())

    def wait_for(self, reached: Callable[[], object]) -> None:
        """Wait for what the process beside the run writes."""
        self._processes.wait_for(reached)

    def results(self) -> Any:
        assert self.path is not None
        return json.loads((self.path / "summary.json").read_text())["results"]

    def courses(self) -> dict[tuple[str, int], list[Any]]:
        """Return the events of each environment, by its arm and RNG seed."""
        assert self.path is not None
        found = defaultdict(list)
        for line in (self.path / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if "seed" in event:
                found[event["arm"], event["seed"]].append(event)
        return dict(found)


@pytest.fixture(scope="module")
def calm(processes: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The run of the harmless plugin."""
    world = World(processes, tmp_path_factory.mktemp("calm") / "world")
    assert world.call(plugin(), "run", "run.yaml") == 0, world.said
    assert len(world.courses()) == 2 * ENVIRONMENTS
    return world


@dataclass(frozen=True)
class Row:
    """Code at a place of the plugin, outside of seeds, and how a run with it ends.

    Attributes:
        status: The exit status of ``esper run``; 0: the run goes on without the component, or as if nothing had been.
        says: What stderr says; None: nothing needs to be said.
    """

    place: str
    code: str
    status: int
    says: str | None = "hostile.py:"
    engine: str = "processes"

    def __str__(self) -> str:
        return f"{self.place}: {self.code}"


HANG, NULL, LEAVE = "time.sleep(600)", "read_null()", "os._exit(0)"
FAILS, PLUGIN_FAILS, CRASHES, KILLED = 1, 3, -signal.SIGSEGV, -signal.SIGKILL

HOOK = "outputs.register_hook(lambda gradient: {}) if STARTED and outputs.requires_grad else None"
SEEDS = {
    "hangs": [("training", HANG), ("factory", "while True: pass"), ("evaluation", "deadlock()")],
    "backward": [
        ("outputs", HOOK.format(HANG)),
        ("outputs", HOOK.format(NULL)),
        ("outputs", "outputs = Hostile.apply(outputs) if STARTED else outputs"),
    ],
    "crashes": [("factory", NULL), ("training", "os.abort()"), ("evaluation", NULL), ("state", NULL)],
    "exits": [
        ("training", LEAVE),
        ("training", "os._exit(3)"),
        ("training", "sys.exit('bye')"),
        ("parameters", "os._exit(1)"),
    ],
    "signals": [
        ("training", "kill(signal.SIGKILL)"),
        ("training", "kill(signal.SIGUSR1)"),
        ("training", "kill(signal.SIGSTOP)"),
    ],
    "errors": [
        ("training", "raise KeyboardInterrupt"),
        ("factory", "raise KeyboardInterrupt"),
        ("training", "raise GeneratorExit"),
        ("evaluation", "raise BaseException('no')"),
    ],
    "limits": [
        ("training", "recurse()"),
        ("training", "allocate()"),
        ("training", "kept = [os.open('/dev/null', 0) for _ in range(1 << 20)]"),
        ("training", "os.close(1); os.close(2); raise ValueError('no')"),
    ],
    "process": [
        ("training", "fork_and_forget(); os._exit(0)"),
        ("training", "signal.signal(signal.SIGUSR2, signal.SIG_IGN); deadlock()"),
        ("training", "builtins.isinstance = None"),
        ("training", "sys.modules.clear()"),
    ],
}
"""What is put into the first seeds, by the name of the run."""

HARMLESS = [
    ("training", "os.fork()"),
    ("training", "fork_and_forget(); kill(signal.SIGTERM); kill(signal.SIGINT)"),
    ("training", "[threading.Thread(target=time.sleep, args=(5,)).start() for _ in range(50)]"),
    (
        "training",
        "os.chdir('/'); os.environ.clear(); gc.disable(); sys.stdout = sys.stderr = None\n"
        "warnings.simplefilter('error'); np.random.seed(1); signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    ),
]
"""What seeds may do to their worker without being lost."""

ROWS = [
    *(Row(place, HANG, KILLED) for place in ("act", "learn", "reward", "step", "health", "configured")),
    *(Row(place, HANG, KILLED) for place in ("stage", "report", "before", "after", "finished")),
    *(Row(place, HANG, FAILS) for place in ("host", "losses", "schedule")),
    Row("hear", HANG, 0, "did not close within 15 seconds and is abandoned"),
    Row("act", "deadlock()", KILLED, engine="threads"),
    Row("scores", HANG, KILLED, engine="threads"),
    *(Row(place, NULL, CRASHES) for place in ("act", "hear", "step")),
    Row("host", NULL, CRASHES, engine="threads"),
    Row("host", NULL, FAILS),
    Row("losses", LEAVE, FAILS),
    *(Row(place, LEAVE, PLUGIN_FAILS) for place in ("import", "info", "split", "policy", "act", "before")),
    *(Row(place, "sys.exit(0)", PLUGIN_FAILS) for place in ("registration", "task", "reward", "health", "schedule")),
    *(Row(place, "raise KeyboardInterrupt", 0) for place in ("step", "settle", "report", "close")),
    *(Row(place, "raise KeyboardInterrupt", PLUGIN_FAILS) for place in ("act", "losses", "host")),
    Row("act", "kill(signal.SIGKILL)", KILLED, None),
    Row("act", "kill(signal.SIGTERM)", 143, "interrupted by signal 15"),
    Row("act", "allocate()", PLUGIN_FAILS),
    Row("act", "os.fork()", 0, 'policy "hostile/policy" (local file'),
    Row("step", "os.fork()", 0, 'plugin "hostile" (local file', engine="threads"),
    Row("act", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)", 0, 'policy "hostile/policy" (local file'),
    Row("act", "os.makedirs('gone'); os.chdir('gone'); os.rmdir('../gone')", 0, None),
    Row("step", "shutil.rmtree('runs')", FAILS, "E410 cannot write"),
    Row("hear", "print('x' * 5_000_000)", 0, None),
]


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_lost_and_change_no_other_environment(name: str, processes: Any, calm: World, tmp_path: Path) -> None:
    rows, world = SEEDS[name], World(processes, tmp_path)
    assert world.call(plugin(blocks=dict(enumerate(rows))), "run", "run.yaml") == 0, world.said
    lost = [event for course in world.courses().values() for event in course if event["type"] == "seed-lost"]
    found = sorted((one["arm"], one["seed"], one["blueprint"]) for one in lost)
    assert found == [("own", number, f"hostile/b{number}") for number in range(len(rows))]
    assert all(one["package"].startswith("local file") for one in lost)
    assert world.manifest["status"] == "done"
    assert differing(world, calm) == {("own", number) for number in range(len(rows))}


def test_seeds_that_meddle_with_their_worker_change_nothing(processes: Any, calm: World, tmp_path: Path) -> None:
    world = World(processes, tmp_path)
    assert world.call(plugin(blocks=dict(enumerate(HARMLESS))), "run", "run.yaml") == 0, world.said
    assert differing(world, calm) == set()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_runs_elsewhere_ends_in_bounded_time_and_is_named(
    row: Row, processes: Any, calm: World, tmp_path: Path
) -> None:
    """A run that it ended is resumed with a mended plugin, to the results of one that was never disturbed."""
    world = World(processes, tmp_path)
    assert world.call(plugin({row.place: row.code}), "run", "run.yaml", engine=row.engine) == row.status, world.said
    if row.says is not None:
        world.wait_for(lambda: str(row.says) in world.said)
    if world.path is None:
        return
    if row.status == CRASHES:
        world.wait_for(lambda: world.manifest["status"] == "failed")
    if row.status == 0 or row.place == "finished":
        assert world.manifest["status"] == "done"
    else:
        expected = {143: "interrupted"}.get(row.status, "failed" if row.says else "running")
        assert world.manifest["status"] == expected
        (world.path / "hostile.py").write_text(plugin())
        assert world.call(plugin(), "resume", str(world.path), engine=row.engine) == 0, world.said
    assert world.results() == calm.results()
    assert differing(world, calm) == set()


def differing(world: World, calm: World) -> set[tuple[str, int]]:
    """Return the environments that had another course, by arm and RNG seed."""
    found, expected = world.courses(), calm.courses()
    return {key for key in expected | found if found.get(key) != expected.get(key)}
