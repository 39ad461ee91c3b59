"""What does a step cost besides its arithmetic? On a small network more than the arithmetic, in ``torch.optim``.

``step()`` looks for hooks, profilers and compilers each time. The optimizers here are torch's own, and can be asked to
go straight to the function that does the work: the same numbers, to the last bit, in half of the time. They are what a
configuration asks for; an optimizer of somebody else's is stepped as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Callable


class SwiftAdam(torch.optim.Adam):
    """The fused one, with one group of parameters."""

    def swift_step(self) -> None:
        """What ``step`` does."""
        _step(self, adam)


class SwiftAdamW(torch.optim.AdamW):
    """The fused one, with one group of parameters."""

    def swift_step(self) -> None:
        """What ``step`` does."""
        _step(self, adamw)


def step(optimizer: torch.optim.Optimizer) -> None:
    """One step of any optimizer, in the swiftest way that it has."""
    if isinstance(optimizer, SwiftAdam | SwiftAdamW):
        optimizer.swift_step()
    else:
        optimizer.step()


def _step(optimizer: torch.optim.Optimizer, arithmetic: Callable[..., None]) -> None:
    """Where every parameter has a gradient, and had a step before: the arithmetic alone. Else all that there is."""
    (group,) = optimizer.param_groups
    parameters = group["params"]
    gradients = [parameter.grad for parameter in parameters]
    memory = [optimizer.state.get(parameter) for parameter in parameters]
    known = [own for own in memory if own]
    if len(known) < len(memory) or any(gradient is None for gradient in gradients):
        optimizer.step()
        return
    beta1, beta2 = group["betas"]
    with torch.no_grad():
        arithmetic(
            parameters,
            gradients,
            [own["exp_avg"] for own in known],
            [own["exp_avg_sq"] for own in known],
            [],
            [own["step"] for own in known],
            fused=True,
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )
