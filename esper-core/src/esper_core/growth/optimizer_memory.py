"""What does an optimizer remember, and the scaler of a loss, and how does it get into one that was made alike?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from esper_core.growth.memory import heard, told

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from esper_core.leyline.protocols import State

Memory = dict[Any, dict[str, Any]]
"""What an optimizer remembers of each parameter: momenta, counts of steps."""


def remembered(parameters: Sequence[nn.Parameter], memory: Mapping[Any, dict[str, Any]]) -> list[dict[str, Any] | None]:
    """``memory`` in the order of ``parameters``; None for one that never had a gradient."""
    return [memory.get(parameter) for parameter in parameters]


def recalled(parameters: Sequence[nn.Parameter], told_memory: Sequence[dict[str, Any] | None]) -> Memory:
    """What ``remembered`` gave, of the parameters that stand in the same places here."""
    pairs = zip(parameters, told_memory, strict=True)
    return {
        parameter: {key: _laid_out(value, parameter) for key, value in memory.items()}
        for parameter, memory in pairs
        if memory is not None
    }


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a group of parameters, its learning rate among them. What else there is whoever made it knows."""
    kinds = (bool, int, float, str, tuple, Tensor, type(None))
    return {key: value for key, value in group.items() if key != "params" and isinstance(value, kinds)}


def scaler_told(scaler: GradScaler | None) -> State:
    """What a scaler of the loss remembers; it is told, too, where there is none."""
    return told(None if scaler is None else scaler.state_dict())


def scaler_with(state: State, scaler: GradScaler | None, device: torch.device) -> GradScaler | None:
    """A scaler with what ``scaler_told`` gave: ``scaler`` itself where there is one."""
    memory = heard(state)
    if memory is None:
        return None
    if scaler is None:
        scaler = GradScaler(device.type, enabled=bool(memory))
    scaler.load_state_dict(memory)
    return scaler


def _laid_out(value: Any, parameter: nn.Parameter) -> Any:
    """A tensor as the optimizer would have made it: fused code takes it to lie in memory as the parameter does."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
