"""How can a learner be told that it is on its way, so that it still learns the same? By the change of a potential."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Stage
from esper_rewards.moments import closes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import Signals

PROGRESS: Final[Mapping[Stage, float]] = MappingProxyType(
    {
        Stage.GERMINATED: 0.1,
        Stage.TRAINING: 0.2,
        Stage.BLENDING: 0.5,
        Stage.HOLDING: 0.8,
        Stage.DRAINING: 0.0,
        Stage.FOSSILIZED: 1.0,
    }
)
"""How far a seed is on its way to be kept."""


def progress(now: Signals) -> float:
    """How far all seeds are together: fossils count 1, others by their stage.

    >>> from esper_core.leyline import Signals, SlotSignals, SlotState
    >>> progress(Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=2),)))
    2.0
    """
    return math.fsum(PROGRESS.get(seed.stage, 0.0) for seed in now.seeds) + PROGRESS[Stage.FOSSILIZED] * now.fossils


@dataclass(frozen=True, slots=True)
class Shaping:
    """The discounted change of a potential.

    Formula: γ · Φ(now) − Φ(before), where Φ = weight · progress, and Φ = 0 before the first step and at the end. Range:
    −weight · seeds to weight · seeds. Direction: up with progress, and down by as much when it is undone. Invites:
    nothing: summed with the discount γ any episode gets 0, so what is best stays best. That holds where γ is the
    learner's own; with another one it pays for being busy early (γ above it) or late.

    weight: what a seed gets for its whole way. gamma: the discount of the learner, 0 to 1.

    >>> from esper_core.leyline import Signals, SlotSignals, SlotState
    >>> kept = Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
    >>> Shaping(weight=2.0, gamma=1.0).score(kept, None), Shaping(weight=2.0, gamma=1.0).score(kept, kept)
    (2.0, -2.0)
    """

    weight: float
    gamma: float

    def score(self, now: Signals, before: Signals | None) -> float:
        """What this step is shaped by."""
        after = 0.0 if closes(now, before) else self.weight * progress(now)
        earlier = 0.0 if before is None else self.weight * progress(before)
        return self.gamma * after - earlier
