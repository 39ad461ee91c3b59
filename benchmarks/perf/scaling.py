"""P11: cost of an environment's step by the number of environments and of seeds that act.

The convolutional host, a batch of 64 to train on and one to validate on, on as many lanes as there are cores, with a
``conv_light`` seed that acts in none, one, two or all three slots; how much the network leans on each is measured in
each step, as in any run. Pools of all sizes take turns; medians over the turns. One environment keeps one core busy, so
it is from two on that the figures should be equal.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.perf.turns import medians, timed
from benchmarks.perf.work import blend_in, conv
from benchmarks.table import Row, Table, answer
from esper_core.app.runtime import one_thread, tune_allocator
from esper_core.trainer.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.perf.work import Work

TURNS: Final = 3
SIZES: Final = (1, 2, 4, 8, 16)
SEEDS: Final = (0, 1, 2, 3)
FLAT: Final = 1.10
"""Largest factor between the most environments and two that still counts as flat."""


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure every number of seeds with every number of environments."""
    tune_allocator()
    sizes, turns, work = ((1, 2), 1, conv(1, 1, 8)) if quick else (SIZES, TURNS, conv(1, 1, 64))
    rows: list[Row] = []
    with one_thread():
        for seeds in (0, 3) if quick else SEEDS:
            each = milliseconds(work, sizes, seeds, turns)
            named = f"{seeds} seed{'' if seeds == 1 else 's'}"
            rows += [Row(f"{named}, environments: {size}", each[size], None, "ms", 1) for size in sizes]
            rows.append(Row(f"{named}, {sizes[-1]} against 2", each[sizes[-1]] / each[2], FLAT, "×"))
    return [Table("P11", "time for each environment's step, conv host", rows)]


def milliseconds(work: Work, sizes: Sequence[int], seeds: int, turns: int) -> dict[int, float]:
    """Return, for each number of environments, the time of a step per environment."""
    with ExitStack() as open_:
        pools = {}
        for size in sizes:
            pool = pools[size] = Pool(work.as_run(), ["grown"], size, lanes=None)
            open_.callback(pool.close)
            pool.reset(0, 0)
            blend_in(pool, list(work.slots)[:seeds])
        took = medians({str(size): timed(partial(step, pool)) for size, pool in pools.items()}, turns, warm=1)
    return {size: 1e3 * took[str(size)] / size for size in sizes}


def step(pool: Pool) -> None:
    """Train, evaluate, and read the measurements."""
    pool.train(0)
    pool.evaluate(0)
    pool.synchronise(0)


if __name__ == "__main__":
    sys.exit(answer(measure))
