"""The terms of rewards: gains and costs.

A higher gain is better, and costs are never above 0. All slots count equally, and terms depend on what was measured,
not on actions. The run itself charges a rollback as ``penalty``, whatever the reward.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import SEED_IN_DOUBLINGS

if TYPE_CHECKING:
    from esper_core.leyline import Metric, Signals


def rent(now: Signals, price: float) -> float:
    """Return the price of what was added to the network.

    Formula: −price · log2(operations / host's); parameters take their place where operations are unknown.

    Range: at most 0, if the network is not smaller than its host.

    Direction: down with operations.

    Incentive: to grow small seeds, and many of them; to grow late, if it is charged in each step.

    Examples:
        >>> from esper_core.leyline import Signals
        >>> rent(Signals(9, 1.0, 1.0, 0.5, parameters=20_000, host_parameters=5000, slots=()), price=1.0)
        -2.0
    """
    return 0.0 - price * now.doublings


def fossil_fee(now: Signals, price: float) -> float:
    """Return the price of fossils, beside that of their size.

    Formula: −0.10 · price · fossils.

    Range: at most 0.

    Direction: down with fossils.

    Incentive: to keep few and large seeds.

    Examples:
        >>> from esper_core.leyline import Signals, SlotSignals, SlotState
        >>> fossil_fee(Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, 1),)), price=20.0)
        -2.0
    """
    return 0.0 - price * SEED_IN_DOUBLINGS * now.fossils


POINTS: Final = 100.0
"""Points for a metric that is better by 1, or for what is better by the whole of what the twin has."""

MOST: Final = 10.0
"""Differences are clipped to this many times what the twin has, where they are shares of that."""

LEAST: Final = 1e-12
"""What a twin counts as that has none, so that no number is divided by 0."""


def improvement(metric: Metric, now: Signals, twin: Signals) -> float:
    """Return the advantage of the metric over the twin, in points.

    Formula: 100 · gain(metric, metric of the twin); divided by the twin's if the metric is not a share.

    Range: −100 to 100 for a share; otherwise clipped to ±1000, and NaN if a metric is NaN.

    Direction: up with a better metric.

    Incentive: to overfit the validation split.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> improvement(Metric("accuracy", "up", "%"), Signals(9, 1.0, 1.0, 0.75, 6000, 5000, ()), twin)
        25.0
    """
    gain = metric.gain(now.validation_metric, twin.validation_metric)
    return POINTS * (gain if metric.is_share else _share(gain, twin.validation_metric))


def loss_reduction(now: Signals, twin: Signals) -> float:
    """Return how much lower the validation loss is than the twin's, in hundredths of the twin's.

    Formula: 100 · (loss of the twin − loss) / loss of the twin.

    Range: clipped to ±1000; NaN if a loss is NaN.

    Direction: up with a lower loss.

    Incentive: to be cautious, because a grown network can be more certain of its errors: its loss may rise while its
    accuracy does.

    Examples:
        >>> from esper_core.leyline import Signals
        >>> loss_reduction(Signals(9, 1.0, 1.5, 0.5, 6000, 5000, ()), Signals(9, 1.0, 2.0, 0.5, 5000, 5000, ()))
        25.0
    """
    return POINTS * _share(twin.validation_loss - now.validation_loss, twin.validation_loss)


def _share(difference: float, whole: float) -> float:
    """Return a difference as a share of the whole, whose unit then does not count."""
    share = difference / max(abs(whole), LEAST) if math.isfinite(whole) else difference
    # NaN stays NaN, which the governor handles.
    return share if math.isnan(share) else max(-MOST, min(MOST, share))
