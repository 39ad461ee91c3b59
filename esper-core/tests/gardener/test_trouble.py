"""The governor restores a model whose training broke, and the loop continues without a seed that failed."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from core_worlds import bad
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from esper_core import EsperError
from esper_core.growth import slots_of
from esper_core.leyline import Action, Op

MakeLoop = Callable[..., Any]


def fill(loop: Any, value: float) -> None:
    with torch.no_grad():
        next(loop.model.parameters()).fill_(value)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad])
def test_a_model_that_is_not_finite_returns_to_a_healthy_state(make_loop, optimizer):
    loop = make_loop(partial(optimizer, lr=1e-2)).tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")})
    loop.epochs(2)
    loop.after.append(partial(fill, loop, torch.nan))
    broken = loop.epoch()
    loop.after.clear()
    assert [act.act for act in broken.governor] == ["roll-back"]
    assert "governor: roll-back" in str(broken)
    assert all(parameter.isfinite().all() for parameter in loop.model.parameters())
    assert not slots_of(loop.model).named("stem").seeds
    after = loop.epoch()
    assert not after.governor
    assert after.signals.finite


def test_a_model_that_cannot_be_healed_stops_the_loop(make_loop):
    loop = make_loop().tended({}, governor={"rollbacks": 0})
    loop.epoch()
    loop.after.append(partial(fill, loop, torch.nan))
    with pytest.raises(EsperError, match="E402"):
        loop.epoch()


def test_a_seed_that_raises_on_its_branch_is_removed_and_the_host_unchanged(make_loop):
    fragile = bad(patience=4)
    plain = make_loop()
    grown = make_loop().tended({0: Action(Op.GERMINATE, "stem", fragile.id)}, blueprints=[fragile])
    lost = []
    for _ in range(4):
        assert grown.stays_as(plain)
        lost += grown.last.lost
    (one,) = lost
    assert "raised ValueError: out of patience" in one.what
    assert not slots_of(grown.model).named("stem").seeds


class DecayingAverage(nn.Module):
    """An average of weights that is built as timm's ModelEmaV3."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module, self.decay = copy.deepcopy(model), 0.999


def test_a_warning_reports_an_average_from_before_growth(make_loop, caplog):
    loop, other = make_loop().tended(), make_loop()
    before, strange = AveragedModel(loop.model), AveragedModel(nn.Linear(2, 2))
    of_timm = DecayingAverage(loop.model)
    loop.epochs(3)
    assert not caplog.records
    loop.epoch()
    after = AveragedModel(loop.model)
    assert {record.getMessage().partition(")")[0] for record in caplog.records} == {
        "E349 an average of the weights (AveragedModel",
        "E349 an average of the weights (DecayingAverage",
    }
    assert len(list(before.parameters())) < len(list(after.parameters()))
    del before, strange, other, of_timm


def test_an_error_of_the_loss_in_tend_is_raised_as_it_is(make_loop):
    calls = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) > 40:
            raise KeyError("targets")
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    loop = make_loop().tended({}, loss=loss)
    modes = [module.training for module in loop.model.modules()]
    with pytest.raises(KeyError, match="targets"):
        loop.epochs(40)
    assert [module.training for module in loop.model.modules()] == modes
