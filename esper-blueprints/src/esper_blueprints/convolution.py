"""Which convolution does a site take?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from esper_core import Site


def convolution(
    site: Site, inputs: int, outputs: int, *, width: int, step: int = 1, groups: int = 1
) -> nn.Conv1d | nn.Conv2d:
    """A convolution over what lies around each place of an image or sequence; the size stays what it is.

    >>> from esper_core import Site
    >>> convolution(Site("sequence", 8, (40,)), 8, 4, width=5)
    Conv1d(8, 4, kernel_size=(5,), stride=(1,), padding=(2,))

    inputs, outputs: features before and after. width: how many neighbours are seen along each dimension, an odd number.
    step: how far apart those neighbours are. groups: into how many parts the features fall that do not see each other.
    """
    padding = step * (width // 2)
    if site.kind == "image":
        return nn.Conv2d(inputs, outputs, kernel_size=width, padding=padding, dilation=step, groups=groups)
    if site.kind == "sequence":
        return nn.Conv1d(inputs, outputs, kernel_size=width, padding=padding, dilation=step, groups=groups)
    msg = f"a convolution grows in an image or a sequence. Received: {site.kind}"
    raise ValueError(msg)
