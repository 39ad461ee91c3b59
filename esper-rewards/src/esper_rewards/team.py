"""What was a step worth to the whole? The gain over the twin, less the price of what was added for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_rewards.costs import fossil_fee, rent
from esper_rewards.gains import improvement
from esper_rewards.moments import demand_pair
from esper_rewards.potentials import change
from esper_rewards.settings import TeamSettings

if TYPE_CHECKING:
    from esper_core.leyline import Metric, RewardBreakdown, Signals


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
        """What this step was worth."""
        demand_pair(before, twin_before)
        earlier = None if before is None or twin_before is None else self.potential(before, twin_before)
        return change(self.potential(now, twin), earlier)

    def potential(self, signals: Signals, twin: Signals) -> dict[str, float]:
        """The three parts of Φ at one step."""
        return {
            "improvement": improvement(self.metric, signals, twin),
            "rent": rent(signals, self.price, self.price_of_flops),
            "fossil_fee": fossil_fee(signals, self.price),
        }
