"""Rewards that are paid at the end of an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import RewardBreakdown
from esper_rewards.settings import MinimalSettings, SimplifiedSettings, SparseSettings
from esper_rewards.terms import (
    Lives,
    Shaping,
    churn,
    closes,
    demand_pair,
    fossil_fee,
    haste,
    improvement,
    lives_between,
    rent,
)

if TYPE_CHECKING:
    from esper_core.leyline import Metric, Signals


def terminal(
    metric: Metric,
    price: float,
    now: Signals,
    before: Signals | None,
    twin: Signals,
    price_of_flops: float = 0.0,
) -> dict[str, float]:
    """Return the value of the final network at the end of an episode; 0 in every other step.

    Formula: 100 · gain − price · (added / host + 0.10 · fossils), in three parts.

    Range: at most 100 for a metric between 0 and 1.

    Direction: up with a better metric, down with parameters and fossils.

    Incentive: none, but a learner gets no information before the end.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 1.0, 1.0, 0.75, parameters=6000, host_parameters=5000, slots=())
        >>> terminal(Metric("accuracy"), 20.0, grown, grown, twin)
        {'improvement': 25.0, 'rent': -4.0, 'fossil_fee': 0.0}
    """
    if not closes(now, before):
        return {"improvement": 0.0, "rent": 0.0, "fossil_fee": 0.0}
    return {
        "improvement": improvement(metric, now, twin),
        "rent": rent(now, price, price_of_flops),
        "fossil_fee": fossil_fee(now, price),
    }


def chosen_lives(now: Signals, before: Signals | None) -> Lives:
    """Return the seeds that were born, kept and pruned by an action, not by the end of the episode."""
    return Lives() if closes(now, before) else lives_between(now, before)


class Sparse:
    """Pays nothing until the end, and then what ``team`` adds up to.

    Formula: at the end 100 · gain − price · (added / host + 0.10 · fossils); before it 0.

    Range: at most 100 for a metric between 0 and 1.

    Direction: up with a better metric, down with parameters and fossils.

    Incentive: as ``team``. It is the hardest to learn from, with one number per episode.

    Args:
        metric: the task's metric, which the run passes to every reward.
        price: hundredths of the metric that doubling the host's parameters must bring to break even.
        price_of_flops: the same for doubling its operations; 0: operations are free.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 1.0, 1.0, 0.75, parameters=6000, host_parameters=5000, slots=())
        >>> reward = Sparse(metric=Metric("accuracy"))
        >>> reward.score(grown, None, twin, None).total, reward.score(grown, grown, twin, twin).total
        (0.0, 21.0)
    """

    def __init__(self, *, metric: Metric, price: float = 20.0, price_of_flops: float = 0.0) -> None:
        self.metric = metric
        settings = SparseSettings(price=price, price_of_flops=price_of_flops)
        self.price, self.price_of_flops = settings.price, settings.price_of_flops

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Return the reward of one step."""
        demand_pair(before, twin_before)
        end = terminal(self.metric, self.price, now, before, twin, self.price_of_flops)
        return RewardBreakdown({**end, **self.on_the_way(now, before)})

    def on_the_way(self, now: Signals, before: Signals | None) -> dict[str, float]:
        """Return the terms that are paid besides those of the end; none for ``sparse``."""
        return {}


class Minimal(Sparse):
    """``sparse`` with a price for pruning young seeds.

    Formula: ``sparse`` − haste · (prunes of seeds younger than ``young`` steps).

    Range: that of ``sparse``, less ``haste`` for each such prune.

    Direction: up with a better metric, down with parameters, fossils and early prunes.

    Incentive: to delay prunes.

    Args:
        metric: the task's metric, which the run passes to every reward.
        price: hundredths of the metric that doubling the host's parameters must bring to break even.
        price_of_flops: the same for doubling its operations; 0: operations are free.
        haste: points that the prune of a young seed costs.
        young: age in steps from which on a prune costs nothing.

    Examples:
        >>> from esper_core.leyline import Metric, SeedSignals, Signals, SlotSignals, SlotState, Stage
        >>> twin = Signals(9, 1.0, 1.0, 0.5, parameters=5000, host_parameters=5000, slots=())
        >>> seed = SeedSignals("norm", Stage.TRAINING, alpha=0.0, parameters=9, age=2)
        >>> grown = Signals(8, 1.0, 1.0, 0.5, 5009, 5000, (SlotSignals("early", SlotState.OCCUPIED, 0, (seed,)),))
        >>> pulled = Signals(9, 1.0, 1.0, 0.5, 5000, 5000, (SlotSignals("early", SlotState.EMBARGOED, 0),))
        >>> Minimal(metric=Metric("accuracy")).score(pulled, grown, twin, twin).total
        -0.5
    """

    def __init__(
        self,
        *,
        metric: Metric,
        price: float = 20.0,
        price_of_flops: float = 0.0,
        haste: float = 0.5,
        young: int = 5,
    ) -> None:
        super().__init__(metric=metric, price=price, price_of_flops=price_of_flops)
        self.settings = MinimalSettings(price=price, price_of_flops=price_of_flops, haste=haste, young=young)

    def on_the_way(self, now: Signals, before: Signals | None) -> dict[str, float]:
        """Return the price of pruning young seeds."""
        return {"haste": haste(chosen_lives(now, before), self.settings.young, self.settings.haste)}


class Simplified(Sparse):
    """``sparse`` with a price for germinations and prunes, and shaping by the stages that seeds reach.

    Formula: ``sparse`` − churn · (germinations + prunes) + γ · Φ(now) − Φ(before), where Φ = shaping · progress, and Φ
    = 0 before the first step and at the end. ``progress`` counts 1 for a fossil, and less for an earlier stage.

    Range: with γ = 1 an episode's sum is that of ``sparse`` less the churn.

    Direction: up with a better metric, down with parameters, fossils, germinations and prunes.

    Incentive: to try few seeds; to hurry, if γ is not the learner's discount.

    Args:
        metric: the task's metric, which the run passes to every reward.
        price: hundredths of the metric that doubling the host's parameters must bring to break even.
        price_of_flops: the same for doubling its operations; 0: operations are free.
        churn: points that a germination or a prune costs.
        shaping: points that a seed gets until it is fossilised, and gives back at the end.
        gamma: the learner's discount.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> grown = Signals(9, 1.0, 1.0, 0.75, parameters=6000, host_parameters=5000, slots=())
        >>> Simplified(metric=Metric("accuracy")).score(grown, grown, twin, twin).total
        21.0
    """

    def __init__(
        self,
        *,
        metric: Metric,
        price: float = 20.0,
        price_of_flops: float = 0.0,
        churn: float = 0.1,
        shaping: float = 1.0,
        gamma: float = 1.0,
    ) -> None:
        super().__init__(metric=metric, price=price, price_of_flops=price_of_flops)
        self.settings = SimplifiedSettings(
            price=price, price_of_flops=price_of_flops, churn=churn, shaping=shaping, gamma=gamma
        )
        self.shaping = Shaping(self.settings.shaping, self.settings.gamma)

    def on_the_way(self, now: Signals, before: Signals | None) -> dict[str, float]:
        """Return the price of germinations and prunes, and the shaping."""
        return {
            "churn": churn(chosen_lives(now, before), self.settings.churn),
            "shaping": self.shaping.score(now, before),
        }
