"""P5 and P7 to P10: what commands, runs and rounds take."""

import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

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
