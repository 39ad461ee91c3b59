"""How does a block start as the identity, and yet learn? Its last layer is zero at birth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch.nn import Conv1d, Conv2d, Linear


def start_at_zero(layer: Conv1d | Conv2d | Linear) -> None:
    """Make ``layer`` put out zeros, so that what it is added to passes unchanged.

    The layer itself gets a gradient at the first step, and through it all that stands before it at the second.

    >>> layer = nn.Linear(2, 2)
    >>> start_at_zero(layer)
    >>> layer.weight.any().item(), layer.bias.any().item()
    (False, False)
    """
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
