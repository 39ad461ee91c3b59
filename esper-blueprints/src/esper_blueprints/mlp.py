"""A blueprint: an MLP over the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import refuse_other_kinds, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

EXPANSION: Final = 2
"""How much wider the block is inside."""


class Mlp(nn.Module):
    """A residual MLP of two layers over the features of a vector or of each token.

    Formula: x + l2(relu(l1(x))), c → 2c → c, l2 zero at birth. Parameters: 4·c² + 3·c.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Mlp(Site("vector", 32)).parameters())
    4192

    site: a vector or tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        refuse_other_kinds("an mlp", site, "vector", "tokens")
        self.l1 = nn.Linear(site.channels, EXPANSION * site.channels)
        self.l2 = nn.Linear(EXPANSION * site.channels, site.channels)
        start_at_zero(self.l2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.l2(functional.relu(self.l1(inputs)))
        return inputs + change
