"""Measure what policies do with a blueprint that was missing in their training, in several ways.

They decide by its description alone, or try it first, at every price or up to a bound. Measured are how often it is the
best choice, how often it is chosen then, and the reward of each way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.science.learned_policies.evaluation import interval
from esper_study.growbench import CANDIDATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.science.learned_policies.evaluation import Result
    from esper_study.growbench import Node

    ByPrice = Mapping[float, Result]

AT_ONCE: Final[Mapping[str, Any]] = {"look_at_new": True}
"""How a gardener is set that looks first at what it never saw."""


def worth_beside(one: ByPrice, other: ByPrice) -> dict[str, Any]:
    """Return the gain of one method over another at each price, problem by problem."""
    return {f"{price:g}": interval(own.rewards.mean(0) - other[price].rewards.mean(0)) for price, own in one.items()}


def highest(worth: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the highest price up to which exploring pays on average; 0: it never does.

    >>> highest({"10": {"mean": 0.5}, "20": {"mean": 0.1}, "40": {"mean": -1.0}})
    20.0
    """
    bound = 0.0
    for price, found in worth.items():
        if found["mean"] <= 0.0:
            break
        bound = float(price)
    return bound


def newcomers(blueprint: str, ways: Mapping[str, ByPrice], best: ByPrice) -> list[dict[str, Any]]:
    """Return, by method, how often a blueprint is kept where it is the best, and the gain over the first method.

    best: the results of the oracle. A case is a problem at a price, for each policy.
    """
    wanted = next(number for number, (_, own) in enumerate(CANDIDATES) if own == blueprint)
    due = {price: np.array([_has(end, wanted) for end in own.ends[0]]) for price, own in best.items()}
    first = next(iter(ways.values()))
    found: list[dict[str, Any]] = []
    for way, by_price in ways.items():
        bought = {
            f"{price:g}": [
                bool(_has(one, wanted)) for end in own.ends for one, case in zip(end, due[price], strict=True) if case
            ]
            for price, own in by_price.items()
        }
        found.append(
            {
                "blueprint": blueprint,
                "way": way,
                "cases_where_it_is_best": sum(int(own.sum()) for own in due.values()),
                "by_price": {price: [sum(own), len(own)] for price, own in bought.items()},
                "episodes": sum(map(len, bought.values())),
                "bought": sum(map(sum, bought.values())),
                "reward": {f"{price:g}": interval(own.rewards.mean(0)) for price, own in by_price.items()},
                "less_first": worth_beside(by_price, first),
            }
        )
    return found


def _has(end: Node, sprout: int) -> bool:
    return any(one.candidate == sprout for one in end.kept)
