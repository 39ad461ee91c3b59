"""A blueprint that combines neighbours by shifting channels, without a wide kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from esper_blueprints_extra.pointwise import pointwise_conv

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class ShiftMix(nn.Module):
    """Shifted channels and two pointwise convolutions, added to the input.

    A part of the channels stays; the others move by one position, a part in each direction.

    Formula: x + mix_b(relu(mix_a(shift(x)))), mix_b zero at birth. shift has no parameters and wraps around.
    Parameters: 2·(c² + c).

    >>> from esper_core import Site
    >>> sum(p.numel() for p in ShiftMix(Site("sequence", 8, (40,))).parameters())
    144

    site: an image or a sequence.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix_a = pointwise_conv(site)
        self.mix_b = pointwise_conv(site, zero=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.mix_b(functional.relu(self.mix_a(shift(inputs))))
        return inputs + change


def shift(inputs: Tensor) -> Tensor:
    """Shift the channels by one place: 2n + 1 interleaved parts, one of which stays, in n dimensions.

    The output has the parts one after the other.

    >>> shift(torch.tensor([[[1, 2, 3], [1, 2, 3], [1, 2, 3]]])).tolist()
    [[[1, 2, 3], [3, 1, 2], [2, 3, 1]]]
    """
    moves = [(0, 2), *((step, dim) for dim in range(2, inputs.dim()) for step in (1, -1))]
    return torch.cat([inputs[:, i :: len(moves)].roll(step, dims=dim) for i, (step, dim) in enumerate(moves)], dim=1)
