"""A blueprint: LoRA, a low-rank map beside a linear layer or a 1×1 convolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from esper_blueprints.informed import inform_linear
from esper_blueprints.layers import linear_map, refuse_no_inputs, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class Lora(nn.Module):
    """A linear map of low rank from what a layer gets, added to what it returns (Hu et al., 2021).

    Formula: y + s·up(down(dropout(x))), i → rank → c, up zero at birth. The scale s is alpha/rank, or alpha/√rank with
    ``rslora`` (Kalajdzievski, 2023). Parameters: rank·(i + c). Behind a linear layer or a 1×1 convolution, y = W·x, it
    is a change of W by s·up·down, and ``esper_grow.export`` adds it to W. All of it is as in PEFT, to the bit.

    >>> from esper_core import Site
    >>> block = Lora(Site("tokens", 32, (5,), inputs=16), rank=4, alpha=8)
    >>> sum(p.numel() for p in block.parameters()), block.scale
    (192, 2.0)

    Args:
        site: behind a module that gets the like; in an image or a sequence a 1×1 convolution.
        rank: features between the two maps.
        alpha: the scale's numerator. None: the rank.
        rslora: divide alpha by the root of the rank, not by the rank.
        dropout: share of the inputs that is dropped in training.
    """

    def __init__(
        self, site: Site, *, rank: int = 8, alpha: float | None = None, rslora: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        refuse_no_inputs("a LoRA", site)
        self.rank, self.alpha, self.rslora = rank, float(rank) if alpha is None else alpha, rslora
        self.scale = self.alpha / (math.sqrt(rank) if rslora else rank)
        self.down, self.up = linear_map(site, site.inputs, rank), linear_map(site, rank, site.channels)
        # Only where it is needed: a network with a Dropout counts as one that draws random numbers.
        self.dropout = nn.Dropout(dropout) if dropout else None
        start_at_zero(self.up)

    def inform(self, inputs: Tensor, gradients: Tensor) -> None:
        """Set the rows of ``down`` by the loss gradients; the map stays zero.

        inputs: the inputs of the layer for a batch. gradients: of the loss by its outputs.
        """
        if not isinstance(self.down, nn.Linear):  # features are behind the examples there
            inputs, gradients = inputs.movedim(1, -1), gradients.movedim(1, -1)
        if self.rank <= min(inputs.shape[-1], gradients.shape[-1]):  # there are no more directions
            inform_linear(self.down, inputs, gradients)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the change of the layer's outputs."""
        inputs = inputs.to(self.down.weight.dtype)
        if self.dropout is not None:
            inputs = self.dropout(inputs)
        change: Tensor = self.up(self.down(inputs)) * self.scale
        return change
