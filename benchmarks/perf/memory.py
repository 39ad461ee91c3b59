"""Memory of a study over many rounds: resident memory and live tensors.

Two environments of two arms on the small host, on two lanes. In each round seeds germinate, are blended in, are pruned,
and are dropped. The garbage collector is off: memory must be freed by reference counts alone.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from benchmarks.perf.workloads import SEED, one_d
from esper_core.leyline import WAIT, Action, Op
from esper_core.trainer.pool import Pool
from esper_run.app.runtime import one_thread, tune_allocator

if TYPE_CHECKING:
    from collections.abc import Sequence

STATM: Final = Path("/proc/self/statm")
LIFE: Final = (
    Action(Op.GERMINATE, "early", SEED),
    WAIT,
    Action(Op.ADVANCE, "early"),
    WAIT,
    Action(Op.PRUNE, "early"),
    Action(Op.GERMINATE, "early", SEED),
)


def memory_after(rounds: Sequence[int]) -> list[tuple[int, int]]:
    """Return resident pages (0 if the system does not report them) and live tensors after each of these rounds."""
    tune_allocator()
    gc.collect()
    gc.disable()
    counts = []
    try:
        with one_thread():
            pool = Pool(one_d(2, 500).recipe(), ["grown", "twin"], 2, twin="twin", lanes=2)
            for number in range(1, max(rounds) + 1):
                play_round(pool, number)
                if number in rounds:
                    pages = int(STATM.read_text(encoding="ascii").split()[1]) if STATM.exists() else 0
                    tensors = sum(issubclass(type(tracked), torch.Tensor) for tracked in gc.get_objects())
                    counts.append((pages, tensors))
            pool.close()
    finally:
        gc.enable()
    return counts


def play_round(pool: Pool, number: int) -> None:
    """Run one round."""
    pool.reset(number, 10 * number)
    for step, action in enumerate(LIFE):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.heal(step)
        pool.carry_out(pool.judge({}), step)
        masks = zip(pool.environments, pool.masks(), strict=True)
        pool.apply(
            [action if environment.arm == "grown" and mask.allows(action) else WAIT for environment, mask in masks],
            step,
        )
    pool.conclude(len(LIFE) - 1)
