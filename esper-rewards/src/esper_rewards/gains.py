"""What did growing bring? Terms that are better high: over the twin, of all seeds, of what was kept.

In all of them every slot counts alike, and no action is known: there is nobody to credit but the whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from esper_core.leyline import Metric, SeedSignals, Signals

POINTS: Final = 100.0
"""Reward for a metric that is better by 1, or a loss that is lower by 1 nat: a point is a hundredth of it."""

INCUBATING: Final = frozenset({Stage.GERMINATED, Stage.TRAINING})
"""Stages in which a seed does not act on the host."""

ACTING: Final = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.DRAINING})
"""Stages in which a seed acts on the host, and its fate is open."""

MOST: Final = 10.0
"""Nats that a difference of losses counts at most, either way: a network that ran away costs no more than that."""


def improvement(metric: Metric, now: Signals, twin: Signals) -> float:
    """How much better the metric is than the twin's, in points.

    Formula: 100 · gain(metric, metric of the twin). Range: −100 to 100 where the metric lies between 0 and 1.
    Direction: up with a better metric. Invites: what serves the metric, and nothing else; on validation, which the
    choice of what is kept overfits.

    >>> from esper_core.leyline import Metric, Signals
    >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
    >>> improvement(Metric("accuracy"), Signals(9, 1.0, 1.0, 0.75, 6000, 5000, ()), twin)
    25.0
    """
    return POINTS * metric.gain(now.validation_metric, twin.validation_metric)


def nats(now: Signals, twin: Signals) -> float:
    """How much lower the validation loss is than the twin's, in nats.

    Formula: loss of the twin − loss. Range: −10 to 10, cut there; NaN where a loss is. Direction: up with a lower loss.
    Invites: caution, since a network that grew gets surer of its mistakes: its loss may rise while its accuracy does,
    too.

    >>> from esper_core.leyline import Signals
    >>> nats(Signals(9, 1.0, 0.75, 0.5, 6000, 5000, ()), Signals(9, 1.0, 1.0, 0.5, 5000, 5000, ()))
    0.25
    """
    return _cut(twin.validation_loss - now.validation_loss)


def contribution(now: Signals, twin: Signals) -> float:
    """What all seeds bring together, in nats: those that were kept, those that act on the host, those that incubate.

    Formula: nats over the twin + Σ gain of the seeds that incubate, as far as it is known. What acts and what was kept
    is in the first part: the twin has none of it. Range: −10 to 10, cut there. Direction: up with a lower loss and with
    a greater gain of any seed, in any slot. Invites: to leave seeds in isolation, where they count without being in the
    way; two that learn the same count twice.

    >>> from esper_core.leyline import Signals
    >>> contribution(Signals(9, 1.0, 0.75, 0.5, 6000, 5000, ()), Signals(9, 1.0, 1.0, 0.5, 5000, 5000, ()))
    0.25
    """
    return _cut(nats(now, twin) + known_gain(seed for seed in now.seeds if seed.stage in INCUBATING))


def kept_contribution(now: Signals, twin: Signals) -> float:
    """What the fossils bring together, in nats; 0 where there are none.

    Formula: nats over the twin − Σ gain of the seeds that act on the host, as far as it is known. Range: −10 to 10, cut
    there. Direction: up with a lower loss. Invites: to keep early, so that it is paid for long.

    >>> from esper_core.leyline import Signals, SlotSignals, SlotState
    >>> kept = Signals(9, 1.0, 0.75, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
    >>> kept_contribution(kept, Signals(9, 1.0, 1.0, 0.5, 5000, 5000, ()))
    0.25
    """
    if now.fossils == 0:
        return 0.0
    return _cut(nats(now, twin) - known_gain(seed for seed in now.seeds if seed.stage in ACTING))


def kept_share(now: Signals) -> float:
    """Which share of all that acts on the host was kept for good.

    Formula: fossils / (fossils + Σ alpha of the seeds that act); 0 where nothing was kept. Range: 0 to 1. Direction: up
    with fossils, down with seeds whose fate is open. Invites: to keep something, anything, so that the rest is paid
    for.

    >>> from esper_core.leyline import Signals, SlotSignals, SlotState
    >>> kept_share(Signals(9, 1.0, 0.75, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=2),)))
    1.0
    """
    if now.fossils == 0:
        return 0.0
    return now.fossils / (now.fossils + math.fsum(seed.alpha for seed in now.seeds if seed.stage in ACTING))


def known_gain(seeds: Iterable[SeedSignals]) -> float:
    """The sum of what seeds gained, in nats. One whose gain was not measured, or came to no number, adds nothing."""
    gains = [seed.gain for seed in seeds]
    return math.fsum(_cut(gain.mean) for gain in gains if gain is not None and gain.finite)


def _cut(value: float) -> float:
    """``value`` between −MOST and MOST; NaN stays NaN, which the governor deals with."""
    return value if math.isnan(value) else max(-MOST, min(MOST, value))
