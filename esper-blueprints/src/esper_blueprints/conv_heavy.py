"""A blueprint: three convolutions with a wide middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import convolution, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

EXPANSION: Final = 2
"""How much wider the block is inside."""


class ConvHeavy(nn.Module):
    """Three convolutions of width 5 with a normalisation over the example, added to the input.

    Each position depends on six neighbours to each side and, through the normalisation, on the scale of the example.

    Formula: x + conv_c(relu(norm(conv_b(relu(conv_a(x)))))), c → 2c → 2c → c, conv_c zero at birth; norm goes over all
    features and places of an example, and has a gain and a shift for each feature. Without it a block this deep learns
    slowly at first, because each layer reduces the scale. Parameters: 8·5ⁿ·c² + 5·c, and 4·c for norm, in n dimensions.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in ConvHeavy(Site("sequence", 8, (40,))).parameters())
    2632

    site: an image or a sequence.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        inside = EXPANSION * site.channels
        self.conv_a = convolution(site, site.channels, inside, width=5)
        self.conv_b = convolution(site, inside, inside, width=5)
        self.conv_c = convolution(site, inside, site.channels, width=5)
        self.norm = nn.GroupNorm(1, inside)
        start_at_zero(self.conv_c)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        shapes = self.norm(self.conv_b(functional.relu(self.conv_a(inputs))))
        change: Tensor = self.conv_c(functional.relu(shapes))
        return inputs + change
