"""Rewards that pay in each step and are not derived from a potential; for comparison with ``team``."""

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
    """Pays in each step for the gains of all seeds, charges rent, adds shaping, and pays for the final gain.

    Formula: contribution · 100 · nats of all seeds − rent · added / host + γ · Φ(now) − Φ(before), where Φ = shaping ·
    progress; at the end terminal · 100 · gain and the last change of the shaping.

    Range: in a step ±1000 · contribution, less the rent; the shaping adds up to 0 if γ = 1.

    Direction: up with a lower loss, the gain of any seed and a better metric; down with parameters.

    Incentive: to leave seeds in isolation, because their expected gains are paid for; to grow early rather than well.

    Args:
        metric: the task's metric, which the run passes to every reward.
        contribution: points in each step for each hundredth of a nat that all seeds gain together.
        rent: points in each step for as many added parameters as the host has.
        shaping: points that a seed gets until it is fossilised, and gives back at the end.
        gamma: the learner's discount.
        terminal: points at the end for each hundredth by which the metric exceeds the twin's.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.00, 0.5, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 0.5, 0.75, 0.5, parameters=6000, host_parameters=5000, slots=())
        >>> Shaped(metric=Metric("accuracy")).score(grown, None, twin, None).terms
        {'contribution': 1.25, 'rent': -0.2, 'shaping': 0.0, 'terminal': 0.0}
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
        settings, last = self.settings, closes(now, before)
        return RewardBreakdown(
            {
                "contribution": 0.0 if last else settings.contribution * POINTS * contribution(now, twin),
                "rent": 0.0 if last else rent(now, settings.rent),
                "shaping": self.shaping.score(now, before),
                "terminal": settings.terminal * improvement(self.metric, now, twin) if last else 0.0,
            }
        )


class Basic:
    """Pays for each improvement, charges rent, and pays a bonus for the gain of a seed when it is fossilised.

    Formula: 100 · (gain − gain before) − rent · added / host + bonus · 100 · max(nats, 0) of each seed that was
    fossilised; at the end only the first part. A seed whose gain is unknown gets no bonus.

    Range: the first part adds up to −100 to 100 for a metric between 0 and 1; a bonus is at most 1000 · bonus.

    Direction: up with a better metric and with each seed that gains when it is fossilised, down with parameters.

    Incentive: to fossilise a seed at a lucky moment, because its gain is never checked again; to grow late, to pay
    little rent.

    Args:
        metric: the task's metric, which the run passes to every reward.
        rent: points in each step for as many added parameters as the host has.
        bonus: points for each hundredth of a nat that a fossilised seed gains.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 1.0, 1.0, 0.75, parameters=6000, host_parameters=5000, slots=())
        >>> Basic(metric=Metric("accuracy")).score(grown, None, twin, None).terms
        {'improvement': 25.0, 'rent': -0.2, 'bonus': 0.0}
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
    """``basic`` with a part of the bonus paid in later steps, as long as the fossils gain.

    Formula: as ``basic``, with (1 − later) of the bonus; and in each step later · bonus · 100 · nats of all fossils /
    over, which is negative if they do harm.

    Range: that of ``basic``, and in each step ±1000 · later · bonus / over.

    Direction: up with a better metric, a lower loss and seeds that gain when they are fossilised; down with parameters.

    Incentive: to fossilise early: the later part is paid without limit in episodes longer than ``over`` steps.

    Args:
        metric: the task's metric, which the run passes to every reward.
        rent: points in each step for as many added parameters as the host has.
        bonus: points for each hundredth of a nat that a fossilised seed gains.
        later: share of the bonus that is paid later.
        over: number of steps after which that share has been paid once, if the gain lasts.

    Examples:
        >>> from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
        >>> twin = Signals(9, 1.0, 1.00, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> kept = Signals(9, 0.5, 0.75, 0.75, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
        >>> BasicPlus(metric=Metric("accuracy")).score(kept, None, twin, None).terms
        {'improvement': 25.0, 'rent': -0.2, 'bonus': 0.0, 'bonus_later': 0.25}
    """

    def __init__(
        self, *, metric: Metric, rent: float = 1.0, bonus: float = 0.2, later: float = 0.5, over: int = 10
    ) -> None:
        super().__init__(metric=metric, rent=rent, bonus=bonus)
        settings = BasicPlusSettings(rent=rent, bonus=bonus, later=later, over=over)
        self.later, self.over = settings.later, settings.over

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
