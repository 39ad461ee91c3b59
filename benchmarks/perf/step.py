"""P1: cost of a training step of an environment, beyond a plain loop written by hand.

Both hosts, Adam, one thread, with and without a tuned allocator: the same on both sides. They take turns, a few batches
at a time; medians over the turns. The seconds are those of one batch. What a run does to images besides, channels last,
stands beside it without a bound: the loop could do that, too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from benchmarks.perf.turns import ALLOCATORS, allocated, medians, timed
from benchmarks.perf.work import PlainLoop, conv, one_d
from benchmarks.table import Row, Table, answer
from esper_core.app.runtime import one_thread
from esper_core.trainer.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.perf.work import Work

TURNS: Final = {"conv": 30, "1-d": 60}
MOST_TIMES: Final = 1.03
MOST_MICROSECONDS: Final = 60.0


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure both hosts under each allocator."""
    works = (conv(1, 1, 8), one_d(1, 500)) if quick else (conv(4), one_d())
    rows: list[Row] = []
    with one_thread():
        for how in ALLOCATORS:
            with allocated(how) as there:
                for work in works if there else ():
                    rows += compared(work, how, 1 if quick else TURNS[work.name])
    return [Table("P1", "train step of one environment without seeds, one lane, against a plain loop", rows)]


def compared(work: Work, allocator: str, turns: int) -> list[Row]:
    """Measure the time of a batch on one host."""
    loop = PlainLoop(work)
    environments = {"esper": Environment(work.recipe(), arm="plain", index=0)}
    if work.name == "conv":
        environments["laid out"] = Environment(work.as_run(), arm="plain", index=0)
    for environment in environments.values():
        environment.reset(0, 0)
    sides = {"plain": timed(loop.train)} | {name: timed(one.train) for name, one in environments.items()}
    took = {side: seconds / work.batches for side, seconds in medians(sides, turns).items()}
    for environment in environments.values():
        environment.close()
    plain, own, where = took["plain"], took["esper"], f"{work.name}, {allocator} allocator"
    if work.name == "conv":
        return [
            Row(f"{where}: plain loop, one batch", 1e3 * plain, None, "ms"),
            Row(f"{where}: environment against it", own / plain, MOST_TIMES, "×", 3),
            Row(f"{where}: environment with channels last", took["laid out"] / plain, None, "×", 3),
        ]
    return [
        Row(f"{where}: plain loop, one batch", 1e6 * plain, None, "µs", 0),
        Row(f"{where}: environment, beyond that", 1e6 * (own - plain), MOST_MICROSECONDS, "µs", 0),
    ]


if __name__ == "__main__":
    sys.exit(answer(measure))
