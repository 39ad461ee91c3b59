"""A blueprint: adds RMS-normalised features, with a learned gain and bias; it has the fewest parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

EPSILON: Final = 1e-5
"""Added to the mean square, so that features that are all zero stay zero."""


class Norm(nn.Module):
    """Residual RMS normalisation of each example, or of each token.

    Formula: x + γ·x / √(mean(x²) + ε) + β, γ and β zero at birth; the mean is over features and positions together.
    It is not subtracted, since that would leave nothing of a single feature. Parameters: 2·c.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Norm(Site("tokens", 8, (5,))).parameters())
    16

    site: any.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.by_token = site.kind == "tokens"
        shape = (site.channels, *(1 for _ in site.size)) if not self.by_token else (site.channels,)
        self.gain = nn.Parameter(torch.zeros(shape))
        self.shift = nn.Parameter(torch.zeros(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        over = inputs.shape[-1:] if self.by_token else inputs.shape[1:]
        return inputs + (self.gain * functional.rms_norm(inputs, over, eps=EPSILON) + self.shift)
