"""A blueprint: a narrow MLP beside a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from esper_blueprints.layers import refuse_no_inputs, refuse_other_kinds, start_at_zero

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class BottleneckAdapter(nn.Module):
    """A narrow MLP of what a layer gets, added to what it returns: a parallel adapter (He et al., 2022).

    Formula: y + up(silu(down(x))), i → width → c, up zero at birth. Parameters: width·(i + c) + width + c. It is not
    linear, so it is neither merged into a weight nor saved for PEFT.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in BottleneckAdapter(Site("tokens", 32, (5,), inputs=16), width=4).parameters())
    228

    site: a vector or tokens, behind a module that gets the like. width: features between the two maps.
    """

    def __init__(self, site: Site, *, width: int = 16) -> None:
        super().__init__()
        refuse_other_kinds("a bottleneck adapter", site, "vector", "tokens")
        refuse_no_inputs("a bottleneck adapter", site)
        self.down = nn.Linear(site.inputs, width)
        self.up = nn.Linear(width, site.channels)
        start_at_zero(self.up)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the change of the layer's outputs."""
        change: Tensor = self.up(functional.silu(self.down(inputs.to(self.down.weight.dtype))))
        return change
