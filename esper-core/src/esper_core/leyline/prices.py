"""Prices: what growth has to bring, in proportion to what it adds. One formula for gates, policies, rewards and probe.

    price = rate · (log2(size with the seed / size without it) + 0.10)

so that the prices of several seeds add up to rate · (doublings of the network + 0.10 · seeds).
"""

from __future__ import annotations

import math
from typing import Final

DOUBLING: Final = 0.01
"""Default rate: one point of accuracy, or one hundredth of the loss, for each doubling of the network."""

SEED: Final = 0.10
"""What each seed costs beside its size, in doublings; otherwise the smallest would pay everywhere."""


def doublings(size: float, base: float) -> float:
    """Return how often ``base`` doubles to become ``size``; 0 if the network has no size.

    >>> doublings(8.0, 2.0), doublings(2.0, 2.0)
    (2.0, 0.0)
    """
    return math.log2(size / base) if size > 0 and base > 0 else 0.0


def cost(added: float, base: float) -> float:
    """Return what a seed costs that adds so much to a network of size ``base``, in doublings.

    >>> cost(100.0, 100.0)
    1.1
    """
    return doublings(base + added, base) + SEED
