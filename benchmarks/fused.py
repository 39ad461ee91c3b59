"""Equal networks as one program, against one after another: ``python -m benchmarks.fused``, about six minutes.

A step is 32 training batches of 100 examples and the validation of 800. Both ways step in turn, on one thread; each
figure is the median over pairs of CPU seconds, or on a GPU (``--device cuda``) of seconds on the clock. Which hosts
take which way follows from this table: the rules in ``esper_core.fused.rows`` and the bounds in
``esper_core.trainer.groups`` leave out what is slower here.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import torch

from benchmarks.perf.workloads import SEED, conv, one_d
from esper_blueprints.plugin import BLUEPRINTS
from esper_core.growth import Variety
from esper_core.leyline import Action, DataShape, Op, SlotPlace, Split
from esper_core.settings import ComputeConfig, GrowthConfig
from esper_core.trainer.pool import Pool
from esper_run.app.runtime import one_thread, tune_allocator
from esper_tasks.hosts import Mlp, TokenMlp, cnn1d, wide_cnn1d
from esper_tasks.supervised import Classification

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from benchmarks.perf.workloads import Workload

ROOT: Final = Path(__file__).parents[1]
ESPER: Final = Path(sys.executable).with_name("esper")

NETWORKS: Final = (1, 8, 32)
PAIRS: Final = 7
"""Steps of each way that count, after one that warms up."""

GROWN, BRANCHED, NURSERY = "… grown with conv_light", "… with one on a branch", "… with 8, all different"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=NETWORKS, help="sizes of groups (default: 1 8 32)")
    parser.add_argument("--hosts", nargs="+", help="names of hosts as the table has them (default: all)")
    parser.add_argument("--device", default="cpu", help="cuda, for groups on a GPU (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which only show that it runs")
    parser.add_argument("--runs", type=int, default=0, help="so many pairs of the default run in place of the table")
    parsed = parser.parse_args()
    for _ in range(parsed.runs):
        compare_runs()
    if parsed.runs:
        return
    tune_allocator()
    device = torch.device(parsed.device)
    print(f"torch {torch.__version__}, {device.type} milliseconds per network and step\n")
    print(f"{'host':25}{'networks':>9}{'in turn':>10}{'fused':>10}{'times as fast':>15}  way")
    with one_thread():
        for name, workload in workloads(quick=parsed.quick).items():
            sizes = parsed.networks if name != NURSERY else parsed.networks[:1]
            for networks in sizes if parsed.hosts is None or name in parsed.hosts else ():
                measure(name, workload, networks, 1 if parsed.quick else PAIRS, device)


def compare_runs() -> None:
    """Run ``plugins.yaml`` both ways, and print the seconds on the clock and of processors, from start to report."""
    took = []
    for fused in ("false", "true"):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as runs:
            words = ["run", "plugins.yaml", "--quiet", "--runs-dir", runs, "--set", f"compute.fused={fused}"]
            subprocess.run([ESPER, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        took.append((time.perf_counter() - began, processors))
    (clock, processors), (clock_fused, processors_fused) = took
    print(
        f"default run: clock {clock_fused:.1f} s against {clock:.1f} s, {clock_fused / clock:.2f} of it;"
        f" processors {processors_fused:.1f} s against {processors:.1f} s, {processors_fused / processors:.2f} of it",
        flush=True,
    )


def workloads(*, quick: bool) -> dict[str, Workload]:
    """Return the hosts of the table, on data of their kinds."""
    work = one_d(1, 500) if quick else one_d()
    batches, shape = work.batches, work.task.shape

    def on(kind: str, example: tuple[int, ...], build: Callable[[DataShape], nn.Module], slot: str) -> Workload:
        data_shape = DataShape(kind, example, 10)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(0)

        def split(count: int) -> Split:
            inputs = torch.randn(count, *example, generator=generator)
            return Split(inputs, torch.randint(10, (count,), generator=generator))

        data = {"train": split(100 * batches), "validation": split(800), "test": split(100)}
        task = Classification(data, kind, classes=10)  # type: ignore[arg-type]
        slots = {"early": SlotPlace(slot)}
        return replace(work, task=task, build_host=partial(build, data_shape), slots=slots)

    return {
        "pointwise-mlp": work,
        GROWN: work,
        BRANCHED: work,
        NURSERY: work,
        "cnn1d": replace(work, build_host=lambda: cnn1d(shape), slots={"early": SlotPlace("early")}),
        "wide-cnn1d": replace(work, build_host=lambda: wide_cnn1d(shape), slots={"early": SlotPlace("early")}),
        "mlp": on("vector", (64,), Mlp, "first"),
        "token-mlp": on("tokens", (16, 8), TokenMlp, "mix"),
        "cnn2d": conv(1, 1, 8) if quick else conv(4, 2),
    }


def measure(name: str, work: Workload, networks: int, pairs: int, device: torch.device) -> None:
    """Print how long both ways take for so many networks."""
    with ExitStack() as pools:
        ways: list[Pool] = []
        for fused in (False, "gpu"):
            recipe = work.recipe(compute=ComputeConfig.model_validate({"fused": fused}), device=device)
            growth = GrowthConfig(incubation="branch", gates="off", average=4, nursery=8)
            varieties = recipe.network.varieties if name in (GROWN, BRANCHED) else {}
            if name == NURSERY:
                varieties = {"early": candidates()}
            settings = replace(recipe.network, growth=growth, varieties=varieties)
            ways.append(pools.enter_context(closing(Pool(replace(recipe, network=settings), ["x"], networks))))
        for pool in ways:
            pool.reset(0, 0)
            if name in (GROWN, BRANCHED):
                grow(pool, (Op.GERMINATE, Op.ADVANCE, Op.FOSSILISE) if name == GROWN else (Op.GERMINATE,))
            for variety in varieties.get("early", ()) if name == NURSERY else ():
                pool.apply([Action(Op.GERMINATE, "early", variety.id)] * networks, 0)
        seconds = [[step(pool, number, device) for pool in ways] for number in range(1 + pairs)][1:]
        plain, fused = (1e3 * median(times) / networks for times in zip(*seconds, strict=True))
        ratio = median(plain / fused for plain, fused in seconds)
        alone = {ways[1].why_alone(environment) for environment in ways[1].environments}
        way = "; ".join(filter(None, alone)) or "as one program"
        print(f"{name:25}{networks:9}{plain:10.1f}{fused:10.1f}{ratio:15.2f}  {way}", flush=True)


def candidates() -> list[Variety]:
    """Return the blueprints for a sequence: eight, which differ in structure."""
    fitting = {name: entry for name, entry in BLUEPRINTS.items() if "sequence" in entry[1].accepts and name != "lora"}
    places = {name: path.split(":") for name, (path, _) in fitting.items()}
    modules = {name: import_module(f"esper_blueprints.{module}") for name, (module, _) in places.items()}
    return [
        Variety(f"blueprints/{name}", spec, getattr(modules[name], places[name][1]))
        for name, (_, spec) in fitting.items()
    ]


def grow(pool: Pool, actions: tuple[Op, ...]) -> None:
    """Germinate a ``conv_light`` behind the first layer of every host, and carry out what follows."""
    for number, op in enumerate(actions):
        pool.apply([Action(op, "early", SEED, speed=0)] * len(pool.environments), number)
        pool.train(number)


def step(pool: Pool, number: int, device: torch.device) -> float:
    """Train and evaluate every network for a step, and return the CPU seconds, or on a GPU those on the clock."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    began = clock()
    pool.train(number)
    pool.evaluate(number)
    pool.synchronise(number)  # which reads the numbers of every network, so that a GPU is waited for
    return clock() - began


if __name__ == "__main__":
    main()
