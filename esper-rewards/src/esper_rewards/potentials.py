"""What was a step worth, where only the end of an episode may count? The change of a potential, paid as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import RewardBreakdown
from esper_rewards.costs import fossil_fee, rent
from esper_rewards.gains import POINTS, improvement, kept_share, nats
from esper_rewards.moments import demand_pair
from esper_rewards.settings import EscrowSettings, LossSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import Metric, Signals


class Loss:
    """``team`` without a metric: nats of validation loss against the twin, as a language model is judged.

    Formula: Φ(now) − Φ(before), where Φ = 100 · nats − price · (added / host + 0.10 · fossils), and Φ = 0 before the
    first step. nats is how much lower the validation loss is than the twin's, 10 either way at most.
    Range: an episode's sum is Φ at its end, at most 1000.
    Direction: up with a lower loss, down with parameters and fossils.
    Invites: stopping before the loss turns: on few data a grown network's loss rises while its accuracy does, too.

    >>> from esper_core.leyline import Metric, Signals
    >>> twin = Signals(9, 1.0, 1.00, 0.5, parameters=5000, host_parameters=5000, slots=())
    >>> grown = Signals(9, 0.5, 0.75, 0.5, parameters=6000, host_parameters=5000, slots=())
    >>> Loss(metric=Metric("perplexity", "down")).score(grown, None, twin, None).terms
    {'improvement': 25.0, 'rent': -4.0, 'fossil_fee': 0.0}

    metric: what the task is judged by; it is not asked.
    price: hundredths of a nat that doubling the host's parameters must bring to break even.
    price_of_flops: as for ``team``.
    """

    def __init__(self, *, metric: Metric, price: float = 20.0, price_of_flops: float = 0.0) -> None:
        self.metric = metric
        own = LossSettings(price=price, price_of_flops=price_of_flops)
        self.price, self.price_of_flops = own.price, own.price_of_flops

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """What this step was worth."""
        demand_pair(before, twin_before)
        earlier = None if before is None or twin_before is None else self.potential(before, twin_before)
        return change(self.potential(now, twin), earlier)

    def potential(self, signals: Signals, twin: Signals) -> dict[str, float]:
        """The three parts of Φ at one step."""
        return {
            "improvement": POINTS * nats(signals, twin),
            "rent": rent(signals, self.price, self.price_of_flops),
            "fossil_fee": fossil_fee(signals, self.price),
        }


class Escrow:
    """``team``, whose credit is held until something is kept.

    Formula: Φ(now) − Φ(before), where Φ = share · 100 · gain − price · (added / host + 0.10 · fossils), and Φ = 0
    before the first step. share is that of the fossils in all that acts on the host: fossils / (fossils + Σ alpha), and
    0 without a fossil.
    Range: an episode's sum is Φ at its end: at most 100 where the metric lies between 0 and 1.
    Direction: up with a better metric and with fossils in it, down with parameters.
    Invites: nothing that lasts, since it ends where ``team`` does; a gain is seen late, and blending in a second seed
    lends out a part of what the first one was paid.

    >>> from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
    >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
    >>> kept = Signals(9, 0.5, 0.5, 0.75, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
    >>> Escrow(metric=Metric("accuracy")).score(kept, None, twin, None).terms
    {'improvement': 25.0, 'rent': -4.0, 'fossil_fee': -2.0}

    metric: what the task is judged by, and which way is better.
    price, price_of_flops: as for ``team``.
    """

    def __init__(self, *, metric: Metric, price: float = 20.0, price_of_flops: float = 0.0) -> None:
        self.metric = metric
        own = EscrowSettings(price=price, price_of_flops=price_of_flops)
        self.price, self.price_of_flops = own.price, own.price_of_flops

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """What this step was worth."""
        demand_pair(before, twin_before)
        earlier = None if before is None or twin_before is None else self.potential(before, twin_before)
        return change(self.potential(now, twin), earlier)

    def potential(self, signals: Signals, twin: Signals) -> dict[str, float]:
        """The three parts of Φ at one step."""
        return {
            "improvement": kept_share(signals) * improvement(self.metric, signals, twin),
            "rent": rent(signals, self.price, self.price_of_flops),
            "fossil_fee": fossil_fee(signals, self.price),
        }


def change(after: Mapping[str, float], earlier: Mapping[str, float] | None) -> RewardBreakdown:
    """By how much each part of a potential changed; before the first step all were 0."""
    return RewardBreakdown({name: value - (0.0 if earlier is None else earlier[name]) for name, value in after.items()})
