"""Rewards whose sum over an episode is a potential at its end: its change in each step, or all of it at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import RewardBreakdown
from esper_rewards.settings import PRICE, TeamSettings
from esper_rewards.terms import fossil_fee, improvement, loss_reduction, rent

if TYPE_CHECKING:
    from esper_core.leyline import Metric, Signals


class Team:
    """The default reward: the change of a potential, so that an episode's sum is the potential at its end.

    Formula: Φ(now) − Φ(before), where Φ = 100 · gain − price · (doublings + 0.10 · fossils), and Φ = 0 before the
    first step. ``gain`` is the advantage of the validation metric over the twin at the same step (of a metric that is
    not a share, as a share of the twin's), and ``doublings`` how often the host's operations have doubled. The terms
    ``improvement``, ``rent`` and ``fossil_fee`` are the changes of these parts.

    Range: an episode's sum is Φ at its end, at most 100 for a share.

    Direction: up with a better metric, down with operations and fossils.

    Incentive: to overfit the validation split; the test split shows how far that went.

    Args:
        metric: the task's metric, which the run passes to every reward.
        price: hundredths of the metric that each doubling of the host's operations must bring to break even.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.58, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 0.5, 0.5, 0.68, parameters=10_000, host_parameters=5000, slots=())
        >>> breakdown = Team(metric=Metric("accuracy", "up", "%")).score(grown, None, twin, None)
        >>> {name: round(value, 6) for name, value in breakdown.terms.items()}
        {'improvement': 10.0, 'rent': -1.0, 'fossil_fee': 0.0}
    """

    def __init__(self, *, metric: Metric, price: float = PRICE) -> None:
        self.metric, self.price = metric, TeamSettings(price=price).price

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Return the change of each part of the potential, which is 0 before the first step."""
        earlier = {} if before is None or twin_before is None else self.potential(before, twin_before)
        after = self.potential(now, twin)
        return RewardBreakdown({name: value - earlier.get(name, 0.0) for name, value in after.items()})

    def potential(self, signals: Signals, twin: Signals) -> dict[str, float]:
        """Return the three parts of Φ at one step."""
        return {
            "improvement": self.gain(signals, twin),
            "rent": rent(signals, self.price),
            "fossil_fee": fossil_fee(signals, self.price),
        }

    def gain(self, signals: Signals, twin: Signals) -> float:
        """Return the gain over the twin at one step, in points."""
        return improvement(self.metric, signals, twin)


class Loss(Team):
    """``team`` by validation loss instead of the metric, for example for language models.

    Formula: Φ(now) − Φ(before), where Φ = 100 · gain − price · (doublings + 0.10 · fossils), and Φ = 0 before the
    first step. ``gain`` is how much lower the validation loss is than the twin's, as a share of it, clipped to ±10.

    Range: an episode's sum is Φ at its end, at most 100 for losses above 0.

    Direction: up with a lower loss, down with operations and fossils.

    Incentive: to stop before the loss rises: with few examples the loss of a grown network can rise while its accuracy
    does.

    Args:
        metric: the task's metric; it is not used.
        price: hundredths of the twin's loss that each doubling of the host's operations must bring to break even.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.00, 0.5, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 0.5, 0.75, 0.5, parameters=10_000, host_parameters=5000, slots=())
        >>> Loss(metric=Metric("perplexity", "down")).score(grown, None, twin, None).terms
        {'improvement': 25.0, 'rent': -1.0, 'fossil_fee': 0.0}
    """

    def gain(self, signals: Signals, twin: Signals) -> float:
        """Return the gain over the twin at one step, in hundredths of its loss."""
        return loss_reduction(signals, twin)
