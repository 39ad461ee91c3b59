"""What do many comparisons show together? Of twenty without a difference one looks like one: Holm's adjustment.

The chance that any of a study's verdicts is wrong where there is no difference is held at 1 − confidence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from esper_core.runs.statistics import Comparison, Interval, decided

if TYPE_CHECKING:
    from collections.abc import Sequence


def holm(ps: Sequence[float]) -> list[float]:
    """Each of the p values, adjusted for all of them; in their order.

    Formula: of m sorted ones the i-th (from 1) becomes the largest of (m − j + 1) · p(j) for j up to i, and 1 at most.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for done, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - done) * ps[place]))
        adjusted[place] = largest
    return adjusted


def judged_together(
    comparisons: Sequence[Comparison | None], *, margin: float, confidence: float
) -> list[Comparison | None]:
    """The comparisons of one study with the p and the verdict that they have as the family that they are.

    One that could not be made, as a figure is not finite, is None; it was asked for, and counts as one that shows
    nothing.
    """
    adjusted = holm([1.0 if one is None else one.p_margin for one in comparisons])
    judged: list[Comparison | None] = []
    for one, p in zip(comparisons, adjusted, strict=True):
        if one is None:
            judged.append(None)
            continue
        interval = Interval(one.difference, one.low, one.high, one.n)
        family = len(comparisons) if one.paired else 1  # without pairs the least p is far smaller
        verdict, why = decided(interval, p, margin=margin, confidence=confidence, comparisons=family)
        judged.append(replace(one, p_holm=p, verdict=verdict, why=why))
    return judged
