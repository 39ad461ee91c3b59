"""A blueprint: an MLP at each position separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import convolution, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

EXPANSION: Final = 4
"""How much wider the block is inside."""


class Pointwise(nn.Module):
    """A residual MLP of two layers at each position separately.

    Formula: x + pw2(relu(pw1(x))), c → 4c → c, pw2 zero at birth. Parameters: 8·c² + 5·c.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Pointwise(Site("image", 8, (4, 4))).parameters())
    552

    site: an image or a sequence.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        inside = EXPANSION * site.channels
        self.pw1 = convolution(site, site.channels, inside, width=1)
        self.pw2 = convolution(site, inside, site.channels, width=1)
        start_at_zero(self.pw2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.pw2(functional.relu(self.pw1(inputs)))
        return inputs + change
