"""Round after round in the same pool: nothing piles up, nothing slows down, and at the end nothing is left."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from esper_core.leyline import WAIT, Action, Op
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool

STATM = Path("/proc/self/statm")
Make = Callable[..., Recipe]
LIFE = [
    Action(Op.GERMINATE, "early", "test/local-conv"),
    WAIT,
    Action(Op.ADVANCE, "early"),
    WAIT,
    Action(Op.PRUNE, "early"),
    Action(Op.GERMINATE, "early", "test/local-conv"),
]


@pytest.fixture
def without_gc() -> Iterator[None]:
    """No garbage collector: what is not needed any more has to go by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def play(pool: Pool, round_: int) -> None:
    """One round with seeds that are born, blended, pruned, and left behind."""
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


def timed(pool: Pool, round_: int) -> float:
    began = time.process_time()
    play(pool, round_)
    return time.process_time() - began


def tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident_pages() -> int:
    return int(STATM.read_text().split()[1])


@pytest.mark.usefixtures("without_gc")
def test_b8_pt_04_every_round_leaves_as_many_tensors_as_the_one_before_and_close_frees_everything(make_recipe):
    recipe = make_recipe(steps=len(LIFE), batches=1)
    first = Pool(recipe, ["grown"], 1)
    play(first, 0)  # the first optimizer of a process makes torch import more, and an import keeps what it came from
    first.close()
    before, counts = tensors(), []
    pool = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=2)
    for round_ in range(4):
        play(pool, round_)
        counts.append(tensors())
    assert len(set(counts[1:])) == 1
    pool.close()
    assert tensors() == before


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_p8_two_hundred_rounds_neither_grow_nor_slow_down(make_recipe):
    """Nothing piles up in the process, and the old pool is as fast as one that was made just now.

    The two take turns round by round: a machine that is slower after a minute than it was before is slower for both.
    """
    recipe = make_recipe(steps=len(LIFE), batches=2)
    old = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=1)
    pages, counts, things = [], set(), []
    gc.collect()  # what tests before this one left lying about is none of its own
    for round_ in range(200):
        play(old, round_)
        if round_ >= 5:
            pages.append(resident_pages())
            counts.add(tensors())
        if round_ in (50, 199):
            gc.collect()
            things.append(len(gc.get_objects()))
    assert len(counts) == 1
    assert max(pages) <= 1.02 * pages[0]
    assert things[1] <= 1.005 * things[0]

    young = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=1)
    of_old, of_young = [], []
    for round_ in range(5 + 30):
        of_old.append(timed(old, 200 + round_))
        of_young.append(timed(young, 200 + round_))
    assert statistics.median(of_old[5:]) == pytest.approx(statistics.median(of_young[5:]), rel=0.10)
