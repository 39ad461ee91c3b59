"""Time the steps of several trainings in a process of their own, since threads and allocator belong to a process.

``Worker(Setup(...))`` starts a process, which computes only when it is asked for a step. The time of the first step
includes the wait until the process is ready, and must not be counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import torch

from benchmarks.perf.workloads import NarrowConvLight, PlainLoop, activate_seeds, workload
from esper_core.app.runtime import tune_allocator
from esper_core.trainer.pool import Pool
from esper_core.trainer.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from benchmarks.perf.workloads import Workload

ROOT: Final = Path(__file__).parents[2]
CORES: Final = 2
SETTINGS: Final = ("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Prefixes of environment variables that change threads or the allocator. No worker inherits one."""


@dataclass(frozen=True)
class Setup:
    """What a worker runs.

    program: ``loop`` is a hand-written loop that steps the trainings one after the other; ``threads`` and
    ``processes`` are Esper's environments on lanes of that kind. threads: torch's threads per lane or loop.
    seeds: three acting seeds, each of which is also left out once in the evaluation. train_only: do not evaluate.
    """

    program: Literal["loop", "threads", "processes"]
    work: str
    trainings: int = 4
    channels_last: bool = True
    tuned: bool = True
    threads: int = 1
    lanes: int = CORES
    seeds: bool = False
    train_only: bool = False
    quick: bool = False


class Worker:
    """A process that takes a step whenever it is asked to."""

    def __init__(self, setup: Setup) -> None:
        command = [sys.executable, "-m", "benchmarks.perf.processes", json.dumps(asdict(setup))]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self) -> None:
        """Ask for a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()

    def finish(self) -> float:
        """Wait for the end of the step; return its duration in seconds."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            msg = f"a benchmark worker ended early; its own message is above. Received: {self._process.args!r}"
            raise RuntimeError(msg)
        return float(line)

    def seconds(self) -> float:
        """Return the duration of one step."""
        self.begin()
        return self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # closes both pipes, which ends the process, and waits for it
            pass


class WorkerGroup:
    """Workers that take each step at the same time: the limit of what several processes can reach."""

    def __init__(self, *setups: Setup) -> None:
        with ExitStack() as stack:
            self._workers = [stack.enter_context(Worker(setup)) for setup in setups]
            self._stack = stack.pop_all()

    def seconds(self) -> float:
        """Return the time until the last worker has finished."""
        begin = time.perf_counter()
        for worker in self._workers:
            worker.begin()
        for worker in self._workers:
            worker.finish()
        return time.perf_counter() - begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextmanager
def stepping(setup: Setup, work: Workload) -> Iterator[Callable[[], object]]:
    """Yield a function that takes one step of all trainings."""
    if setup.program == "loop":
        loops = [
            PlainLoop(work, channels_last=setup.channels_last and work.name == "conv", seeds=setup.seeds)
            for _ in range(setup.trainings)
        ]

        def step_loops() -> None:
            for loop in loops:
                loop.train()
                if not setup.train_only:
                    loop.evaluate_all()

        yield step_loops
        return
    recipe = work.recipe(channels_last=setup.channels_last, seed=NarrowConvLight)
    pool: Pool | WorkerPool
    if setup.program == "threads":
        pool = Pool(recipe, ["grown"], setup.trainings, lanes=setup.lanes)
    else:
        pool = WorkerPool(recipe, ["grown"], setup.trainings, processes=setup.lanes)
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
    """Take a step for every input line and print its duration, until the input ends."""
    setup = Setup(**json.loads(described))
    torch.set_num_threads(setup.threads)
    if setup.tuned:
        tune_allocator()
    with stepping(setup, workload(setup.work, quick=setup.quick)) as step:
        for _ in sys.stdin:
            begin = time.perf_counter()
            step()
            sys.stdout.write(f"{time.perf_counter() - begin}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
