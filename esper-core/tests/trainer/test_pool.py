"""The pool: the order of its environments, and round after round without leftovers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from esper_core.leyline import Action, Op
from esper_core.trainer.pool import Pool

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
