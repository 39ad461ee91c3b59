"""A blueprint: a linear map of low rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from esper_blueprints.informed import inform_linear
from esper_blueprints.layers import refuse_other_kinds, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

REDUCTION: Final = 4
"""How much narrower the block is inside."""


class LowRank(nn.Module):
    """A residual linear map of rank r = max(c // 4, 1) with a bias: no neighbours, no nonlinearity.

    Formula: x + up(down(x)), c → r → c, up zero at birth. Parameters: 2·c·r + c.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in LowRank(Site("vector", 32)).parameters())
    544

    site: a vector or tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        refuse_other_kinds("a low-rank map", site, "vector", "tokens")
        rank = max(site.channels // REDUCTION, 1)
        self.down = nn.Linear(site.channels, rank, bias=False)
        self.up = nn.Linear(rank, site.channels)
        start_at_zero(self.up)

    def inform(self, inputs: Tensor, gradients: Tensor) -> None:
        """Set the rows of ``down`` by the loss gradients; the block stays the identity.

        inputs: the inputs of the block for a batch. gradients: of the loss by its outputs, in the same shape.
        """
        inform_linear(self.down, inputs, gradients)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.up(self.down(inputs))
        return inputs + change
