"""Schedules of learning rates: warm-up and cosine decay."""

from __future__ import annotations

import math

from esper_policies.settings import CosineSettings, WarmupSettings


class Warmup:
    """A linear rise to 1 over ``over`` steps, constant from then on.

    Formula: min(1, (step + 1) / (over + 1)).

    >>> [round(Warmup(over=3).factor(step, None), 2) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]

    over: steps with a factor below 1; 0: no warm-up.
    """

    def __init__(self, *, over: int = 2) -> None:
        self.over = WarmupSettings(over=over).over

    def factor(self, step: int, steps: int | None) -> float:
        """Return the factor for one step."""
        return min(1.0, (step + 1) / (self.over + 1))


class Cosine:
    """A half-cosine decay from 1 to ``floor`` at the last step, after a warm-up of ``warmup`` steps.

    Formula: floor + (1 − floor)·(1 + cos(π·t))/2, where t goes from 0 to 1 over the steps after the warm-up. If the
    number of steps is unknown, it stays at 1.

    >>> [round(Cosine(floor=0.0).factor(step, 5), 2) for step in range(5)]
    [1.0, 0.85, 0.5, 0.15, 0.0]

    floor: the factor at the last step, between 0 and 1. warmup: steps of warm-up before the decay.
    """

    def __init__(self, *, floor: float = 0.0, warmup: int = 0) -> None:
        settings = CosineSettings(floor=floor, warmup=warmup)
        self.floor = settings.floor
        self.warmup = Warmup(over=settings.warmup)

    def factor(self, step: int, steps: int | None) -> float:
        """Return the factor for one step."""
        rising = self.warmup.factor(step, steps)
        if rising < 1.0 or steps is None:
            return rising
        begun = self.warmup.over
        gone = min(1.0, (step - begun) / max(1, steps - 1 - begun))
        return self.floor + (1.0 - self.floor) * (1.0 + math.cos(math.pi * gone)) / 2.0
