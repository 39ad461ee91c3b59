"""A step without the ceremony is the step: the same parameters, the same memory, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from esper_core.config import OptimizerConfig
from esper_core.growth.optimizer_steps import FusedAdam, FusedAdamW, step_optimizer
from esper_core.growth.optimizers import build_optimizer

TORCHS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in ((4, 3), (4,), (2, 3, 5))]


def bits_of(optimizer: torch.optim.Optimizer, own: list[nn.Parameter]) -> list[torch.Tensor]:
    memory = [value for parameter in own for value in optimizer.state.get(parameter, {}).values()]
    return [parameter.detach() for parameter in own] + memory


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["adam", "adamw"]),
    decay=st.sampled_from([0.0, 0.1]),
    steps=st.lists(
        st.tuples(st.floats(0.0, 0.1), st.sets(st.integers(0, 2))),  # the learning rate; who has no gradient
        min_size=1,
        max_size=6,
    ),
)
def test_it_is_the_step_of_torch_to_the_last_bit(kind: str, decay: float, steps: list[tuple[float, set[int]]]) -> None:
    own, other = parameters(), parameters()
    ours = build_optimizer(OptimizerConfig(kind=kind, weight_decay=decay, implementation="fused"), own)  # type: ignore[arg-type]
    torchs = TORCHS[kind](other, OptimizerConfig().learning_rate, weight_decay=decay, fused=True)
    assert isinstance(ours, FusedAdam | FusedAdamW)

    generator = torch.Generator().manual_seed(7)
    for rate, without in steps:
        for index, (parameter, twin) in enumerate(zip(own, other, strict=True)):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad, twin.grad = (None, None) if index in without else (gradient, gradient.clone())
        for optimizer in (ours, torchs):
            optimizer.param_groups[0]["lr"] = rate
        step_optimizer(ours)
        torchs.step()

    pairs = list(zip(bits_of(ours, own), bits_of(torchs, other), strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("implementation", ["plain", "foreach"])
def test_what_is_not_fused_is_torchs_own(implementation: str) -> None:
    own = parameters()
    made = build_optimizer(OptimizerConfig(implementation=implementation), own)  # type: ignore[arg-type]
    assert type(made) is torch.optim.Adam


def test_an_optimizer_of_somebody_elses_takes_its_own_step() -> None:
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure: Any = None) -> None:
            type(self).steps += 1

    step_optimizer(Counting(parameters(), 0.1))
    assert Counting.steps == 1


def test_a_hook_on_a_fused_optimizer_of_ones_own_is_called() -> None:
    own, called = parameters(), []
    optimizer = torch.optim.Adam(own, 0.1, fused=True)
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    step_optimizer(optimizer)
    assert called == [1]
