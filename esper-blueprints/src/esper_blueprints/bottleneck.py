"""A blueprint: a convolution over a quarter as many features, for wide networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import convolution, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

REDUCTION: Final = 4
"""How much narrower the block is inside."""


class Bottleneck(nn.Module):
    """A residual convolution of width 5 over a quarter as many features.

    Formula: x + widen(silu(look(silu(narrow(x))))), c → m → m → c with m = max(c // 4, 1), widen zero at birth. A
    ReLU could be 0 for every example where m is 1, and the block would never learn.
    Parameters: (c·m + m) + (5ⁿ·m² + m) + (m·c + c) for n dimensions.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Bottleneck(Site("sequence", 8, (40,))).parameters())
    64

    site: an image or a sequence.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        inside = max(site.channels // REDUCTION, 1)
        self.narrow = convolution(site, site.channels, inside, width=1)
        self.look = convolution(site, inside, inside, width=5)
        self.widen = convolution(site, inside, site.channels, width=1)
        start_at_zero(self.widen)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.widen(functional.silu(self.look(functional.silu(self.narrow(inputs)))))
        return inputs + change
