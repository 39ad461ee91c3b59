"""Layers that several blueprints use: convolutions of a site's kind, and layers that start at zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch.nn import Conv1d, Conv2d, Linear

    from esper_core import Site
    from esper_core.leyline import SiteKind


def start_at_zero(layer: Conv1d | Conv2d | Linear) -> None:
    """Set weight and bias of ``layer`` to zero, so that a residual block that ends with it starts as the identity.

    The layer itself gets a gradient at the first step, and the layers before it from the second step on.

    >>> layer = nn.Linear(2, 2)
    >>> start_at_zero(layer)
    >>> layer.weight.any().item(), layer.bias.any().item()
    (False, False)
    """
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def refuse_other_kinds(block: str, site: Site, *kinds: SiteKind) -> None:
    """Raise ValueError where a block cannot grow because of the layout of the data."""
    if site.kind not in kinds:
        places = (kind if kind == "tokens" else f"a {kind}" for kind in kinds)
        msg = f"{block} grows in {' or in '.join(places)}. Received: {site.kind}"
        raise ValueError(msg)


def refuse_no_inputs(block: str, site: Site) -> None:
    """Raise ValueError where an adapter cannot grow: it needs features that the module before the slot gets."""
    if not site.inputs:
        msg = f"{block} grows behind a layer that gets features. Received: {site}"
        raise ValueError(msg)


def linear_map(site: Site, inputs: int, outputs: int) -> Linear | Conv1d | Conv2d:
    """Return a linear map of the features of a site, without a bias: in images and sequences a 1×1 convolution.

    >>> from esper_core import Site
    >>> linear_map(Site("image", 8, (6, 5), inputs=3), 3, 2)
    Conv2d(3, 2, kernel_size=(1, 1), stride=(1, 1), bias=False)
    """
    if site.kind in ("vector", "tokens"):
        return nn.Linear(inputs, outputs, bias=False)
    return convolution(site, inputs, outputs, width=1, bias=False)


def convolution(
    site: Site, inputs: int, outputs: int, *, width: int, step: int = 1, groups: int = 1, bias: bool = True
) -> nn.Conv1d | nn.Conv2d:
    """Return a convolution over an image or a sequence that keeps its size.

    >>> from esper_core import Site
    >>> convolution(Site("sequence", 8, (40,)), 8, 4, width=5)
    Conv1d(8, 4, kernel_size=(5,), stride=(1,), padding=(2,))

    Args:
        site: an image or a sequence.
        inputs: number of input features.
        outputs: number of output features.
        width: kernel size, an odd number.
        step: dilation.
        groups: of features.
        bias: whether it has one.
    """
    kinds: dict[str, Any] = {"image": nn.Conv2d, "sequence": nn.Conv1d}
    if site.kind not in kinds:
        msg = f"a convolution grows in an image or a sequence. Received: {site.kind}"
        raise ValueError(msg)
    layer: nn.Conv1d | nn.Conv2d = kinds[site.kind](
        inputs, outputs, width, padding=step * (width // 2), dilation=step, groups=groups, bias=bias
    )
    return layer
