"""A plugin with a component of each kind, which is harmless but for the code that a test puts at its places."""

import re

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
patience: 5
plugins: {local: [hostile.py]}
"""

PLUGIN = """
import builtins, ctypes, fcntl, gc, os, random, resource, shutil, signal, sys, threading, time, warnings
import numpy as np
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl
from esper_core.leyline import (
    WAIT, Action, HostSpec, Op, PolicySpec, RewardBreakdown, RewardSpec, ScheduleSpec,
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
        return super().forward(inputs)

class Task:
    def __init__(self):
        #at task
        self.stripes = stripes()
        self.metric, self.shape = self.stripes.metric, self.stripes.shape
    def split(self, name):
        #at split
        return self.stripes.split(name)
    def losses(self, outputs, targets):
        if STARTED:
            #at losses
        return self.stripes.losses(outputs, targets)
    def scores(self, outputs, targets):
        if STARTED:
            #at scores
        return self.stripes.scores(outputs, targets)

class Schedule:
    def factor(self, step, steps):
        if STARTED and step == 2:
            #at schedule
        return 1.0

class Policy:
    def __init__(self, space):
        #at policy
        self.learnt = 0
    def act(self, observations, masks):
        if observations[0].step == 2:
            #at act
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
        return RewardBreakdown({})

class Sink:
    def __init__(self, run):
        #at sink
    def hear(self, event):
        if event.type == "step-finished" and event.step == 2:
            #at hear
    def settle(self):
        #at settle
    def close(self):
        #at close

@hookimpl
def esper_register_blueprints(registry):
    #at registration
    for number, block in enumerate(BLOCKS):
        registry.add(f"b{number}", block, BlueprintSpec("sequence"))
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
@hookimpl
def esper_run_started(run):
    global STARTED
    STARTED = True
    #at started
@hookimpl
def esper_run_finished(run, outcome):
    #at finished
@hookimpl
def esper_stage_changed(event):
    #at stage
@hookimpl
def esper_step_finished(events):
    if events[0].step == 3:
        #at step
@hookimpl
def esper_update_finished(event):
    #at update
@hookimpl
def esper_check_health(snapshot):
    if snapshot.signals.step == 2:
        #at health
"""

BLOCK = """
class Block{number}(nn.Conv1d):
    def __init__(self, site):
        super().__init__(site.channels, site.channels, 1)
        if STARTED:
            #at factory
    def forward(self, inputs):
        if STARTED and self.training:
            #at training
        if STARTED and not self.training:
            #at evaluation
        outputs = super().forward(inputs)
        #at outputs
        return outputs
    def state_dict(self, *arguments, **named):
        if STARTED:
            #at state
        return super().state_dict(*arguments, **named)
    def named_parameters(self, *arguments, **named):
        if STARTED:
            #at parameters
        return super().named_parameters(*arguments, **named)
    #at members
"""


def plugin(harm: dict[str, str] | None = None, blocks: dict[int, tuple[str, str]] | None = None) -> str:
    """Return the plugin with code at places, and at places of blueprints by their number; ``pass`` is at the others."""
    blocks = blocks or {}
    definitions = [
        _with(BLOCK.format(number=number), dict([blocks[number]] if number in blocks else []))
        for number in range(ENVIRONMENTS)
    ]
    names = ", ".join(f"Block{number}" for number in range(ENVIRONMENTS))
    return _with(PLUGIN, harm or {}).replace("#blocks", "".join(definitions) + f"\nBLOCKS = [{names}]\n")


def line_of(code: str, text: str) -> int:
    """Return the number of the last line with this code."""
    return max(number for number, line in enumerate(text.splitlines(), 1) if line.strip() == code)


def _with(template: str, harm: dict[str, str]) -> str:
    def put(match: re.Match[str]) -> str:
        code = harm.pop(match["place"], "pass" if match["indent"] else "")
        return "\n".join(match["indent"] + line for line in code.splitlines())

    harm = dict(harm)
    text = re.sub(r"^(?P<indent> *)#at (?P<place>.+)$", put, template, flags=re.MULTILINE)
    assert not harm, harm
    return text
