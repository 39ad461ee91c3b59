"""Rewards that are paid in each step without a potential, as others have used them; for comparison."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from esper_core.leyline import RewardBreakdown
from esper_rewards.settings import BasicPlusSettings, BasicSettings, ShapedSettings
from esper_rewards.terms import (
    POINTS,
    Shaping,
    closes,
    contribution,
    demand_pair,
    improvement,
    kept_contribution,
    known_gain,
    lives_between,
    rent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import Metric, Signals


class Shaped:
    """Pays in each step for what all seeds bring, takes rent, shapes, and pays once more for the end.

    Formula: contribution · 100 · nats of all seeds − rent · added / host + γ · Φ(now) − Φ(before), where
    Φ = shaping · progress; at the end terminal · 100 · gain and the last of the shaping alone.
    Range: in a step −1000 · contribution to 1000 · contribution, less the rent; the shaping adds up to 0 where γ = 1.
    Direction: up with a lower loss, with the gain of any seed and with a better metric; down with parameters.
    Invites: to leave seeds in isolation, since what they would gain is paid for as if it were there; to grow early
    rather than well.

    >>> from esper_core.leyline import Metric, Signals
    >>> twin = Signals(9, 1.0, 1.00, 0.5, parameters=5000, host_parameters=5000, slots=())
    >>> grown = Signals(9, 0.5, 0.75, 0.5, parameters=6000, host_parameters=5000, slots=())
    >>> Shaped(metric=Metric("accuracy")).score(grown, None, twin, None).terms
    {'contribution': 1.25, 'rent': -0.2, 'shaping': 0.0, 'terminal': 0.0}

    metric: what the task is judged by, and which way is better.
    contribution, rent, shaping, gamma, terminal: as ``settings.ShapedSettings`` says.
    """

    exploitable: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "abandoning_does_not_pay": "it pays in each step for what incubating seeds would bring",
        }
    )
    """Checks of esper-testing that this reward fails by design, with the reason."""

    def __init__(
        self,
        *,
        metric: Metric,
        contribution: float = 0.05,
        rent: float = 1.0,
        shaping: float = 1.0,
        gamma: float = 1.0,
        terminal: float = 1.0,
    ) -> None:
        self.metric = metric
        self.settings = ShapedSettings(
            contribution=contribution, rent=rent, shaping=shaping, gamma=gamma, terminal=terminal
        )
        self.shaping = Shaping(self.settings.shaping, self.settings.gamma)

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Return the reward of one step."""
        demand_pair(before, twin_before)
        own, last = self.settings, closes(now, before)
        return RewardBreakdown(
            {
                "contribution": 0.0 if last else own.contribution * POINTS * contribution(now, twin),
                "rent": 0.0 if last else rent(now, own.rent),
                "shaping": self.shaping.score(now, before),
                "terminal": own.terminal * improvement(self.metric, now, twin) if last else 0.0,
            }
        )


class Basic:
    """Pays for each improvement, takes rent, and gives a bonus for what is kept, by what it gained at that time.

    Formula: 100 · (gain − gain before) − rent · added / host + bonus · 100 · max(nats, 0) of each seed that was kept;
    at the end the first part alone. A seed whose gain is unknown when it is kept gets no bonus.
    Range: the first part adds up to −100 to 100 where the metric lies between 0 and 1; a bonus is 1000 · bonus at most.
    Direction: up with a better metric and with each seed that is kept while it gains, down with parameters.
    Invites: to keep a seed in a lucky moment, since nobody asks later; to grow late, when little rent is left to pay.

    >>> from esper_core.leyline import Metric, Signals
    >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
    >>> grown = Signals(9, 1.0, 1.0, 0.75, parameters=6000, host_parameters=5000, slots=())
    >>> Basic(metric=Metric("accuracy")).score(grown, None, twin, None).terms
    {'improvement': 25.0, 'rent': -0.2, 'bonus': 0.0}

    metric: what the task is judged by, and which way is better.
    rent, bonus: as ``settings.BasicSettings`` says.
    """

    def __init__(self, *, metric: Metric, rent: float = 1.0, bonus: float = 0.2) -> None:
        self.metric = metric
        self.settings = BasicSettings(rent=rent, bonus=bonus)

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Return the reward of one step."""
        demand_pair(before, twin_before)
        earlier = 0.0 if before is None or twin_before is None else improvement(self.metric, before, twin_before)
        kept_gains = (max(known_gain([seed]), 0.0) for seed in lives_between(now, before).kept)
        return RewardBreakdown(
            {
                "improvement": improvement(self.metric, now, twin) - earlier,
                "rent": 0.0 if closes(now, before) else rent(now, self.settings.rent),
                "bonus": self.settings.bonus * POINTS * sum(kept_gains),
            }
        )


class BasicPlus(Basic):
    """``basic``, where a part of the bonus is paid later, step by step, as long as what was kept goes on to gain.

    Formula: as ``basic``, with (1 − later) of the bonus; and in each step later · bonus · 100 · nats of all fossils /
    over, which is below 0 where they do harm.
    Range: as ``basic``, and in each step 1000 · later · bonus / over either way.
    Direction: up with a better metric, a lower loss and seeds that are kept while they gain; down with parameters.
    Invites: to keep early: it is paid for long, without an end where an episode is longer than ``over`` steps.

    >>> from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
    >>> twin = Signals(9, 1.0, 1.00, 0.50, parameters=5000, host_parameters=5000, slots=())
    >>> kept = Signals(9, 0.5, 0.75, 0.75, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
    >>> BasicPlus(metric=Metric("accuracy")).score(kept, None, twin, None).terms
    {'improvement': 25.0, 'rent': -0.2, 'bonus': 0.0, 'bonus_later': 0.25}

    metric: what the task is judged by, and which way is better.
    rent, bonus, later, over: as ``settings.BasicPlusSettings`` says.
    """

    def __init__(
        self, *, metric: Metric, rent: float = 1.0, bonus: float = 0.2, later: float = 0.5, over: int = 10
    ) -> None:
        super().__init__(metric=metric, rent=rent, bonus=bonus)
        own = BasicPlusSettings(rent=rent, bonus=bonus, later=later, over=over)
        self.later, self.over = own.later, own.over

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Return the reward of one step."""
        basic = super().score(now, before, twin, twin_before).terms
        each_step = self.later * self.settings.bonus * POINTS / self.over
        return RewardBreakdown(
            {
                **basic,
                "bonus": (1.0 - self.later) * basic["bonus"],
                "bonus_later": 0.0 if closes(now, before) else each_step * kept_contribution(now, twin),
            }
        )
