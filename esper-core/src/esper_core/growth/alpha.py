"""How strong is a seed now? Alpha moves on a curve, tick by tick, and ends exactly on its target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from esper_core.leyline.actions import Curve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STEEPNESS: Final = 12.0
"""Of the sigmoid: it is within 0.3 % of its ends when it sets out, and is stretched to reach them exactly."""


def _sigmoid(share: float) -> float:
    def raw(x: float) -> float:
        return 1.0 / (1.0 + math.exp(-STEEPNESS * (x - 0.5)))

    return (raw(share) - raw(0.0)) / (raw(1.0) - raw(0.0))


CURVES: Mapping[Curve, Callable[[float], float]] = MappingProxyType(
    {
        Curve.LINEAR: lambda share: share,
        Curve.COSINE: lambda share: (1.0 - math.cos(math.pi * share)) / 2.0,
        Curve.SIGMOID: _sigmoid,
    }
)
"""For each curve the share of the way that lies behind alpha when a share of its time has passed."""


@dataclass(slots=True)
class Alpha:
    """A seed's strength: 0 is absent, 1 is whole. One tick is one training batch."""

    value: float = 0.0
    target: float = 0.0
    start: float = 0.0
    ticks: int = 0
    done: int = 0
    curve: Curve = Curve.LINEAR

    def aim(self, target: float, ticks: int, curve: Curve = Curve.LINEAR) -> None:
        """Set out from where alpha is now and be at ``target`` after ``ticks`` ticks; 0 ticks is at once."""
        if not 0.0 <= target <= 1.0:
            msg = f"alpha stays between 0 and 1. Received: {target}"
            raise ValueError(msg)
        if ticks < 0:
            msg = f"alpha cannot arrive before it sets out. Received: {ticks} ticks"
            raise ValueError(msg)
        self.start, self.target, self.ticks, self.done, self.curve = self.value, target, ticks, 0, curve
        if ticks == 0:
            self.value = target

    def tick(self) -> None:
        """Let one batch pass. At its target alpha stays."""
        if not self.moving:
            return
        self.done += 1
        way = self.target - self.start
        behind = CURVES[self.curve](self.done / self.ticks)
        self.value = self.target if self.done == self.ticks else self.start + way * behind

    @property
    def moving(self) -> bool:
        """Whether the target is still ahead."""
        return self.done < self.ticks
