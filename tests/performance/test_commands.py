"""P5 to P10: what commands, runs, rounds and updates of a policy take."""

import json
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.perf.figures import Figure
from benchmarks.perf.memory import memory_after

ROOT = Path(__file__).parents[2]
PER_ENVIRONMENT = ("govern", "grow", "policy", "telemetry", "other")


def default_run(**settings):
    """Run plugins.yaml with these settings; return its seconds in total and by region."""
    command = [sys.executable, "-m", "esper_run", "run", "plugins.yaml", "--quiet", "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key.replace('__', '.')}={value}"]
    with tempfile.TemporaryDirectory() as runs:
        begin = time.perf_counter()
        done = subprocess.run([*command, "--runs-dir", runs], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return time.perf_counter() - begin, json.loads(done.stdout.splitlines()[-1])["timing"]


def test_decision_step_without_training_and_evaluation(benchmark, record, quick):
    """Few batches, since training is not counted; nor are checkpoints, which P9 measures."""
    environments, steps, runs = (1, 4, 1) if quick else (8, 40, 3)
    settings = {"capacity": "false", "environments": environments, "episode__steps": steps, "episode__batches": 4}
    timings = []
    benchmark.pedantic(lambda: timings.append(default_run(**settings)[1]), rounds=runs)
    together = statistics.median(sum(timing[region] for region in PER_ENVIRONMENT) for timing in timings)
    milliseconds = 1e3 * together / (environments * steps)
    record(Figure("P5", "decision step without training and evaluation, per environment", milliseconds, "ms", 2.0))


@pytest.mark.usefixtures("in_process")
def test_update_of_a_learned_policy(benchmark, record, quick):
    from esper_core.leyline import RewardBreakdown, Rollout, Trajectory, Turn
    from esper_policies.ppo.policy import Ppo
    from esper_testing.policies import episode, space_of

    environments, steps, rounds = 8, 4 if quick else 40, 1 if quick else 5
    space = space_of(2)
    policy, draw, rollouts = Ppo(space), random.Random(0), []

    def observations(seed):
        drawn = []
        while len(drawn) < steps:
            drawn += episode(space, seed + len(drawn))
        seen = [replace(scene.observation, step=step, steps=steps) for step, scene in enumerate(drawn[:steps])]
        return [replace(scene, observation=observation) for scene, observation in zip(drawn, seen, strict=False)]

    def play():
        """Collect a rollout in random states with random rewards; pytest-benchmark does not time this."""
        scenes = [observations(1000 * len(rollouts) + 100 * place) for place in range(environments)]
        turns = [[] for _ in scenes]
        for now in zip(*scenes, strict=True):
            actions = policy.act([scene.observation for scene in now], [scene.mask for scene in now])
            for environment_turns, scene, action in zip(turns, now, actions, strict=True):
                reward = RewardBreakdown({"drawn": draw.gauss(0.0, 1.0)})
                environment_turns.append(Turn(scene.observation, scene.mask, action, reward))
        trajectories = tuple(Trajectory(tuple(environment_turns)) for environment_turns in turns)
        rollouts.append(Rollout("ppo", len(rollouts), trajectories))
        return (rollouts[-1],), {}

    times = []

    def update(rollout):
        begin = time.perf_counter()
        policy.update(rollout)
        times.append(time.perf_counter() - begin)

    benchmark.pedantic(update, setup=play, rounds=rounds)
    record(Figure("P6", "update of `ppo` with 8 environments of 40 steps", statistics.median(times), "s", 1.0))


def test_start_of_commands_that_only_list(compare, record):
    esper = Path(sys.executable).with_name("esper")
    commands = {"bare": [sys.executable, "-c", "pass"], "esper --help": [esper, "--help"]}
    commands |= {"esper plugins list": [esper, "plugins", "list"]}
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    took = compare({name: partial(run, command) for name, command in commands.items()}, 15, warmup=1)
    for name, bound in (("esper --help", 0.15), ("esper plugins list", 0.25)):
        record(Figure("P7", f"`{name}` beyond the bare interpreter", took[name] - took["bare"], "s", bound, 3))


def test_memory_of_many_rounds(benchmark, record, quick):
    rounds = (1, 2) if quick else (5, 50)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        (pages, tensors), (pages_later, tensors_later) = benchmark.pedantic(
            lambda: alone.submit(memory_after, rounds).result(), rounds=1
        )
    record(Figure("P8", "growth in live tensors from round 5 to 50", tensors_later - tensors, "", 0, 0))
    if pages:
        grown = 100 * abs(pages_later / pages - 1)
        record(Figure("P8", "change in resident memory from round 5 to 50", grown, "%", 2.0))


def test_default_run(benchmark, record, quick):
    settings = {"environments": 1, "episode__steps": 4, "episode__batches": 1} if quick else {}
    seconds, timing = benchmark.pedantic(default_run, kwargs=settings, rounds=1)
    share = 100 * (timing.get("checkpoint", 0.0) + timing.get("telemetry", 0.0)) / timing["total"]
    record(Figure("P9", "checkpoints and telemetry, share of the default run", share, "%", 3.0))
    record(Figure("P10", "default run from start to report", seconds, "s", 60.0, 1))
