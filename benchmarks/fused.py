"""Equal networks as one program, against one after another: ``python -m benchmarks.fused``, about two minutes.

A step is 32 training batches of 100 examples and the validation of 800, on MNIST-1D; ``conv`` has images and takes the
usual way. Both ways step in turn, on one thread; each figure is the median over pairs of CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Final

import torch

from benchmarks.perf.workloads import SEED, conv, one_d
from esper_core.leyline import Action, Op, SlotPlace
from esper_core.settings import ComputeConfig
from esper_core.trainer.groups import Groups
from esper_core.trainer.pool import Pool
from esper_run.app.runtime import one_thread, tune_allocator
from esper_tasks.hosts import cnn1d

if TYPE_CHECKING:
    from benchmarks.perf.workloads import Workload

NETWORKS: Final = (1, 8, 32)
PAIRS: Final = 7
"""Steps of each way that count, after one that warms up."""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=NETWORKS, help="sizes of groups (default: 1 8 32)")
    parser.add_argument("--hosts", nargs="+", help="names of hosts as the table has them (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which only show that it runs")
    parsed = parser.parse_args()
    tune_allocator()
    work = one_d(1, 500) if parsed.quick else one_d()
    shape = work.task.shape
    hosts: dict[str, Workload] = {
        "pointwise-mlp": work,
        "… with a conv_light": work,
        "cnn1d": replace(work, build_host=lambda: cnn1d(shape), slots={"early": SlotPlace("early")}),
        "conv": conv(1, 1, 8) if parsed.quick else conv(4, 2),
    }
    print(f"torch {torch.__version__}, CPU milliseconds per network and step\n")
    print(f"{'host':22}{'networks':>9}{'in turn':>10}{'fused':>10}{'times as fast':>15}  way")
    with one_thread():
        for name, workload in hosts.items():
            for networks in parsed.networks if parsed.hosts is None or name in parsed.hosts else ():
                measure(name, workload, networks, 1 if parsed.quick else PAIRS)


def measure(name: str, work: Workload, networks: int, pairs: int) -> None:
    """Print how long both ways take for so many networks."""
    with ExitStack() as pools:
        ways = [
            pools.enter_context(closing(Pool(work.recipe(compute=ComputeConfig(fused=fused)), ["x"], networks)))
            for fused in (False, True)
        ]
        for pool in ways:
            pool.reset(0, 0)
            if name.startswith("…"):
                grow(pool)
        seconds = [[step(pool, number) for pool in ways] for number in range(1 + pairs)][1:]
        plain, fused = (1e3 * median(times) / networks for times in zip(*seconds, strict=True))
        ratio = median(plain / fused for plain, fused in seconds)
        way = Groups(ways[1].environments[0].recipe).describe(ways[1].environments)
        print(f"{name:22}{networks:9}{plain:10.1f}{fused:10.1f}{ratio:15.2f}  {way}", flush=True)


def grow(pool: Pool) -> None:
    """Fossilise a ``conv_light`` behind the first layer of every host."""
    for number, op in enumerate((Op.GERMINATE, Op.ADVANCE, Op.FOSSILISE)):
        pool.apply([Action(op, "early", SEED, speed=0)] * len(pool.environments), number)
        pool.train(number)


def step(pool: Pool, number: int) -> float:
    """Train and evaluate every network for a step, and return the CPU seconds."""
    began = time.process_time()
    pool.train(number)
    pool.evaluate(number)
    pool.synchronise(number)
    return time.process_time() - began


if __name__ == "__main__":
    main()
