"""Batches of any structure, and models that take several inputs."""

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from core_worlds import Net
from torch import Tensor, nn

from esper_core import graft
from esper_core.growth import Example, slots_of

Pair = namedtuple("Pair", ["inputs", "targets"])


@dataclass
class Record:
    inputs: Tensor
    targets: Tensor
    name: str = "bumps"


BATCHES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "tuple": (lambda inputs, targets: (inputs, targets), lambda batch: batch),
    "named tuple": (Pair, lambda batch: (batch.inputs, batch.targets)),
    "dict": (lambda x, y: {"x": x, "y": y, "name": "few"}, lambda batch: (batch["x"], batch["y"])),
    "user dict": (lambda x, y: UserDict(x=x, y=y), lambda batch: (batch["x"], batch["y"])),
    "dataclass": (Record, lambda batch: (batch.inputs, batch.targets)),
    "nested": (lambda x, y: [{"x": (x,)}, y], lambda batch: (batch[0]["x"][0], batch[1])),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_may_have_any_structure(make_loop, kind):
    pack, unpack = BATCHES[kind]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = unpack(batch)
        return nn.functional.cross_entropy(model(inputs), targets, reduction="none")

    loop = make_loop()
    loop.batches = [pack(*batch) for batch in loop.batches]
    loop.validation = [pack(*batch) for batch in loop.validation]
    loop.train = lambda batch: type(loop).train(loop, unpack(batch))
    loop.tended(loss=loss)
    assert loop.epochs(4)[-1].kept


@pytest.mark.parametrize("how", [tuple, dict])
def test_graft_passes_arguments_and_keywords(how):
    def compute(net: Any, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": net.left(left) + net.right(right)}

    given = {"left": torch.randn(5, 4), "right": torch.randn(5, 3)}
    example = given if how is dict else tuple(given.values())
    model = graft(Net(compute, left=nn.Linear(4, 6), right=nn.Linear(3, 6)), ["right"], example=example)
    (slot,) = slots_of(model).each()
    assert slot.site is not None
    assert slot.site.example_shape == (6,)


def test_a_copy_of_an_example_shares_no_tensor():
    batch = {"x": torch.zeros(3, 2), "more": [Record(torch.zeros(3), torch.zeros(3))]}
    example = Example.of(batch)
    copied = example.copy()
    copied["x"] += 1
    copied["more"][0].inputs += 1
    assert not batch["x"].any()
    assert not batch["more"][0].inputs.any()
    assert not example.equals(copied)
    assert example.size == 3
    assert len(example.without_last().batch["more"][0].targets) == 2
