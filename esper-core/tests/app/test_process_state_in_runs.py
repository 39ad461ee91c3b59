"""Whatever a component changes of the process's state, other environments compute the same numbers."""

import random
from pathlib import Path

import pytest
import torch

from esper_core import read_events
from esper_core.leyline.events import StepFinished

MEDDLER = """
import os, random, torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl
from esper_core.leyline import (
    WAIT, Action, HostSpec, Op, PolicySpec, RewardBreakdown, RewardSpec, ScheduleSpec, SinkSpec, TaskSpec
)
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.stripes import stripes

PLACES, RUN = {}, os.getpid()

def meddle(place):
    if place in PLACES:
        if os.getpid() == RUN and place != "host":  # a fork of a process that computed with two threads cannot
            torch.set_num_threads(2)
        torch.set_flush_denormal(True)
        if place not in ("import", "registration", "sink"):
            random.seed(3)
            os.chdir("/")

meddle("import")

class Block(nn.Conv1d):
    def forward(self, inputs):
        meddle("blueprint")
        return super().forward(inputs)

class Host(PointwiseMlp):
    def forward(self, inputs):
        meddle("host")
        return super().forward(inputs)

class Task:
    def __init__(self):
        self.own = stripes()
        self.metric, self.shape, self.scores = self.own.metric, self.own.shape, self.own.scores
    def split(self, name):
        meddle("split")
        return self.own.split(name)
    def losses(self, outputs, targets):
        meddle("task")
        return self.own.losses(outputs, targets)

class Schedule:
    def factor(self, step, steps):
        meddle("schedule")
        return 1.0

class Policy:
    def __init__(self, space): pass
    def act(self, observations, masks):
        meddle("policy")
        wanted = [Action(Op.GERMINATE, "early", "meddler/block"), Action(Op.ADVANCE, "early")]
        return [next((one for one in wanted if mask.allows(one)), WAIT) for mask in masks]

class Reward:
    def __init__(self, metric): pass
    def score(self, *signals):
        meddle("reward")
        return RewardBreakdown({})

class Sink:
    def __init__(self, run): pass
    def hear(self, event): meddle("sink")
    def settle(self): pass
    def close(self): pass

def factory(site):
    meddle("factory")
    return Block(site.channels, site.channels, 1)

@hookimpl
def esper_register_blueprints(registry):
    meddle("registration")
    registry.add("block", factory, BlueprintSpec("sequence", "c*c + c"))
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
def esper_step_finished(events): meddle("observer")
@hookimpl
def esper_check_health(snapshot): meddle("health")
@hookimpl
def esper_report_sections(run): meddle("section")
@hookimpl(wrapper=True)
def esper_run(context):
    meddle("wrapper")
    return (yield)
"""

CONFIGURATION = """
task: meddler/task
host: meddler/host
slots: {early: {at: stem, blueprints: [meddler/block]}}
policy: meddler/policy
reward: meddler/reward
sinks: [meddler/sink]
optimizer: {host: {schedule: meddler/schedule}}
environments: 2
episode: {steps: 4, batches: 2, batch_size: 20}
growth: {gates: "off"}
capacity: false
plugins: {local: [meddler.py]}
"""

FLAGS = ["changed torch's thread count from", "changed torch's flushing of denormal numbers"]
REST = ["uses Python's random generator", "changed the current folder"]

PLACES = {
    "import": "plugin",
    "registration": "plugin",
    "split": "task",
    "factory": "blueprint",
    "blueprint": "blueprint",
    "host": "host",
    "task": "task",
    "schedule": "schedule",
    "policy": "policy",
    "reward": "reward",
    "sink": "sink",
    "observer": "plugin",
    "health": "plugin",
    "section": "plugin",
    "wrapper": "plugin",
}
"""The places in which the plugin meddles, and the kind of component that is named."""

IN_ENVIRONMENTS = ["factory", "blueprint", "task", "schedule"]
EXPECTED: dict[str, list[str]] = {}
"""What the environments of each arm measured where nothing meddled."""


@pytest.fixture
def meddled(tmp_path, run_file, caplog, monkeypatch):
    """``meddled(places, *overrides)``: the warnings of a run, and what the environments of each arm measured."""
    monkeypatch.chdir(tmp_path)

    def run(places, *overrides):
        (tmp_path / "meddler.py").write_text(MEDDLER.replace("PLACES, RUN = {}", f"PLACES, RUN = {places}"))
        (tmp_path / "run.yaml").write_text(CONFIGURATION)
        before = torch.get_num_threads(), random.getstate(), Path.cwd()
        path = run_file(tmp_path / "run.yaml", *overrides)
        assert (torch.get_num_threads(), random.getstate(), Path.cwd()) == before
        seen: dict[str, list[str]] = {}
        for event in read_events(path / "events.jsonl"):
            if isinstance(event, StepFinished):
                seen.setdefault(event.arm, []).append(repr(event.signals))
        messages = [one.getMessage().partition("\n")[0] for one in caplog.records]
        return [message for message in messages if message.startswith("E237")], seen

    return run


@pytest.mark.members
@pytest.mark.parametrize(
    ("places", "overrides"),
    [
        ([one for one in PLACES if one not in (*IN_ENVIRONMENTS, "host")], ("engine=threads", "lanes=1")),
        (IN_ENVIRONMENTS, ("engine=threads", "lanes=1")),
        (IN_ENVIRONMENTS, ("engine=threads", "lanes=2")),
        (IN_ENVIRONMENTS, ("engine=processes", "lanes=2")),
        (["host"], ("engine=threads", "lanes=1")),
    ],
)
def test_state_of_the_process_is_put_back_and_the_component_named(places, overrides, meddled):
    if not EXPECTED:
        told, seen = meddled([])
        assert told == []
        EXPECTED.update(seen)
    told, seen = meddled(places, *overrides)
    assert seen == EXPECTED
    for place in places:
        named = [message for message in told if f'{PLACES[place]} "meddler' in message and "(local file" in message]
        changes = FLAGS[place in ("host", "sink") or "processes" in overrides[0] :]
        if place not in ("import", "registration", "sink"):
            changes = [*changes, *REST]
        assert [change for change in changes if not any(change in message for message in named)] == []
