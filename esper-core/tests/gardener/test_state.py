"""A loop that is stopped and resumed from a checkpoint ends with the numbers that it would have had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_core import EsperError
from esper_core.growth import slots_of
from esper_core.leyline import Action, Op

MakeLoop = Callable[..., Any]


def write(loop: Any, file: Path) -> None:
    """Write a checkpoint as a user's loop does."""
    states = {"gardener": loop.gardener.state_dict(), "optimizer": loop.optimizer.state_dict()}
    torch.save({**states, "model": loop.model.state_dict(), "random": torch.get_rng_state()}, file)


def read(loop: Any, file: Path) -> None:
    states = torch.load(file, weights_only=True)
    loop.gardener.load_state_dict(states["gardener"])
    loop.model.load_state_dict(states["model"])
    loop.optimizer.load_state_dict(states["optimizer"])
    torch.set_rng_state(states["random"])


@pytest.mark.parametrize("epochs", range(1, 6))
def test_a_resumed_loop_has_the_same_numbers_to_the_bit(make_loop: MakeLoop, tmp_path: Path, epochs: int) -> None:
    whole, first, second = (make_loop().tended() for _ in range(3))
    random = torch.get_rng_state()
    expected = [str(whole.epoch()) for _ in range(7)]
    torch.set_rng_state(random)
    seen = [str(first.epoch()) for _ in range(epochs)]
    write(first, tmp_path / "checkpoint.pt")
    torch.rand(5)
    read(second, tmp_path / "checkpoint.pt")
    seen += [str(second.epoch()) for _ in range(epochs, 7)]
    assert seen == expected
    assert second.is_as(whole.state())
    grown = [list(slots_of(loop.model).parameters()) for loop in (whole, second)]
    assert all(torch.equal(one, other) for one, other in zip(*grown, strict=True))


def test_a_checkpoint_in_the_middle_of_an_epoch_continues_there(make_loop: MakeLoop, tmp_path: Path) -> None:
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


def test_seeds_of_several_slots_come_back_in_the_order_in_which_they_joined(
    make_loop: MakeLoop, tmp_path: Path
) -> None:
    germinate = [Action(Op.GERMINATE, slot, "test/local-conv") for slot in ("first", "second")]
    fossilise = [Action(Op.FOSSILISE, slot) for slot in ("first", "second")]
    advance = [Action(Op.ADVANCE, slot) for slot in ("first", "second")]
    plan = {0: germinate[1], 1: advance[1], 3: fossilise[1], 4: germinate[0], 5: advance[0], 7: fossilise[0]}
    loops = [make_loop().tended(plan, slots={"first": "stem.0", "second": "stem.2"}, steps=20) for _ in range(2)]
    for _ in range(9):
        loops[0].epoch()
    write(loops[0], tmp_path / "checkpoint.pt")
    read(loops[1], tmp_path / "checkpoint.pt")
    orders = [
        [name for own in loop.optimizer.param_groups[0]["params"] for name, one in named if one is own]
        for loop in loops
        for named in [list(loop.model.named_parameters())]
    ]
    assert orders[0] == orders[1]
    assert orders[0] != [name for name, _ in loops[0].model.named_parameters()]


def test_the_wrong_order_of_loading_is_reported(make_loop: MakeLoop, tmp_path: Path) -> None:
    loop = make_loop().tended()
    for _ in range(5):
        loop.epoch()
    write(loop, tmp_path / "checkpoint.pt")
    states = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = make_loop().tended()
    with pytest.raises(EsperError, match=r"E348 .*had grown(?s:.)*gardener.load_state_dict"):
        other.optimizer.load_state_dict(states["optimizer"])
    with pytest.raises(EsperError, match="E334"):
        other.gardener.load_state_dict({"plain": {}})
    other.gardener.load_state_dict(states["gardener"])
    with pytest.raises(EsperError, match="E334"):
        other.gardener.load_state_dict(states["gardener"])
