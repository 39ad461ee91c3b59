"""Time steps of four trainings in a process of their own, since threads and allocator belong to a process.

``Side("plain", "conv")`` starts one and waits until it is ready; it computes only while it is asked.

    plain   one after the other by a loop written by hand, with torch's own threads and glibc as it is
    single  the same loop on one thread
    tuned   the same with glibc set to keep its memory
    spread  Esper's environments on two lanes that are processes, with allocator and layout as a run chooses them
    pool    the same on two lanes that are threads
    alone   the same on one lane
    seeds   the same, with a seed that acts in each of three slots, and an evaluation with each seed left out as well; a
            seed is two convolutions of width 3
    wide    as ``seeds``, with seeds of width 5: ``conv_light``, which the benchmarks plant elsewhere
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.perf.turns import timed
from benchmarks.perf.work import Narrow, PlainLoop, blend_in, conv, one_d
from esper_blueprints.conv_light import ConvLight
from esper_core.app.runtime import tune_allocator
from esper_core.growth import Counterfactuals
from esper_core.trainer.lanes import lanes_for
from esper_core.trainer.pool import Pool
from esper_core.trainer.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from torch import Tensor, nn

    from benchmarks.perf.work import Work
    from esper_core import Site
    from esper_core.trainer.environment import Environment

ENVIRONMENTS: Final = 4
LANES: Final = 2
ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = ("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Beginnings of the names by which an environment changes threads or the allocator: no side has any."""


class Side:
    """A process that takes a step whenever it is asked to."""

    def __init__(self, side: str, work: str, *, quick: bool = False) -> None:
        command = [sys.executable, "-m", "benchmarks.perf.sides", side, work, *(["--quick"] if quick else [])]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._told()

    def seconds(self) -> float:
        """Return the duration of one step there."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            msg = f"a side of the comparison ended before its time. Received: {self._process.args!r}"
            raise RuntimeError(msg)
        return float(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # closes both pipes, at which the process ends, and waits for it
            pass


@contextmanager
def plain(work: Work) -> Iterator[Callable[[], None]]:
    """Yield a function that steps all trainings, one after the other."""
    loops = [PlainLoop(work) for _ in range(ENVIRONMENTS)]

    def step() -> None:
        for loop in loops:
            loop.train()
            loop.evaluate()

    yield step


@contextmanager
def stepping(made: Pool | WorkerPool) -> Iterator[Callable[[], None]]:
    """Yield a function that steps Esper's environments, and reads their measurements once at the end."""

    def step() -> None:
        made.train(0)
        made.evaluate(0)
        made.synchronise(0)

    with closing(made):
        made.reset(0, 0)
        yield step


def pool(work: Work, lanes: int = LANES) -> AbstractContextManager[Callable[[], None]]:
    """Run the environments on lanes of this process."""
    return stepping(Pool(work.as_run(), ["plain"], ENVIRONMENTS, lanes=lanes))


def spread(work: Work) -> AbstractContextManager[Callable[[], None]]:
    """Run the environments in processes, two in each."""
    return stepping(WorkerPool(work.as_run(), ["plain"], ENVIRONMENTS, processes=LANES))


@contextmanager
def seeds(work: Work, seed: Callable[[Site], nn.Module] = Narrow) -> Iterator[Callable[[], None]]:
    """Run with three active seeds, measuring each example's loss with and without each seed."""
    recipe, held_out = work.as_run(seed), work.data["validation"]
    lanes = lanes_for([recipe.device] * ENVIRONMENTS, LANES)
    made = Pool(recipe, ["grown"], ENVIRONMENTS)
    batches = list(zip(held_out.inputs.split(work.batch_size), held_out.targets.split(work.batch_size), strict=True))
    with closing(made):
        made.reset(0, 0)
        blend_in(made, list(work.slots))
        asked = [Counterfactuals(environment.model, deterministic=True) for environment in made.environments]

        def losses(place: int) -> Tensor:
            return all_losses(made.environments[place], asked[place], batches)

        def step() -> None:
            made.train(0)
            torch.stack(lanes.run(range(ENVIRONMENTS), losses)).mean(-1).tolist()

        yield step


def all_losses(
    environment: Environment,
    asked: Counterfactuals,
    batches: Iterable[tuple[Tensor, Tensor]],
) -> Tensor:
    """Return a row of losses for the whole network, and for each seed that is left out."""
    environment.model.eval()
    found = asked.measure(batches, environment.recipe.task.losses)
    environment.model.train()
    assert asked.reason is None, asked.reason
    return torch.stack(list(found.values()))


SIDES: Final[dict[str, Callable[[Work], AbstractContextManager[Callable[[], None]]]]] = {
    "plain": plain,
    "single": plain,
    "tuned": plain,
    "spread": spread,
    "pool": pool,
    "alone": partial(pool, lanes=1),
    "seeds": seeds,
    "wide": partial(seeds, seed=ConvLight),
}
WORKS: Final[dict[str, Callable[..., Work]]] = {"conv": conv, "1-d": one_d}
QUICK: Final[dict[str, dict[str, Any]]] = {
    "conv": {"batches": 1, "validation": 1, "batch_size": 8},
    "1-d": {"batches": 1, "samples": 500},
}


def main(side: str, work: str, *more: str) -> int:
    """Take a step for every input line and print its duration, until the input ends."""
    made = WORKS[work](**(QUICK[work] if more else {}))
    if side != "plain":
        torch.set_num_threads(1)
    if side not in ("plain", "single"):
        tune_allocator()
    with SIDES[side](made) as act:
        act()
        sys.stdout.write("0.0\n")
        sys.stdout.flush()
        step = timed(act)
        for _ in sys.stdin:
            sys.stdout.write(f"{step()}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
