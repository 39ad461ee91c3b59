"""A blueprint with a gain for each band of a Haar wavelet split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from esper_blueprints_extra.pointwise import pointwise_conv

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site


class Haar(nn.Module):
    """One level of the Haar wavelet: coarse and fine along each dimension, a gain for each channel of each band, a mix.

    Formula: x + mix(relu(Σ_k g_k · band_k(x))), over the 2ⁿ bands of n spatial dimensions; g one and mix zero at birth.
    Parameters: 2ⁿ·c + c² + c.

    >>> from esper_core import Site
    >>> sum(p.numel() for p in Haar(Site("image", 8, (6, 5))).parameters())
    104

    site: an image or a sequence, of any size: a last place without a partner is a pair by itself.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = pointwise_conv(site, zero=True)
        self.gains = nn.Parameter(torch.ones(2 ** len(site.size), site.channels, *(1 for _ in site.size)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        weighted = torch.stack([gain * band for gain, band in zip(self.gains, bands(inputs), strict=True)]).sum(dim=0)
        change: Tensor = self.mix(functional.relu(weighted))
        return inputs + change


def bands(inputs: Tensor) -> list[Tensor]:
    """Split ``inputs`` into coarse and fine parts along each spatial dimension, at full size; they sum to it.

    >>> [band.tolist() for band in bands(torch.tensor([[[1.0, 3.0, 5.0]]]))]
    [[[[2.0, 2.0, 5.0]]], [[[-1.0, 1.0, 0.0]]]]
    """
    parts = [inputs]
    for dim in range(2, inputs.dim()):
        coarse = [pair_means(band, dim) for band in parts]
        parts = [part for band, low in zip(parts, coarse, strict=True) for part in (low, band - low)]
    return parts


def pair_means(values: Tensor, dim: int) -> Tensor:
    """Replace each value by the mean of its pair along ``dim``.

    >>> pair_means(torch.tensor([1.0, 3.0, 5.0]), 0).tolist()
    [2.0, 2.0, 5.0]
    """
    pairs, single = divmod(values.shape[dim], 2)
    paired = values.narrow(dim, 0, 2 * pairs).reshape(*values.shape[:dim], pairs, 2, *values.shape[dim + 1 :])
    means = paired.mean(dim + 1).repeat_interleave(2, dim)
    return torch.cat([means, values.narrow(dim, 2 * pairs, single)], dim)
