"""A loop that is stopped and resumed from a checkpoint ends with the numbers that it would have had."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from core_worlds import same

from esper_core import EsperError
from esper_core.growth import slots_of
from esper_core.leyline import Action, Op

MakeLoop = Callable[..., Any]


def write(loop: Any, file: Path) -> None:
    states = {"gardener": loop.gardener.state_dict(), "optimizer": loop.optimizer.state_dict()}
    torch.save({**states, "model": loop.model.state_dict(), "random": torch.get_rng_state()}, file)


def read(loop: Any, file: Path) -> None:
    states = torch.load(file, weights_only=True)
    loop.gardener.load_state_dict(states["gardener"])
    loop.model.load_state_dict(states["model"])
    loop.optimizer.load_state_dict(states["optimizer"])
    torch.set_rng_state(states["random"])


@pytest.mark.parametrize(
    "epochs", [1, 3, 4, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_resumed_loop_has_the_same_numbers_to_the_bit(make_loop, tmp_path, epochs):
    whole, first, second = (make_loop().tended() for _ in range(3))
    random = torch.get_rng_state()
    expected = list(map(str, whole.epochs(7)))
    torch.set_rng_state(random)
    seen = list(map(str, first.epochs(epochs)))
    write(first, tmp_path / "checkpoint.pt")
    torch.rand(5)
    read(second, tmp_path / "checkpoint.pt")
    seen += map(str, second.epochs(7 - epochs))
    assert seen == expected
    assert second.is_as(whole.state())
    assert same(slots_of(whole.model).parameters(), slots_of(second.model).parameters())


def test_a_checkpoint_in_the_middle_of_an_epoch_continues_there(make_loop, tmp_path):
    loops = [make_loop().tended() for _ in range(3)]
    whole, first, second = loops
    random = torch.get_rng_state()
    for loop in (whole, first):
        torch.set_rng_state(random)
        loop.epoch()
        loop.train(loop.batches[0])
        loop.gardener.step(loop.batches[0])
    write(first, tmp_path / "checkpoint.pt")
    read(second, tmp_path / "checkpoint.pt")
    random = torch.get_rng_state()
    reports = []
    for loop in (whole, second):
        torch.set_rng_state(random)
        for batch in loop.batches[1:]:
            loop.train(batch)
            loop.gardener.step(batch)
        reports.append(loop.gardener.tend())
    assert reports[0] == reports[1]
    assert second.is_as(whole.state())


def test_seeds_of_several_slots_come_back_in_the_order_in_which_they_joined(make_loop, tmp_path):
    life = {0: Action(Op.GERMINATE, "second", "test/local-conv"), 1: Action(Op.ADVANCE, "second")}
    life[3] = Action(Op.FOSSILISE, "second")
    plan = {**life, **{4 + step: replace(action, slot="first") for step, action in life.items()}}
    loops = [make_loop().tended(plan, slots={"first": "stem.0", "second": "stem.2"}, steps=20) for _ in range(2)]
    loops[0].epochs(9)
    write(loops[0], tmp_path / "checkpoint.pt")
    read(loops[1], tmp_path / "checkpoint.pt")
    orders = [
        [name for own in loop.optimizer.param_groups[0]["params"] for name, one in named if one is own]
        for loop in loops
        for named in [list(loop.model.named_parameters())]
    ]
    assert orders[0] == orders[1]
    assert orders[0] != [name for name, _ in loops[0].model.named_parameters()]


def test_the_wrong_order_of_loading_is_reported(make_loop, tmp_path):
    loop = make_loop().tended()
    loop.epochs(5)
    write(loop, tmp_path / "checkpoint.pt")
    states = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = make_loop().tended()
    with pytest.raises(EsperError, match=r"E348 .*grown model(?s:.)*gardener.load_state_dict"):
        other.optimizer.load_state_dict(states["optimizer"])
    with pytest.raises(EsperError, match="E334"):
        other.gardener.load_state_dict({"plain": {}})
    other.gardener.load_state_dict(states["gardener"])
    with pytest.raises(EsperError, match="E334"):
        other.gardener.load_state_dict(states["gardener"])
