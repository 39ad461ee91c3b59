"""A blueprint: products of two linear maps of the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn import functional

from esper_blueprints.layers import refuse_other_kinds, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

EXPANSION: Final = 2
"""How much wider the block is inside."""


class GatedMlp(nn.Module):
    """A residual gated MLP over the features of a vector or of each token: the product of two linear maps, mixed.

    Formula: x + mix(silu(gate(x)) · view(x)), c → 2c → c, mix zero at birth; ``views`` is gate and view in one.
    Parameters: (4·c² + 4·c) + (2·c² + c).

    >>> from esper_core import Site
    >>> sum(p.numel() for p in GatedMlp(Site("vector", 32)).parameters())
    6304

    site: a vector or tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        refuse_other_kinds("a gated mlp", site, "vector", "tokens")
        inside = EXPANSION * site.channels
        self.views = nn.Linear(site.channels, 2 * inside)
        self.mix = nn.Linear(inside, site.channels)
        start_at_zero(self.mix)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        gate, view = torch.chunk(self.views(inputs), 2, dim=-1)
        change: Tensor = self.mix(functional.silu(gate) * view)
        return inputs + change
