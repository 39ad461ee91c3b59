"""How do two samples compare that are no pairs? By who is ahead of whom: the Mann-Whitney test and Cliff's delta.

Ranks heed no scale: one wild value moves them no further than any other, and no distribution is assumed. Pure functions
of numbers, without scipy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

EXACT_UP_TO: Final = 400
"""Pairs of one value of a and one of b up to which every way to deal the values out is counted: 20 against 20."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """Who is ahead, over all pairs of one value of a and one of b.

    u: pairs in which a is ahead, a tie being half of one.
    p: how often chance alone would put one of them at least as far ahead, in either direction.
    cliffs_delta: share of pairs in which a is ahead less the share in which b is, from −1 to 1; also known as the
    rank-biserial correlation.
    """

    u: float
    p: float
    cliffs_delta: float


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> RankTest:
    """The two-sided Mann-Whitney test of ``a`` against ``b``; more is ahead.

    Formula: U = R − n (n + 1) / 2, R the sum of the ranks of a's n values among all, ties sharing their mean rank.
    p is exact, with and without ties, up to 400 pairs (20 against 20); beyond, it is that of the normal distribution
    with corrections for ties and for continuity.

    >>> mann_whitney([3.0, 4.0, 5.0], [1.0, 2.0])
    RankTest(u=6.0, p=0.2, cliffs_delta=1.0)
    """
    if not a or not b or not all(map(math.isfinite, (*a, *b))):
        msg = f"both samples need values, and finite ones. Received: {len(a)} and {len(b)} values"
        raise ValueError(msg)
    doubled = _doubled_ranks([*a, *b])
    pairs = len(a) * len(b)
    own = sum(doubled[: len(a)])
    u = (own - len(a) * (len(a) + 1)) / 2
    p = _exact_p(doubled, len(a), own) if pairs <= EXACT_UP_TO else _normal_p(doubled, len(a), len(b), u)
    return RankTest(u, p, 2 * u / pairs - 1)


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, from 1; equal ones share the mean of theirs. Doubled, they are whole numbers."""
    order = sorted(range(len(values)), key=values.__getitem__)
    doubled = [0] * len(values)
    begun = 0
    for _, equal in groupby(order, key=values.__getitem__):
        places = list(equal)
        for place in places:
            doubled[place] = 2 * begun + len(places) + 1
        begun += len(places)
    return doubled


def _exact_p(doubled: Sequence[int], n: int, own: int) -> float:
    """The share of all ways to deal out the ranks that is at least as far from the middle as this one.

    Counted one rank at a time: how many choices of k of the ranks so far have which sum.
    """
    total = sum(doubled)
    if n > len(doubled) - n:
        n, own = len(doubled) - n, total - own
    ways = np.zeros((n + 1, total + 1), dtype=np.int64)
    ways[0, 0] = 1
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    off = np.abs(np.arange(total + 1) * len(doubled) - total * n)
    return float(ways[n, off >= abs(own * len(doubled) - total * n)].sum() / math.comb(len(doubled), n))


def _normal_p(doubled: Sequence[int], n: int, m: int, u: float) -> float:
    """Formula: erfc(z / √2), z = (|U − nm/2| − ½) / σ, σ² = nm/12 · (N + 1 − Σ (t³ − t) / (N (N − 1)))."""
    every = n + m
    ties = [len(list(equal)) for _, equal in groupby(sorted(doubled))]
    variance = n * m / 12 * (every + 1 - sum(t**3 - t for t in ties) / (every * (every - 1)))
    if variance <= 0:  # every value is the same
        return 1.0
    return math.erfc(max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(2 * variance))
