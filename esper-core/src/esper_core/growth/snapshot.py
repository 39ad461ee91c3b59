"""How does a host come back from harm? From a copy of its numbers, taken while it was sane, written back in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from esper_core.growth.garden import Garden


class Snapshot:
    """Parameters and buffers of a model, without those of its living seeds, as they were when it was made."""

    def __init__(self, garden: Garden) -> None:
        living = {id(tensor) for seed in garden.living_seeds() for tensor in _tensors(seed)}
        self._kept = [
            (tensor, tensor.detach().clone()) for tensor in _tensors(garden.model) if id(tensor) not in living
        ]

    def restore(self, garden: Garden) -> None:
        """Write everything back where it was, and forget what the optimizers remember of the time since."""
        with torch.no_grad():
            for tensor, value in self._kept:
                tensor.copy_(value)
        garden.keeper.forget_host_state()


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
