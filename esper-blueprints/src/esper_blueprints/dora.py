"""A blueprint: DoRA, a change of the direction and of the length of each row of a linear layer's weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_blueprints.layers import refuse_no_inputs, refuse_other_kinds
from esper_blueprints.lora import Lora

if TYPE_CHECKING:
    from esper_core import Site

SHORTEST: Final = 1e-12
"""Length of a row of zeros, so that it can be divided by."""


class Dora(Lora):
    """LoRA of a weight W whose rows keep a learned length (Liu et al., 2024), added to what its layer returns.

    Formula: (g − 1)·W·x + g·s·up(down(x)), with g = (|W| + m) / |W + s·up·down| and the lengths of rows |·|; up and m
    are zero at birth, and g is 1. No gradient flows through the divisor. Parameters: rank·(i + c) + c. The layer's
    weight is W + s·up·down, each row as long as |W| + m, then. All of it is as in PEFT, to the bit; but what is stored
    is m, not |W| + m, so that weight decay pulls to the identity.

    >>> from esper_core import Site
    >>> block = Dora(Site("tokens", 32, (5,), inputs=16), rank=4)
    >>> sum(p.numel() for p in block.parameters())
    224

    The arguments are those of LoRA.
    """

    def __init__(
        self, site: Site, *, rank: int = 8, alpha: float | None = None, rslora: bool = False, dropout: float = 0.0
    ) -> None:
        refuse_other_kinds("a DoRA", site, "vector", "tokens")
        refuse_no_inputs("a DoRA", site)
        super().__init__(site, rank=rank, alpha=alpha, rslora=rslora, dropout=dropout)
        self.magnitude = nn.Parameter(torch.zeros(site.channels))

    def forward(self, inputs: Tensor, layer: Any = None, outputs: Any = None) -> Tensor:
        """Return the change of ``outputs``, which ``layer`` computes from ``inputs``."""
        weight = weight_of(layer).to(self.up.weight.dtype)
        inputs = inputs.to(weight.dtype)
        if self.dropout is None or not self.training:
            plain = outputs if layer.bias is None else outputs - layer.bias
        else:
            inputs = self.dropout(inputs)
            plain = nn.functional.linear(inputs, weight)
        # In the order of PEFT, which multiplies the transposed matrices: another one rounds differently.
        product = nn.functional.linear(self.down.weight.detach().T.contiguous(), self.up.weight.detach()).T
        gain = self.lengths(weight) / _lengths(weight + self.scale * product)
        change: Tensor = (gain - 1) * plain + gain * self.up(self.down(inputs)) * self.scale
        return change

    def lengths(self, weight: Tensor) -> Tensor:
        """Return the learned lengths of the rows of the layer's weight."""
        return _lengths(weight.to(self.magnitude.dtype)) + self.magnitude

    def set_lengths(self, lengths: Tensor, weight: Tensor) -> None:
        """Set the learned lengths, without rounding if they are at least half and at most twice those of the weight."""
        with torch.no_grad():
            self.magnitude.copy_(lengths - _lengths(weight.to(self.magnitude.dtype)))


def _lengths(weight: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.norm(weight.detach(), dim=1)
    return lengths.clamp_min(SHORTEST)


def weight_of(layer: Any) -> Tensor:
    """Return the weight of a linear layer, (outputs, inputs), without quantisation.

    >>> weight_of(nn.Linear(3, 2)).shape
    torch.Size([2, 3])
    """
    weight = getattr(layer, "weight", None)
    if weight is None or weight.ndim != 2 or hasattr(layer, "base_layer"):
        msg = f"DoRA grows beside a linear layer without other adapters. Received: {type(layer).__name__}"
        raise ValueError(msg)
    if type(weight).__module__.startswith("torchao."):
        weight = weight.dequantize()
    plain: Tensor = weight.T if type(layer).__name__ == "Conv1D" else weight
    return plain
