"""What will a seed bring, and what does it cost? A calibrated forecast from its preview; all of it in nats.

A seed that learns in the shadow of its host gains less than it will once the host learns with it. By how much was
measured on two tasks, ``mnist1d`` and its shuffled sister under ``pointwise-mlp``, over four seeds each: a preview of
five steps against what the test split said after 40.

    seed                   germinated at step   0       5       15
    conv_light              preview → end   .130→.53  .113→.50  .121→.51     about 4 times
    depthwise_separable                     .042→.18  .032→.18  .025→.17     4 to 7 times
    pointwise                               .070→.02  .046→.04  .030→.07     0 to 2 times: sooner surer than it is right
    mlp                                     .028→−.06 .006→−.02 −.002→−.01   nothing to begin with
    conv_light, shuffled                    .046→.00  .020→.02  .006→.05     0 to 7 times, of next to nothing

So a forecast ranks, and finds what is worth a trial. It is no proof: a seed is kept by what it has really gained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import NATS_PER_PARAMETER
from esper_core.leyline.lifecycle import INCUBATING

if TYPE_CHECKING:
    from esper_core.leyline import Observation, SeedSignals

UNDERSOLD: Final = 4.0
"""Times what it gains in its preview that a seed brings at the end: the slope of the table, by its convolutions."""

CAUTION: Final = 1.64
"""Standard errors by which a gain is taken for less than it is: one that is 0 counts as more in one case of twenty."""

FEE: Final = 0.02
"""Nats that a kept seed costs beside its parameters; without it whatever is smallest would pay everywhere."""


SHARE_FOR_SEED: Final = 0.10
"""What a kept seed costs beside its parameters where the reward's price is asked: a share of that."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Says of a seed what it brings beyond its cost, in nats of validation loss per example. Above 0 it pays.

    >>> from esper_core.leyline import Gain, SeedSignals, Stage
    >>> gain = Gain(n=800, mean=0.12, deviation=0.4, skewness=0.0, worst=-2.0, best=2.0)
    >>> seed = SeedSignals("blueprints/conv_light", Stage.TRAINING, 0.0, parameters=656, age=5, gain=gain)
    >>> round(Forecast().net(seed), 3)
    0.302

    undersold: times what a preview shows that a seed brings at the end. caution: standard errors that are taken off a
    gain first. price: nats for each parameter; None: what the gates hold against it, or 0.0001 where they are off.
    fee: nats for each seed beside them. points: hundredths of the metric that a nat brings at the end, where the
    reward's own price is to be asked instead; None: it is not.
    """

    undersold: float = UNDERSOLD
    caution: float = CAUTION
    price: float | None = None
    fee: float = FEE
    points: float | None = None

    def asked(self, observation: Observation) -> Forecast:
        """The forecast with what the run's reward asks, where it names a price; ``points`` say what that is in nats.

        The reward's price is for as many parameters as the host has, and a tenth of it for each seed: so ``team`` asks.
        """
        if self.points is None or observation.price is None:
            return self
        nats = observation.price / self.points
        return replace(self, price=nats / max(1, observation.signals.host_parameters), fee=nats * SHARE_FOR_SEED)

    def net(self, seed: SeedSignals) -> float | None:
        """What the seed brings beyond its cost: as a forecast while it incubates, as measured later. None: unknown.

        Where a loss was no finite number, or one example is all there was, it brings nothing.
        """
        if seed.gain is None:
            return None
        sure = seed.gain.mean - self.caution * seed.gain.standard_error
        if not math.isfinite(sure):
            return -math.inf
        return (self.undersold * sure if seed.stage in INCUBATING else sure) - self.cost(seed)

    def cost(self, seed: SeedSignals) -> float:
        """What keeping the seed costs."""
        asked = None if seed.opinion is None else seed.opinion.price
        if self.price is None and asked is not None:
            return asked + self.fee
        per_parameter = NATS_PER_PARAMETER if self.price is None else self.price
        return seed.parameters * per_parameter + self.fee
