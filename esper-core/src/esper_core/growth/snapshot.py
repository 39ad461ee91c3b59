"""How does a host come back from harm? From a copy of its numbers, taken while it was sane, written back in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from esper_core.growth.keeping import KeptBuffers

if TYPE_CHECKING:
    from esper_core.growth.garden import Garden


class Snapshot:
    """Parameters and buffers of a model, without those of its living seeds, as they were when it was made."""

    def __init__(self, garden: Garden) -> None:
        living = garden.living_seeds()
        own = {id(parameter) for seed in living for parameter in seed.parameters()}
        self._kept = KeptBuffers(garden.model, without=living)
        self._weights = [
            (parameter, parameter.detach().clone())
            for parameter in garden.model.parameters()
            if id(parameter) not in own
        ]

    def restore(self, garden: Garden) -> None:
        """Write everything back where it was, and forget what the optimizers remember of the time since."""
        with torch.no_grad():
            for parameter, value in self._weights:
                parameter.copy_(value)
        self._kept.put_back()
        garden.keeper.forget_host_state()
