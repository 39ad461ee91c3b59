"""A blueprint: two convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from esper_blueprints.informed import inform_convolutions
from esper_blueprints.layers import convolution, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class ConvLight(nn.Module):
    """Two residual convolutions of width 5: each position depends on four neighbours to each side.

    Formula: x + conv_b(relu(conv_a(x))), conv_b zero at birth. Parameters: 2·(5ⁿ·c² + c) for n dimensions.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in ConvLight(Site("sequence", 8, (40,))).parameters())
    656

    site: an image or a sequence.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.conv_a = convolution(site, site.channels, site.channels, width=5)
        self.conv_b = convolution(site, site.channels, site.channels, width=5)
        start_at_zero(self.conv_b)

    def inform(self, inputs: Tensor, gradients: Tensor) -> None:
        """Choose the first filters whose outputs correlate best with the gradients; the block stays the identity.

        inputs: the inputs of the block for a batch. gradients: of the loss by its outputs, in the same shape.
        """
        inform_convolutions(self.conv_a, self.conv_b, inputs, gradients)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.conv_b(functional.relu(self.conv_a(inputs)))
        return inputs + change
