"""A blueprint: convolutions of growing dilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import convolution, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class Dilated(nn.Module):
    """Three residual convolutions of width 3 with dilations 1, 3 and 9: 13 neighbours to each side, without gaps.

    Formula: x + conv_9(relu(conv_3(relu(conv_1(x))))), conv_9 zero at birth. Each of the 27 positions of the receptive
    field in a dimension is reached on exactly one path. Parameters: 3·(3ⁿ·c² + c) for n dimensions.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Dilated(Site("sequence", 8, (40,))).parameters())
    600

    site: an image or a sequence, of any size, padded with zeros.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.conv_1 = convolution(site, site.channels, site.channels, width=3, step=1)
        self.conv_3 = convolution(site, site.channels, site.channels, width=3, step=3)
        self.conv_9 = convolution(site, site.channels, site.channels, width=3, step=9)
        start_at_zero(self.conv_9)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.conv_9(functional.relu(self.conv_3(functional.relu(self.conv_1(inputs)))))
        return inputs + change
