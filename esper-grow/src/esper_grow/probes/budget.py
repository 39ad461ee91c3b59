"""The budget of a probe: durations as text, the time that is left, and how long trials can be."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h)\s*", re.ASCII)


def seconds_of(duration: object) -> float:
    """Return a duration in seconds: a text such as "60s", "5 min" or "1h30m", a number of seconds, or a timedelta.

    Raises:
        ConfigError: It is not a duration above 0 (E354).

    >>> seconds_of("90s"), seconds_of("1h30m"), seconds_of(2.5)
    (90.0, 5400.0, 2.5)
    """
    seconds = math.nan
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    elif isinstance(duration, str):
        parts = _PART.findall(duration)
        if parts and not _PART.sub("", duration):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not (0.0 < seconds < math.inf):
        hint = f'For example "60s", "5min" or "1h30min". Received: {duration!r}'
        raise ConfigError(Problem("E354", "the budget is not a duration", hint=hint))
    return seconds


class OutOfTimeError(Exception):
    """The budget is over. It is caught by the probe."""


@dataclass(slots=True)
class BudgetClock:
    """The time of one probe."""

    budget: float
    now: Callable[[], float] = perf_counter
    began: float = -1.0

    def __post_init__(self) -> None:
        self.began = self.now()

    @property
    def used(self) -> float:
        """Seconds since the probe began."""
        return self.now() - self.began

    @property
    def left(self) -> float:
        """Seconds until the budget is over."""
        return self.budget - self.used

    def check(self) -> None:
        """Raise OutOfTimeError if the budget is over."""
        if self.left < 0.0:
            raise OutOfTimeError


LEVELS: Final = 3
"""Rounds of successive halving."""

SHARE_KEPT: Final = 3
"""One in so many candidates reaches the next level, with trials that are so many times as long."""

FINALISTS: Final = 3
"""Candidates that reach each level at least, if there are so many."""


def steps_of_levels(steps: int) -> tuple[int, ...]:
    """Return the lengths of the trials of each level, the longest last.

    >>> steps_of_levels(450)
    (50, 150, 450)
    """
    return tuple(max(1, steps // SHARE_KEPT**level) for level in reversed(range(LEVELS)))


def sizes_of_levels(candidates: int) -> tuple[int, ...]:
    """Return how many candidates each level tries.

    >>> sizes_of_levels(13), sizes_of_levels(2)
    ((13, 5, 3), (2, 2, 2))
    """
    kept = (math.ceil(candidates / SHARE_KEPT**level) for level in range(LEVELS))
    return tuple(min(candidates, max(FINALISTS, count)) for count in kept)


def seconds_of_trials(steps: int, host: float, candidates: list[float], evaluation: float) -> float:
    """Return about how long all trials take, given the seconds of one step of the host and of each candidate."""
    mean = sum(candidates) / len(candidates)
    levels = zip(steps_of_levels(steps), sizes_of_levels(len(candidates)), strict=True)
    trials = sum(size * (length * mean + evaluation) for length, size in levels)
    return steps * host + LEVELS * evaluation + trials
