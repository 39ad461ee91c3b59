"""What does a step cost besides its arithmetic? On a small network more than the arithmetic, in ``torch.optim``.

``step()`` looks for hooks, profilers and compilers each time. The optimizers here are torch's own, and can be asked to
go straight to the function that does the work: the same numbers, to the last bit, in half of the time. They are what a
configuration asks for; an optimizer of somebody else's is stepped as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class _WithoutCompiler(torch.optim.Optimizer):
    """Torch loads its compiler, a second's work, when the first optimizer is made: to keep out of the method's way."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """What torch does, without a word to a compiler that is not there."""
        add = torch.optim.Optimizer.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)


class SwiftAdam(_WithoutCompiler, torch.optim.Adam):
    """The fused one, with one group of parameters."""

    def swift_step(self) -> None:
        """What ``step`` does."""
        _step(self, adam)


class SwiftAdamW(_WithoutCompiler, torch.optim.AdamW):
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
    (group,) = optimizer.param_groups
    learning = [parameter for parameter in group["params"] if parameter.grad is not None]
    memory = [optimizer.state[parameter] or _begun(optimizer.state[parameter], parameter) for parameter in learning]
    beta1, beta2 = group["betas"]
    with torch.no_grad():
        arithmetic(
            learning,
            [parameter.grad for parameter in learning],
            [own["exp_avg"] for own in memory],
            [own["exp_avg_sq"] for own in memory],
            [],
            [own["step"] for own in memory],
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


def _begun(memory: dict[str, Tensor], parameter: nn.Parameter) -> dict[str, Tensor]:
    """What is known of a parameter before its first step."""
    memory["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
    memory["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    memory["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return memory
