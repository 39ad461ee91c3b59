"""What does each seed do for the network? Pure functions on losses that were measured in several configurations.

A configuration is the set of slots whose living seeds act. First it is asked which configurations are needed, then, of
the losses that were measured, what they say. Where a configuration was not measured there is no value for it: a
missing one is left out of the answer and never made up. Losses are rows, one for each example, and so are the answers;
a positive one means that the loss is lower for it.

    dependence    L(main without s) − L(main): how much the network leans on a seed, which is not what it gained by it
    synergy       what the loss rises without both s and t, beyond what it rises without each
    Shapley       the mean over all orders of the seeds of what one lowers the loss by when it joins those before it
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Final

import torch

from esper_core.growth.randomness import derive_seed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torch import Tensor

    from esper_core.growth.replay import Configuration

    Losses = Mapping[Configuration, Tensor]

EXACT: Final = 4
"""Seeds up to which all coalitions are evaluated: 16 configurations."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shapley values: ``rows`` for each seed's slot a value for each example.

    ``errors`` has the standard error of each one's mean over the examples, from the orders that were drawn, on the
    same device; None where all orders were counted and there is none.
    """

    rows: Mapping[str, Tensor]
    errors: Mapping[str, Tensor] | None


def each_left_out(main: Configuration) -> list[Configuration]:
    """``main``, and main without each of its seeds."""
    return [main, *(main - {name} for name in sorted(main))]


def pairs_left_out(main: Configuration) -> list[Configuration]:
    """What ``synergy`` needs: ``main``, main without each of its seeds, and without each two of them."""
    return [*each_left_out(main), *(main - set(pair) for pair in combinations(sorted(main), 2))]


def coalitions(seeds: Collection[str], base: Configuration = frozenset()) -> list[Configuration]:
    """What ``shapley`` needs: every subset of ``seeds``, each with those of ``base``, which always act.

    >>> [sorted(one) for one in coalitions(["a", "b"])]
    [[], ['a'], ['b'], ['a', 'b']]
    """
    if len(seeds) > EXACT:
        msg = f"all coalitions of more than {EXACT} seeds are too many; draw orders. Received: {len(seeds)} seeds"
        raise ValueError(msg)
    return [base | set(some) for some in _subsets(seeds)]


def drawn_orders(seeds: Collection[str], count: int, seed: int) -> list[tuple[str, ...]]:
    """``count`` orders of the seeds, drawn independently; the same for the same ``seed``."""
    if count < 2:
        msg = f"an error can be told from 2 orders on. Received: {count}"
        raise ValueError(msg)
    draw = random.Random(derive_seed(seed, "orders"))
    return [tuple(draw.sample(sorted(seeds), len(seeds))) for _ in range(count)]


def along(orders: Sequence[Sequence[str]], base: Configuration = frozenset()) -> list[Configuration]:
    """What ``sampled_shapley`` needs: the configurations through which one comes in these orders, each once."""
    return list(dict.fromkeys(base | set(order[:size]) for order in orders for size in range(len(order) + 1)))


def dependence(losses: Losses, main: Configuration) -> dict[str, Tensor]:
    """For each seed of ``main`` what the loss rises when it alone is left out."""
    if main not in losses:
        return {}
    return {name: losses[main - {name}] - losses[main] for name in sorted(main) if main - {name} in losses}


def synergy(losses: Losses, main: Configuration) -> dict[tuple[str, str], Tensor]:
    """For each two seeds what the loss rises when both are left out, beyond what it rises without one and the other.

    Positive: either could stand in for the other. Negative: one is of little use without the other.
    """
    alone = dependence(losses, main)
    return {
        (one, other): losses[without] - losses[main] - alone[one] - alone[other]
        for one, other in combinations(sorted(alone), 2)
        if (without := main - {one, other}) in losses
    }


def shapley(losses: Losses, seeds: Collection[str], base: Configuration = frozenset()) -> Shares:
    """The exact values; for no seed where a coalition is missing, since each takes part in all of them.

    Their sum is the loss with ``base`` alone, less the loss with all.
    """
    if any(coalition not in losses for coalition in coalitions(seeds, base)):
        return Shares({}, None)
    rows = {}
    for name in sorted(seeds):
        others = [other for other in seeds if other != name]
        terms = []
        for some in _subsets(others):
            before = base | set(some)
            weight = 1.0 / (len(seeds) * math.comb(len(others), len(some)))
            terms.append(weight * (losses[before] - losses[before | {name}]))
        rows[name] = torch.stack(terms).sum(0)
    return Shares(rows, None)


def sampled_shapley(losses: Losses, orders: Sequence[Sequence[str]], base: Configuration = frozenset()) -> Shares:
    """The mean over ``orders`` of what each seed lowers the loss by, and how far off that mean may be.

    A seed for which a configuration is missing in any of the orders has no value: what is left would be chosen.
    """
    rows, errors = {}, {}
    for name in sorted({name for order in orders for name in order}):
        steps = [(base | set(order[: order.index(name)])) for order in orders]
        if any(before not in losses or before | {name} not in losses for before in steps):
            continue
        gains = torch.stack([losses[before] - losses[before | {name}] for before in steps])
        rows[name] = gains.mean(0)
        errors[name] = gains.flatten(1).mean(1).std() / math.sqrt(len(orders))
    return Shares(rows, errors)


def _subsets(seeds: Collection[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(sorted(seeds), size) for size in range(len(seeds) + 1))
