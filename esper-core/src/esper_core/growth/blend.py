"""How does what a seed puts out join what the host puts out?"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Add(nn.Module):
    """(1 − α) · h + α · s(h): the seed replaces the host's output by degrees. Exactly s(h) at α = 1."""

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """The blended output. It is never called at α = 0: there the seed is not evaluated."""
        return torch.lerp(host, seed, alpha)
