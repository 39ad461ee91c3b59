"""A blueprint: a gate for each feature, computed from all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

REDUCTION: Final = 4
"""How much narrower the block is inside."""


class SqueezeExcite(nn.Module):
    """Each feature times a gate from 0 to 2, computed from all positions of the example.

    Formula: x · 2σ(excite(silu(squeeze(mean(x))))), c → m → c with m = max(c // 4, 1); the mean is over positions,
    excite is zero at birth, and so every gate is 1. Parameters: (c·m + m) + (m·c + c).

    >>> from esper_core import Site
    >>> sum(p.numel() for p in SqueezeExcite(Site("image", 8, (4, 4))).parameters())
    42

    site: an image, a sequence or tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.kind == "vector":
            msg = f"squeeze_excite grows in an image, a sequence or tokens. Received: {site.kind}"
            raise ValueError(msg)
        inside = max(site.channels // REDUCTION, 1)
        self.places = (1,) if site.kind == "tokens" else tuple(range(2, 2 + len(site.size)))
        self.squeeze = nn.Linear(site.channels, inside)
        self.excite = nn.Linear(inside, site.channels)
        start_at_zero(self.excite)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        summary = inputs.mean(self.places, keepdim=True)
        gate = 2 * functional.sigmoid(self.excite(functional.silu(self.squeeze(summary.flatten(1)))))
        return inputs * gate.view_as(summary)
