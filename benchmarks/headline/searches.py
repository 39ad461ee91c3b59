"""Architecture searches, computed from records of static networks instead of being trained again.

A static training is the same whether a search started it or not, so its looks at each rung tell what a search would
have seen, and its operations up to there what the search would have paid.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ETA: Final = 2
"""One of so many trainings is promoted to the next rung."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a search sees of one architecture: accuracy on validation, and operations so far, at each rung."""

    accuracy: Sequence[float]
    flops: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search chose, and the operations of all its trainings, the discarded ones included."""

    architecture: str
    flops: int


def asha(curves: Mapping[str, Curve], *, seed: int, eta: int = ETA) -> Found:
    """Return what asynchronous successive halving with one worker finds.

    Architectures start in random order. Whenever a training ends at a rung, the best of the highest rung with one that
    is among its top ``1/eta`` and not promoted yet goes on to the next rung; otherwise the next architecture starts. In
    the end the best at the highest rung is trained to the full horizon, within which all rungs lie.

    >>> curves = {"a": Curve([0.5, 0.6], [1, 2]), "b": Curve([0.4, 0.9], [10, 20])}
    >>> asha(curves, seed=0)
    Found(architecture='a', flops=12)
    """
    waiting = _shuffled(curves, seed)
    last = len(next(iter(curves.values())).accuracy) - 1
    reached: list[list[str]] = [[] for _ in range(last + 1)]
    promoted: list[set[str]] = [set() for _ in range(last + 1)]
    while True:
        for rung in reversed(range(last)):
            ranked = sorted(reached[rung], key=lambda name: -curves[name].accuracy[rung])
            able = [name for name in ranked[: len(ranked) // eta] if name not in promoted[rung]]
            if able:
                promoted[rung].add(able[0])
                reached[rung + 1].append(able[0])
                break
        else:
            if not waiting:
                break
            reached[0].append(waiting.pop(0))
    top = max(rung for rung in range(last + 1) if reached[rung])
    best = max(reached[top], key=lambda name: curves[name].accuracy[top])
    paid = {name: rung for rung in range(last + 1) for name in reached[rung]} | {best: last}
    return Found(best, sum(curves[name].flops[rung] for name, rung in paid.items()))


def random_search(
    curves: Sequence[Mapping[str, Curve]], *, seed: int, flops: int, trials: int = 3
) -> tuple[int, Found]:
    """Return what the best of ``trials`` random architectures is, each trained to the longest horizon that they afford.

    curves: of each horizon, in ascending order. The number of the horizon is returned, too; the first one if none is
    affordable.
    """
    drawn = _shuffled(curves[0], seed)[:trials]
    costs = [sum(candidates[name].flops[-1] for name in drawn) for candidates in curves]
    horizon = max((number for number, cost in enumerate(costs) if cost <= flops), default=0)
    best = max(drawn, key=lambda name: curves[horizon][name].accuracy[-1])
    return horizon, Found(best, costs[horizon])


def _shuffled(curves: Mapping[str, Curve], seed: int) -> list[str]:
    return random.Random(f"search {seed}").sample(sorted(curves), len(curves))
