"""The host of a loop with a Gardener is bit for bit that of the plain loop until a seed is kept.

The plan keeps the seed at the end of the fourth epoch, where its branch becomes the host.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core_worlds import Net, NoisyHost
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR
from torch.utils.checkpoint import checkpoint

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": partial(schedules.StepLR, step_size=2),
    "MultiStepLR": partial(schedules.MultiStepLR, milestones=[2, 5]),
    "ConstantLR": partial(schedules.ConstantLR, total_iters=4),
    "LinearLR": schedules.LinearLR,
    "ExponentialLR": partial(schedules.ExponentialLR, gamma=0.9),
    "CosineAnnealingLR": partial(schedules.CosineAnnealingLR, T_max=10),
    "CosineAnnealingWarmRestarts": partial(schedules.CosineAnnealingWarmRestarts, T_0=4),
    "PolynomialLR": partial(schedules.PolynomialLR, total_iters=20),
    "CyclicLR": partial(schedules.CyclicLR, base_lr=1e-3, max_lr=1e-2, step_size_up=3, cycle_momentum=False),
    "OneCycleLR": partial(schedules.OneCycleLR, max_lr=1e-2, total_steps=40),
    "LambdaLR": partial(schedules.LambdaLR, lr_lambda=lambda step: 0.95**step),
    "MultiplicativeLR": partial(schedules.MultiplicativeLR, lr_lambda=lambda step: 0.95),
    "SequentialLR": lambda own: schedules.SequentialLR(
        own, [schedules.LinearLR(own), schedules.ExponentialLR(own, 0.9)], milestones=[3]
    ),
    "ChainedScheduler": lambda own: schedules.ChainedScheduler(
        [schedules.LinearLR(own), schedules.ExponentialLR(own, 0.9)]
    ),
    "SWALR": partial(SWALR, swa_lr=1e-3),
    "ReduceLROnPlateau": lambda own: SimpleNamespace(
        step=partial(schedules.ReduceLROnPlateau(own, patience=2).step, 1.0)
    ),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "fused": partial(torch.optim.Adam, lr=1e-2, fused=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_notices_a_seed_before_it_is_kept_nor_fails_after(make_loop, name):
    plain, grown = make_loop(), make_loop()
    for loop in (plain, grown):
        schedule = SCHEDULES[name](loop.optimizer)
        loop.after.append(schedule.step)
    grown.tended()
    equal = [grown.stays_as(plain) for _ in range(6)]
    assert equal[:3] == [True] * 3
    assert not any(equal[3:])
    assert [group["lr"] for group in grown.optimizer.param_groups] == [
        group["lr"] for group in plain.optimizer.param_groups
    ]


def test_a_loop_in_float64_keeps_its_default(make_loop):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain, grown = make_loop(), make_loop().tended()
        assert [grown.stays_as(plain) for _ in range(6)] == [True] * 3 + [False] * 3
        assert torch.get_default_dtype() is torch.float64
        assert {own.dtype for own in grown.model.parameters()} == {torch.float64}
    finally:
        torch.set_default_dtype(before)


def test_activation_checkpointing_changes_nothing(make_loop):
    """The part with the slot is computed again in the backward pass."""

    def checkpointed() -> nn.Module:
        host = NoisyHost()
        rest = nn.Sequential(host.drop, host.hidden, host.head)
        return Net(lambda net, x: net.rest(checkpoint(net.first, x, use_reentrant=False)), first=host.stem, rest=rest)

    plain, grown = make_loop(host=checkpointed), make_loop(host=checkpointed)
    grown.tended(slots={"stem": "first"})
    assert [grown.stays_as(plain) for _ in range(6)] == [True] * 3 + [False] * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_compiled_host_is_compiled_again_once_a_seed_is_kept(make_loop):
    plain, grown = make_loop(), make_loop().tended()
    compiled = [torch.compile(loop.model, options={"fallback_random": True}) for loop in (plain, grown)]

    def train(loop: Any, model: Any, batch: Any) -> None:
        loop.optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        loop.optimizer.step()

    trains = [partial(train, *pair) for pair in zip((plain, grown), compiled, strict=True)]
    assert [grown.stays_as(plain, trains) for _ in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_loses_a_bit_of_its_state(make_loop, name):
    plain, grown = make_loop(OPTIMIZERS[name]), make_loop(OPTIMIZERS[name])
    grown.tended()
    equal = [grown.stays_as(plain) for _ in range(6)]
    assert equal[:3] == [True] * 3
    assert not any(equal[3:])
    (group,) = grown.optimizer.param_groups
    assert len(group["params"]) == len(list(grown.model.parameters()))
