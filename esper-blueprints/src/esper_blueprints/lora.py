"""Blueprints: LoRA, low-rank maps beside a linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from esper_blueprints.informed import inform_linear
from esper_blueprints.layers import start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

SMALL: Final = 4
LARGE: Final = 16
"""Ranks. With few features the rank is half their number, since more would cost more than a full map."""


class Lora(nn.Module):
    """A linear map of a fixed rank from what a layer gets, added to what it returns (Hu et al., 2021).

    Formula: y + up(down(x)), i → r → c with r = max(min(rank, i // 2, c // 2), 1), up zero at birth. Parameters:
    r·(i + c). Behind a linear layer, y = W·x, it is a change of W, and ``esper_grow.export`` adds it to W.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Lora(Site("tokens", 32, (5,), inputs=16), rank=4).parameters())
    192

    site: a vector or tokens, behind a module that gets the like. rank: the largest rank of the map, at least 1.
    """

    def __init__(self, site: Site, *, rank: int) -> None:
        super().__init__()
        if site.kind not in ("vector", "tokens"):
            msg = f"a LoRA grows in a vector or in tokens. Received: {site.kind}"
            raise ValueError(msg)
        if not site.inputs:
            msg = f"a LoRA grows behind a layer that gets features. Received: {site}"
            raise ValueError(msg)
        if rank < 1:
            msg = f"the rank of a LoRA must be at least 1. Received: {rank}"
            raise ValueError(msg)
        directions = max(min(rank, site.inputs // 2, site.channels // 2), 1)
        self.down = nn.Linear(site.inputs, directions, bias=False)
        self.up = nn.Linear(directions, site.channels, bias=False)
        start_at_zero(self.up)

    def inform(self, inputs: Tensor, gradients: Tensor) -> None:
        """Set the rows of ``down`` by the loss gradients; the map stays zero.

        inputs: the inputs of the layer for a batch. gradients: of the loss by its outputs.
        """
        inform_linear(self.down, inputs, gradients)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the change of the layer's outputs."""
        change: Tensor = self.up(self.down(inputs))
        return change


def lora_small(site: Site) -> Lora:
    """Build a LoRA of rank 4.

    >>> from esper_core import Site
    >>> lora_small(Site("tokens", 32, (5,), inputs=16)).down
    Linear(in_features=16, out_features=4, bias=False)

    site: a vector or tokens.
    """
    return Lora(site, rank=SMALL)


def lora_large(site: Site) -> Lora:
    """Build a LoRA of rank 16.

    >>> from esper_core import Site
    >>> lora_large(Site("tokens", 32, (5,), inputs=64)).down
    Linear(in_features=64, out_features=16, bias=False)

    site: a vector or tokens.
    """
    return Lora(site, rank=LARGE)
