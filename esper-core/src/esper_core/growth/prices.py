"""What seeds have to gain: their share of the network, in the unit of gains.

    price = rate · (log2(size with the seed / size without it) + 0.10) · whole

so that the prices of several seeds add up to rate · (doublings of the network + 0.10 · seeds) · whole. Rewards charge
the same. The size of a network is its operations; where torch cannot count them, or the settings say so, its
parameters; and where most of the host is frozen, as under adapters, the parameters that train, beside a budget of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from esper_core.growth.seeds import Presence
from esper_core.growth.slots import host_parameters
from esper_core.leyline.constants import SEED_IN_DOUBLINGS
from esper_core.leyline.lifecycle import BLENDED, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from esper_core.growth.garden import Garden
    from esper_core.growth.seeds import Seed
    from esper_core.growth.slots import Slot
    from esper_core.leyline.signals import Gain, Metric
    from esper_core.leyline.specs import Operations
    from esper_core.settings import GrowthConfig

FROZEN: Final = 0.5
"""A host of which a smaller share trains is frozen: its seeds are adapters."""

BUDGET: Final = 0.01
"""Share of a frozen host's parameters that adapters may have for the price of one doubling, if nothing else is set."""


def follow_operations(model: nn.Module, growth: GrowthConfig) -> bool:
    """Return whether the prices of what grows in ``model`` follow operations, where these are known."""
    total, trained = _parameters(model)
    price = growth.price
    return price.per_parameter is None and price.of == "operations" and trained >= FROZEN * total


def _parameters(model: nn.Module) -> tuple[int, int]:
    """Return how many parameters a host has, and how many of them train."""
    parameters = host_parameters(model)
    trained = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    return sum(parameter.numel() for parameter in parameters), sum(trained)


class Prices:
    """The prices of what may grow in one host.

    Args:
        model: The host, with its slots or without.
        growth: The settings of the price, and the unit of gains.
        metric: That unit, if gains are measured in the metric.
        host_operations: Operations of the host's pass for one example; None: unknown.
    """

    def __init__(
        self, model: nn.Module, growth: GrowthConfig, metric: Metric | None, host_operations: int | None
    ) -> None:
        self._settings = growth.price
        # Scores of a perplexity are logarithms, and so are gains: its price is one of the loss.
        self._metric = metric if metric and not metric.exponential and growth.evidence == "metric" else None
        total, trained = _parameters(model)
        self.counts_operations = False
        if host_operations is not None and follow_operations(model, growth):
            self.counts_operations, self._base = True, host_operations
        elif trained < FROZEN * total:
            self._base = growth.price.budget or growth.parameters or max(1, round(BUDGET * total))
        else:
            self._base = total

    def price(self, parameters: int, size: int, others: int, loss: float, metric: float = 0.0) -> float:
        """Return what a seed has to gain.

        Args:
            parameters: Those of the seed.
            size: What it adds: operations if ``counts_operations``, else parameters.
            others: The same of all other seeds that act.
            loss: The validation loss without the seed.
            metric: The metric without it.
        """
        settings = self._settings
        if settings.per_parameter is not None:
            return settings.per_parameter * parameters
        if self._metric is None:
            whole = abs(loss - settings.floor)
        else:
            whole = 1.0 if self._metric.is_share else abs(metric - settings.floor)
        # A host may have no operations that torch counts.
        return settings.doubling * (math.log2(1 + size / max(1, self._base + others)) + SEED_IN_DOUBLINGS) * whole


class SeedPrices:
    """The prices of the living seeds of a garden; ``operations`` are those of host and blueprints, None: unknown."""

    def __init__(
        self, garden: Garden, growth: GrowthConfig, metric: Metric | None, operations: Operations | None
    ) -> None:
        self._garden, self._operations = garden, operations
        self._prices = Prices(garden.model, growth, metric, None if operations is None else operations.host)

    def of_living(self, loss: float, metric: float, gains: Mapping[int, Gain]) -> dict[int, float]:
        """Return the price of each living seed by its number, at this validation loss and metric of the network.

        That of a set is the sum of its seeds' prices.
        """
        present = self._garden.all_seeds()
        sizes = {seed.number: self._size(slot, seed) for slot, seed in present}
        acting = {seed.number for _, seed in present if seed.stage is Stage.FOSSILISED or seed.stage in BLENDED}
        prices = {}
        for _, seed in present:
            if seed.stage is not Stage.FOSSILISED:
                number = seed.number
                # A share of what the host loses without the seed. The network's loss has the gain of one that acts on
                # it, but not of one that acts on a branch.
                has_gain = number in acting and seed.presence is Presence.ACTING and number in gains
                without = loss + gains[number].mean if has_gain else loss
                others = sum(sizes[other] for other in acting - {number})
                prices[number] = self._prices.price(seed.parameter_count, sizes[number], others, without, metric)
        for number, incubation in self._garden.incubating.items():
            if incubation.is_set:
                prices[number] = sum(prices[seed.number] for _, seed in incubation.members)
        return prices

    def _size(self, slot: Slot, seed: Seed) -> int:
        if self._operations is None or not self._prices.counts_operations:
            return seed.parameter_count
        # One that the model brought along may be of a blueprint that does not grow here; the host's count has it.
        return self._operations.blocks.get((slot.name, seed.blueprint), 0)
