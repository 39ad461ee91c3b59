"""Forecasts of the gain of a seed that incubates, by which the policy ``heuristic`` decides which seeds to try."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import EPISODE_BATCHES
from esper_core.leyline.lifecycle import INCUBATING
from esper_policies.settings import HeuristicSettings

if TYPE_CHECKING:
    from esper_core.leyline import Observation, SeedSignals

LOOKS: Final = 3
"""Looks at a seed that acts before it is pruned for what they show, for steps of 32 batches."""

MOST_RISE: Final = 3.0
"""Most times its present gain that a young seed is expected to reach: that of ``conv_light`` after three steps."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecasts the gain of a seed beyond its price, in the unit of gains. Above 0 it pays.

    >>> from esper_core.leyline import Gain, SeedSignals, Stage
    >>> gain = Gain(n=800, mean=0.12, deviation=0.4, skewness=0.0, worst=-2.0, best=2.0)
    >>> seed = SeedSignals("blueprints/conv_light", Stage.TRAINING, 0.0, parameters=656, age=6, gain=gain, price=0.1)
    >>> [round(bound, 3) for bound in Forecast().interval(seed)]
    [0.094, 0.14, 0.186]

    settings: those of the policy; rise and caution are read. pace: batches of a decision step, divided by 32: seeds
    learn by batches, and short steps show little.
    """

    settings: HeuristicSettings = field(default_factory=HeuristicSettings)
    pace: float = 1.0

    @property
    def looks(self) -> int:
        """How many looks at an acting seed come first: those of as many batches as ``LOOKS`` usual steps have."""
        return max(LOOKS, math.ceil(LOOKS / self.pace))

    def at(self, observation: Observation) -> Forecast:
        """Return the forecast for steps of this length."""
        return replace(self, pace=(observation.batches or EPISODE_BATCHES) / EPISODE_BATCHES)

    def net(self, seed: SeedSignals) -> float | None:
        """Return a lower bound of the seed's gain beyond its price: forecast while it incubates, measured later.

        It is None if the gain is unknown, and -inf if a loss was not finite, or there was one example only.
        """
        return None if seed.gain is None else self.interval(seed)[0]

    def interval(self, seed: SeedSignals) -> tuple[float, float, float]:
        """Return lower bound, mean and upper bound of the gain beyond the price.

        All are −∞ for a loss that is not finite. A gain that is unknown may have any value.
        """
        if seed.gain is None:
            return -math.inf, -math.inf, math.inf
        mean, error = seed.gain.mean, self.settings.caution * seed.gain.standard_error
        return (
            self._beyond_price(seed, mean - error),
            self._beyond_price(seed, mean),
            self._beyond_price(seed, mean + error),
        )

    def gain(self, seed: SeedSignals) -> float:
        """Return the mean gain of the latest step; −∞ if it is unknown."""
        return -math.inf if seed.gain is None or not seed.gain.finite else seed.gain.mean

    def growth(self, seed: SeedSignals) -> float:
        """Return by which factor the gain of a seed that incubates is expected to rise."""
        age = max(1.0, self.pace * (seed.age or 1))
        return min(1 + self.settings.rise / age, MOST_RISE)

    def surplus(self, seed: SeedSignals) -> float:
        """Return the mean gain of the latest step beyond the price; −∞ if it is unknown."""
        return self.gain(seed) - (seed.price or 0.0)

    def _beyond_price(self, seed: SeedSignals, gain: float) -> float:
        if not math.isfinite(gain):
            return -math.inf
        rises = seed.stage in INCUBATING and gain > 0
        return (gain * self.growth(seed) if rises else gain) - (seed.price or 0.0)
