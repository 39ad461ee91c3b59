"""What does an optimizer know? Of each parameter its moments and its clock: written down, and taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import State

if TYPE_CHECKING:
    import torch


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """Everything that an optimizer of one group knows, by the number of the parameter."""
    known = optimizer.state_dict()["state"]
    return State({}, {f"{number}.{name}": one.clone() for number, own in known.items() for name, one in own.items()})


def restore_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Know what another optimizer of equal parameters knew."""
    known: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in state.tensors.items():
        number, _, name = key.partition(".")
        known.setdefault(int(number), {})[name] = tensor.clone()
    optimizer.load_state_dict({"state": known, "param_groups": optimizer.state_dict()["param_groups"]})
