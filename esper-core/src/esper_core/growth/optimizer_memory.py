"""State of optimizers and loss scalers: write it down, restore it, and hand it from one optimizer to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.amp import GradScaler

from esper_core.growth.memory import heard, told
from esper_core.growth.swift import SwiftAdam, SwiftAdamW

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


_ADAMS: Final = (torch.optim.Adam, torch.optim.AdamW, SwiftAdam, SwiftAdamW)
_WITHOUT_EFFECT_ON_STATE: Final = {
    *("foreach", "fused", "capturable", "differentiable"),  # which code computes the step
    *("nesterov", "decoupled_weight_decay"),  # what is made of the state, and not what it is
}


def hand_over_state(old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> None:
    """Give ``new`` the state that ``old`` has of each parameter, where both keep the same quantities of it.

    They do where the algorithm is the same (SGD, or Adam and AdamW, or any other class with itself) and every switch
    that decides what is kept is set alike: ``amsgrad``, ``centered``, ``maximize``, a momentum or none. Of every other
    parameter ``new`` keeps its own fresh state. The tensors are handed over, not copied; ``old`` is not changed.
    """
    kept = {parameter: _form(old, group) for group in old.param_groups for parameter in group["params"]}
    for group in new.param_groups:
        form = _form(new, group)
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            if kept.get(parameter) == form and parameter in old.state:
                state = dict(old.state[parameter])
                if on_device and isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].to(parameter.device, torch.float32)
                new.state[parameter] = state


def _form(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> tuple[type, dict[str, bool]]:
    """What decides which quantities an optimizer keeps of the parameters of a group."""
    algorithm = torch.optim.Adam if type(optimizer) in _ADAMS else type(optimizer)
    switches = {key: value for key, value in group.items() if isinstance(value, bool)}
    relevant = {key: value for key, value in switches.items() if key not in _WITHOUT_EFFECT_ON_STATE}
    return algorithm, {**relevant, "momentum": bool(group.get("momentum"))}


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
