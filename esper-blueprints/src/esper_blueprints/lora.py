"""Blueprints: linear maps of fixed low rank for wide tokens."""

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
    """A residual linear map of fixed rank without a bias, which a linear layer after it could absorb.

    Formula: x + up(down(x)), c → r → c with r = max(min(rank, c // 2), 1), up zero at birth. Parameters: 2·c·r.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Lora(Site("tokens", 32, (5,)), rank=4).parameters())
    256

    site: tokens. rank: the largest rank of the map, at least 1.
    """

    def __init__(self, site: Site, *, rank: int) -> None:
        super().__init__()
        if site.kind != "tokens":
            msg = f"a LoRA grows in tokens. Received: {site.kind}"
            raise ValueError(msg)
        if rank < 1:
            msg = f"the rank of a LoRA must be at least 1. Received: {rank}"
            raise ValueError(msg)
        directions = max(min(rank, site.channels // 2), 1)
        self.down = nn.Linear(site.channels, directions, bias=False)
        self.up = nn.Linear(directions, site.channels, bias=False)
        start_at_zero(self.up)

    def inform(self, inputs: Tensor, gradients: Tensor) -> None:
        """Set the rows of ``down`` by the loss gradients; the block stays the identity.

        inputs: what arrives, for a batch. gradients: of the loss with respect to what leaves, in the same shape.
        """
        inform_linear(self.down, inputs, gradients)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.up(self.down(inputs))
        return inputs + change


def lora_small(site: Site) -> Lora:
    """Build a LoRA of rank 4.

    >>> from esper_core import Site
    >>> lora_small(Site("tokens", 32, (5,))).down
    Linear(in_features=32, out_features=4, bias=False)

    site: tokens.
    """
    return Lora(site, rank=SMALL)


def lora_large(site: Site) -> Lora:
    """Build a LoRA of rank 16.

    >>> from esper_core import Site
    >>> lora_large(Site("tokens", 32, (5,))).down
    Linear(in_features=32, out_features=16, bias=False)

    site: tokens.
    """
    return Lora(site, rank=LARGE)
