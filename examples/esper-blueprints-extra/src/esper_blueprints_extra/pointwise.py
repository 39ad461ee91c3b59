"""The pointwise convolution that two of the blueprints share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from esper_core import Site


def pointwise_conv(site: Site, *, zero: bool = False) -> nn.Conv1d | nn.Conv2d:
    """Build a convolution of width 1 from all channels to all channels. Parameters: c² + c.

    >>> from esper_core import Site
    >>> pointwise_conv(Site("sequence", 8, (40,)))
    Conv1d(8, 8, kernel_size=(1,), stride=(1,))

    zero: whether it outputs zeros at birth, so that a block that adds it to its input is an identity.
    """
    if site.kind not in ("image", "sequence"):
        msg = f"this blueprint grows in an image or a sequence. Received: {site.kind}"
        raise ValueError(msg)
    layer = nn.Conv2d if site.kind == "image" else nn.Conv1d
    mix = layer(site.channels, site.channels, kernel_size=1)
    if zero:
        nn.init.zeros_(mix.weight)
        assert mix.bias is not None
        nn.init.zeros_(mix.bias)
    return mix
