"""The losses of examples are found behind the mean of a batch; where they are not, the mean is returned."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esper_core.gardener.losses import each_example
from esper_core.leyline import Action, Op

OUTPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])
TOKENS = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(2))
SOME = torch.tensor([[0, 1, 2, -100, -100], [0, -100, -100, -100, -100], *[[2, 1, 0, 1, 2]] * 4])


def cross(**settings: Any) -> Tensor:
    return functional.cross_entropy(OUTPUTS, CLASSES, **settings)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (cross, cross(reduction="none")),
        (lambda: torch.nn.CrossEntropyLoss()(OUTPUTS, CLASSES), cross(reduction="none")),
        (lambda: cross(reduction="none").mean(), cross(reduction="none")),
        (lambda: cross().bfloat16(), cross(reduction="none")),
        (lambda: {"loss": cross(), "accuracy": OUTPUTS.gt(0).float().mean()}["loss"], cross(reduction="none")),
        (lambda: functional.mse_loss(OUTPUTS, OUTPUTS + 1), torch.ones(6)),
        (lambda: torch.mean(OUTPUTS**2), (OUTPUTS**2).mean(1)),
        (lambda: cross(weight=torch.tensor([1.0, 2.0, 3.0])), None),
        (lambda: functional.cross_entropy(TOKENS.flatten(0, 1), SOME.flatten()), None),
    ],
)
def test_the_losses_behind_a_mean_are_found(loss, expected):
    found = each_example(lambda model, batch: loss(), torch.nn.Identity(), (OUTPUTS, CLASSES))
    assert found.shape == (6,)
    assert found.mean() == pytest.approx(float(loss()), 1e-2 if loss().dtype is torch.bfloat16 else 1e-6)
    if expected is not None:
        assert torch.allclose(found, expected)


@pytest.mark.parametrize(
    "loss", [lambda: cross() + 0.1, lambda: cross(reduction="sum"), lambda: OUTPUTS[:4].mean(), lambda: CLASSES.float()]
)
def test_any_other_loss_is_returned_as_it_is(loss):
    found = each_example(lambda model, batch: loss(), torch.nn.Identity(), (OUTPUTS, CLASSES))
    assert torch.equal(found, loss())


def test_a_mean_is_as_good_as_its_losses(make_loop):
    def mean_of(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    gains = []
    for given in ({}, {"loss": mean_of}):
        loop = make_loop()
        loop.tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")}, **given)
        gains.append([loop.epoch() for _ in range(3)][-1].signals.slots[0].seeds[0].gain)
    assert gains[0].n == gains[1].n == 60
    assert gains[0].mean == pytest.approx(gains[1].mean, 1e-4)
