"""What was a step worth to the whole? The gain over the twin, less the price of what was added for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_core.leyline import RewardBreakdown
from esper_rewards.settings import TeamSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import Metric, Signals

PER_METRIC: Final = 100.0
"""Reward for a metric that is better by 1 than the twin's: a point of accuracy is worth 1."""

FEE: Final = 0.10
"""What a fossil costs beside its parameters, as a share of the host's: growing is not free, however small the seed."""

NOTHING: Final[Mapping[str, float]] = {"improvement": 0.0, "rent": 0.0, "fossil_fee": 0.0}
"""The potential before an episode's first step."""


class Team:
    """The default reward: the change of a potential, so that an episode's sum is the potential at its end.

    Formula: Φ(now) − Φ(before), where Φ = 100 · gain − price · (added / host + 0.10 · fossils), and Φ = 0 before the
    first step. gain is how much better the validation metric is than the twin's at the same step, added the parameters
    beyond the host's. The terms ``improvement``, ``rent`` and ``fossil_fee`` are the changes of its three parts.
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
    """

    def __init__(self, *, metric: Metric, price: float = 20.0) -> None:
        self.metric = metric
        self.price = TeamSettings(price=price).price

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """What this step was worth."""
        if (before is None) != (twin_before is None):
            missing, given = ("before", "twin_before") if before is None else ("twin_before", "before")
            msg = f"before and twin_before belong together. Received: {given} without {missing}"
            raise ValueError(msg)
        after = self.potential(now, twin)
        earlier = NOTHING if before is None or twin_before is None else self.potential(before, twin_before)
        return RewardBreakdown({name: after[name] - earlier[name] for name in after})

    def potential(self, signals: Signals, twin: Signals) -> dict[str, float]:
        """The three parts of Φ at one step."""
        added = (signals.parameters - signals.host_parameters) / signals.host_parameters
        return {
            "improvement": PER_METRIC * self.metric.gain(signals.validation_metric, twin.validation_metric),
            "rent": 0.0 - self.price * added,
            "fossil_fee": 0.0 - self.price * FEE * signals.fossils,
        }
