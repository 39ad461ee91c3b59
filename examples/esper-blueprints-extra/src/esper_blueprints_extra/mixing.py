"""Which layer mixes the channels of each place by itself?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from esper_core import Site


def mixing(site: Site, *, zero: bool = False) -> nn.Conv1d | nn.Conv2d:
    """A layer from all channels to all channels at each place of an image or sequence. Parameters: c² + c.

    >>> from esper_core import Site
    >>> mixing(Site("sequence", 8, (40,)))
    Conv1d(8, 8, kernel_size=(1,), stride=(1,))

    zero: whether it puts out zeros at birth, so that what it is added to passes unchanged.
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
