"""Time the steps of several trainings in a process of their own, since threads and allocator belong to a process.

``Workers(Setup(...))`` starts a process, which computes only when it is asked for a step. The time of the first step
includes the wait until the process is ready, and must not be counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import torch

from benchmarks.perf.workloads import NarrowConvLight, PlainLoop, activate_seeds, workload
from esper_core.trainer.pool import Pool
from esper_run.app.runtime import tune_allocator
from esper_run.engines import PoolRequest
from esper_scale.engines.processes import ForkEngine
from esper_scale.engines.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.perf.workloads import Workload

ROOT: Final = Path(__file__).parents[2]
CORES: Final = 2
SETTINGS: Final = ("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Prefixes of environment variables that change threads or the allocator. No worker inherits one."""


@dataclass(frozen=True)
class Setup:
    """What a worker runs.

    program: ``loop`` is a hand-written loop that steps the trainings one after the other; ``threads`` and
    ``processes`` are Esper's environments on lanes of that kind.
    seeds: three acting seeds, each of which is also left out once in the evaluation. train_only: do not evaluate.
    """

    program: Literal["loop", "threads", "processes"]
    work: str
    trainings: int = 4
    lanes: int = CORES
    seeds: bool = False
    train_only: bool = False
    quick: bool = False


class Workers:
    """One process per setup. All of them take each step at the same time."""

    def __init__(self, *setups: Setup) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.perf.processes", json.dumps(asdict(setup))],
                cwd=ROOT,
                env=clean,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for setup in setups
        ]

    def seconds(self) -> float:
        """Take a step; return the seconds until the last process has finished."""
        begin = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("step\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                msg = f"a benchmark worker ended early; its own message is above. Received: {process.args!r}"
                raise RuntimeError(msg)
        return time.perf_counter() - begin

    def close(self) -> None:
        """Close the pipes, which ends the processes, and wait for them."""
        for process in self._processes:
            with process:
                pass


@contextmanager
def stepping(setup: Setup, work: Workload) -> Iterator[Callable[[], object]]:
    """Yield a function that takes one step of all trainings."""
    if setup.program == "loop":
        loops = [PlainLoop(work, channels_last=work.name == "conv", seeds=setup.seeds) for _ in range(setup.trainings)]

        def step_loops() -> None:
            for loop in loops:
                loop.train()
                if not setup.train_only:
                    loop.evaluate_all()

        yield step_loops
        return
    # Without averages of weights, as in the loops beside them: P19 has what these cost.
    recipe = work.recipe(channels_last=True, seed=NarrowConvLight, average=0.0)
    pool: Pool | WorkerPool
    if setup.program == "threads":
        pool = Pool(recipe, ["grown"], setup.trainings, lanes=setup.lanes)
    else:
        engine = ForkEngine(recipe)
        pool = WorkerPool(
            engine, PoolRequest(["grown"], None), setup.trainings, workers=setup.lanes, warn=recipe.reports.warn
        )
    with closing(pool):
        pool.reset(0, 0)
        activate_seeds(pool, list(work.slots) if setup.seeds else [])

        def step() -> None:
            pool.train(0)
            if not setup.train_only:
                pool.evaluate(0)
                pool.synchronise(0)

        yield step


def main(described: str) -> int:
    """Take a step for every line of input, and confirm it, until the input ends."""
    setup = Setup(**json.loads(described))
    torch.set_num_threads(1)
    tune_allocator()
    with stepping(setup, workload(setup.work, quick=setup.quick)) as step:
        for _ in sys.stdin:
            step()
            sys.stdout.write("done\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
