"""A blueprint: a GRU along the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from esper_blueprints.layers import refuse_other_kinds, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class GruMixer(nn.Module):
    """A residual GRU over the tokens, first to last: each token depends on those before it.

    Formula: x + out(gru(x)), as wide inside as outside, out zero at birth. Parameters: 6·c² + 6·c for gru, which has
    two biases for each of its three gates, and c² + c for out. torch.compile does not capture it as one graph.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in GruMixer(Site("tokens", 16, (5,))).parameters())
    1904

    site: tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        refuse_other_kinds("a gru mixer", site, "tokens")
        self.gru = nn.GRU(site.channels, site.channels, batch_first=True)
        self.out = nn.Linear(site.channels, site.channels)
        start_at_zero(self.out)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        memories, _ = self.gru(inputs)
        change: Tensor = self.out(memories)
        return inputs + change
