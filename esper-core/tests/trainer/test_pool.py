"""The pool: the order of its environments, and round after round without leftovers."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_core.leyline import Action, Op
from esper_core.trainer.pool import Pool

STATM = Path("/proc/self/statm")
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv")
LIFE = {0: GERMINATE, 2: Action(Op.ADVANCE, "early"), 4: Action(Op.PRUNE, "early", speed=0), 5: GERMINATE}


def test_b8_drl_03_arms_are_interleaved_and_take_turns_in_being_first(make_recipe):
    pool = Pool(make_recipe(), ["a", "b", "twin"], 2)
    pool.reset(0, 4)
    assert [(e.arm, e.seed) for e in pool.environments] == [
        ("a", 4), ("b", 4), ("twin", 4), ("a", 5), ("b", 5), ("twin", 5),
    ]  # fmt: skip
    firsts = [pool.turns(step)[0].arm for step in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "twin", "twin"]


@pytest.fixture
def without_gc() -> Iterator[None]:
    """No garbage collector: what is not needed any more has to be freed by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def play_round(play) -> Callable[[Pool, int], Any]:
    """``play_round(pool, number)``: a round with seeds that are born, blended, pruned, and left in the end."""

    def play_round(pool: Pool, number: int) -> None:
        pool.reset(number, 10 * number)
        play(pool, range(6), LIFE, lambda signals: None)
        pool.conclude(5)

    return play_round


def tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident_pages() -> int:
    return int(STATM.read_text().split()[1])


@pytest.mark.usefixtures("without_gc")
def test_b8_pt_04_every_round_leaves_as_many_tensors_as_the_one_before_and_close_frees_all(make_recipe, play_round):
    recipe = make_recipe(batches=1, embargo=0)
    first = Pool(recipe, ["grown"], 1)
    play_round(first, 0)  # the first optimizer of a process makes torch import more, and an import keeps some tensors
    first.close()
    before, counts = tensors(), []
    pool = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=2)
    for number in range(3):
        play_round(pool, number)
        counts.append(tensors())
    assert len(set(counts[1:])) == 1
    pool.close()
    assert tensors() == before


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_p8_two_hundred_rounds_neither_grow_nor_slow_down(make_recipe, play_round):
    """Nothing accumulates in the process, and the old pool is as fast as one that was made just now.

    The two take turns round by round: a machine that is slower after a minute than it was before is slower for both.
    """
    recipe = make_recipe(batches=2, embargo=0)
    old = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=1)
    pages, counts, things = [], set(), []
    gc.collect()  # tests before this one may have left some
    for number in range(200):
        play_round(old, number)
        if number >= 5:
            pages.append(resident_pages())
            counts.add(tensors())
        if number in (50, 199):
            gc.collect()
            things.append(len(gc.get_objects()))
    assert len(counts) == 1
    assert max(pages) <= 1.02 * pages[0]
    assert things[1] <= 1.005 * things[0]

    pools: list[Any] = [old, Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=1)]
    times: list[list[float]] = [[], []]
    for number in range(200, 235):
        for pool, own in zip(pools, times, strict=True):
            began = time.process_time()
            play_round(pool, number)
            own.append(time.process_time() - began)
    of_old, of_young = (statistics.median(own[5:]) for own in times)
    assert of_old == pytest.approx(of_young, rel=0.10)
