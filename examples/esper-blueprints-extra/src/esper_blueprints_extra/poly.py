"""A blueprint that multiplies two linear maps of the features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class Poly(nn.Module):
    """A residual polynomial of the second degree in the features of a vector or of each token.

    Formula: x + out(a(x) · b(x)), all c → c, out zero at birth. Parameters: 3·(c² + c).

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Poly(Site("vector", 32)).parameters())
    3168

    site: a vector or tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.kind not in ("vector", "tokens"):
            msg = f"poly grows in a vector or in tokens. Received: {site.kind}"
            raise ValueError(msg)
        self.a = nn.Linear(site.channels, site.channels)
        self.b = nn.Linear(site.channels, site.channels)
        self.out = nn.Linear(site.channels, site.channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change: Tensor = self.out(self.a(inputs) * self.b(inputs))
        return inputs + change
