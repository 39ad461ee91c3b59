"""Rewards that are the change of a potential, so that an episode adds up to the potential at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import RewardBreakdown
from esper_rewards.settings import TeamSettings
from esper_rewards.terms import POINTS, demand_pair, fossil_fee, improvement, kept_share, nats, rent

if TYPE_CHECKING:
    from esper_core.leyline import Metric, Signals


class Team:
    """The default reward: the change of a potential, so that an episode's sum is the potential at its end.

    Formula: Φ(now) − Φ(before), where Φ = 100 · gain − price · (added / host + 0.10 · fossils), and Φ = 0 before the
    first step. gain is how much better the validation metric is than the twin's at the same step, added the parameters
    beyond the host's. Where operations have a price, Φ is less by it, too: price_of_flops · added / host, counted in
    operations. The terms ``improvement``, ``rent`` and ``fossil_fee`` are the changes of its three parts.
    Range: an episode's sum is Φ at its end: at most 100 where the metric lies between 0 and 1.
    Direction: up with a better metric, down with parameters and fossils.
    Invites: to fit the validation split, which is what it is counted on; the test split says how far that went.

    >>> from esper_core.leyline import Metric, Signals
    >>> twin = Signals(9, 1.0, 1.0, 0.58, parameters=5000, host_parameters=5000, slots=())
    >>> grown = Signals(9, 0.5, 0.5, 0.68, parameters=6000, host_parameters=5000, slots=())
    >>> breakdown = Team(metric=Metric("accuracy")).score(grown, None, twin, None)
    >>> {name: round(value, 6) for name, value in breakdown.terms.items()}
    {'improvement': 10.0, 'rent': -4.0, 'fossil_fee': 0.0}

    metric: what the task is judged by; the run gives it, as it does to every reward, and it says which way is better.
    price: hundredths of the metric that doubling the host's parameters must bring to break even.
    price_of_flops: the same for doubling its operations; 0: they are free.
    """

    def __init__(self, *, metric: Metric, price: float = 20.0, price_of_flops: float = 0.0) -> None:
        self.metric = metric
        own = TeamSettings(price=price, price_of_flops=price_of_flops)
        self.price, self.price_of_flops = own.price, own.price_of_flops

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Return the change of each part of the potential, which is 0 before the first step."""
        demand_pair(before, twin_before)
        earlier = {} if before is None or twin_before is None else self.potential(before, twin_before)
        after = self.potential(now, twin)
        return RewardBreakdown({name: value - earlier.get(name, 0.0) for name, value in after.items()})

    def potential(self, signals: Signals, twin: Signals) -> dict[str, float]:
        """Return the three parts of Φ at one step."""
        return {
            "improvement": self.gain(signals, twin),
            "rent": rent(signals, self.price, self.price_of_flops),
            "fossil_fee": fossil_fee(signals, self.price),
        }

    def gain(self, signals: Signals, twin: Signals) -> float:
        """Return the gain over the twin at one step, in points."""
        return improvement(self.metric, signals, twin)


class Loss(Team):
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

    metric: of the task; it is not used.
    price: hundredths of a nat that doubling the host's parameters must bring to break even.
    price_of_flops: as for ``team``.
    """

    def gain(self, signals: Signals, twin: Signals) -> float:
        """Return the gain over the twin at one step, in hundredths of a nat."""
        return POINTS * nats(signals, twin)


class Escrow(Team):
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

    def gain(self, signals: Signals, twin: Signals) -> float:
        """Return the share of the gain over the twin that the fossils have, in points."""
        return kept_share(signals) * improvement(self.metric, signals, twin)
