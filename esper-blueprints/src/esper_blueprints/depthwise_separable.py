"""A blueprint: a depthwise convolution, then a pointwise one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import convolution, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class DepthwiseSeparable(nn.Module):
    """A residual depthwise convolution of width 5, then a pointwise mix of the features.

    Formula: x + mix(relu(look(x))), mix zero at birth. Parameters: 5ⁿ·c + c for look and c² + c for mix, n dimensions.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in DepthwiseSeparable(Site("sequence", 8, (40,))).parameters())
    120

    site: an image or a sequence.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.look = convolution(site, site.channels, site.channels, width=5, groups=site.channels)
        self.mix = convolution(site, site.channels, site.channels, width=1)
        start_at_zero(self.mix)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.mix(functional.relu(self.look(inputs)))
        return inputs + change
