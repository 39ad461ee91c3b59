"""A blueprint: IA³, a factor for each feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from esper_blueprints.layers import refuse_other_kinds

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class Ia3(nn.Module):
    """A learned factor for each feature (Liu et al., 2022): the cheapest change of a trained network.

    Formula: (1 + d)·x, with d zero at birth, so that weight decay pulls to the identity. Parameters: c. It is meant for
    keys and values, and for the features inside of an MLP.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Ia3(Site("vector", 32)).parameters())
    32

    site: a vector or tokens.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        refuse_other_kinds("IA³", site, "vector", "tokens")
        self.change = nn.Parameter(torch.zeros(site.channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        return inputs * (1.0 + self.change)
