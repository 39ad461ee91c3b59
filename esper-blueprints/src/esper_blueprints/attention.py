"""A blueprint: self-attention over tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import refuse_other_kinds, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

HEADS: Final = (8, 4, 2, 1)
"""Numbers of heads to try: the first that divides the number of features is used."""


class Attention(nn.Module):
    """Residual multi-head self-attention without positions: permuting tokens permutes the outputs.

    Formula: x + out(concat(softmax(q_h·k_hᵀ/√d)·v_h)) over heads h of width d = c / heads, where q, k and v are ``ask``
    of x, split in three, and out is zero at birth. ``ask`` has no shift, because a shift of k changes nothing.
    Parameters: 3·c² for ask and c² + c for out. A single token attends to itself alone: then q and k learn nothing.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Attention(Site("tokens", 16, (5,))).parameters())
    1040

    site: tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        refuse_other_kinds("attention", site, "tokens")
        self.heads = next(heads for heads in HEADS if site.channels % heads == 0)
        self.ask = nn.Linear(site.channels, 3 * site.channels, bias=False)
        self.out = nn.Linear(site.channels, site.channels)
        start_at_zero(self.out)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        query, key, value = self.ask(inputs).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        answers = functional.scaled_dot_product_attention(query, key, value)
        change: Tensor = self.out(answers.transpose(1, 2).flatten(2))
        return inputs + change
