"""P8: memory of a long study against a short one: resident memory and live tensors, round 50 against round 5.

Two environments of two arms on the small host and a part of its data, on two lanes. In each round seeds are born,
blended in, pruned, and dropped. The garbage collector is off: memory must be freed by reference counts alone.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from benchmarks.perf.work import SEED, one_d
from benchmarks.table import Row, Table, answer
from esper_core.app.runtime import one_thread, tune_allocator
from esper_core.leyline import WAIT, Action, Op
from esper_core.trainer.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

STATM: Final = Path("/proc/self/statm")
ROUNDS: Final = (5, 50)
MOST_PERCENT: Final = 2.0
LIFE: Final = (
    Action(Op.GERMINATE, "early", SEED),
    WAIT,
    Action(Op.ADVANCE, "early"),
    WAIT,
    Action(Op.PRUNE, "early"),
    Action(Op.GERMINATE, "early", SEED),
)


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure a study of so many rounds at two times."""
    first, last = (1, 2) if quick else ROUNDS
    tune_allocator()
    gc.collect()
    gc.disable()
    try:
        with one_thread():
            seen = looks(first, last)
    finally:
        gc.enable()
    (pages, tensors), (pages_later, tensors_later) = seen
    what = f"after round {last} and round {first}"
    rows = [Row(f"live tensors {what}: difference", abs(tensors_later - tensors), 0, "", 0)]
    if pages:
        differs = 100 * abs(pages_later / pages - 1)
        rows.append(Row(f"resident memory {what}: difference", differs, MOST_PERCENT, "%"))
    note = "" if pages else "resident memory is not told on this system"
    return [Table("P8", "memory of a long study", rows, note)]


def looks(first: int, last: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return resident pages and live tensors after the ``first`` and after the ``last`` round, counted from 1."""
    pool = Pool(one_d(2, 500).recipe(), ["grown", "twin"], 2, twin="twin", lanes=2)
    seen = []
    for round_ in range(last):
        play(pool, round_)
        if round_ + 1 in (first, last):
            seen.append((resident_pages(), live_tensors()))
    pool.close()
    return seen[0], seen[1]


def play(pool: Pool, round_: int) -> None:
    """Run one round."""
    pool.reset(round_, 10 * round_)
    for step, wanted in enumerate(LIFE):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.heal(step)
        pool.carry_out(pool.judge({}), step)
        masks = zip(pool.environments, pool.masks(), strict=True)
        pool.apply([wanted if one.arm == "grown" and mask.allows(wanted) else WAIT for one, mask in masks], step)
    pool.conclude(len(LIFE) - 1)


def live_tensors() -> int:
    """Count the tensors that Python knows of."""
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident_pages() -> int:
    """Return the resident memory pages of this process; 0 if the system does not report them."""
    return int(STATM.read_text(encoding="ascii").split()[1]) if STATM.exists() else 0


if __name__ == "__main__":
    sys.exit(answer(measure))
