"""Where on a drawing does a number stand, and which numbers are written beside it?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST: Final = 1e150
"""Where the squares of numbers end: what is larger has no mean, and no place on a drawing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from ``low`` to ``high``, laid out from ``start`` to ``end``, which may be the smaller one."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, number: float) -> float:
        """Where ``number`` stands; what is outside stands at the edge."""
        share = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers within, about so many.

        >>> Scale(0.13, 0.87, 0, 100).ticks()
        [0.2, 0.4, 0.6, 0.8]
        """
        step = round_step((self.high - self.low) / max(1, about))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 12) for index in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is ``least`` or more.

    >>> round_step(0.03), round_step(1.0), round_step(700)
    (0.05, 1.0, 1000.0)
    """
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def around(numbers: Iterable[float], *, start: float, end: float, room: float = 0.06) -> Scale:
    """A scale on which all of them stand, with a little room at both ends; none and huge ones do not count."""
    finite = [number for number in numbers if abs(number) < LARGEST]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    width = high - low
    if width <= 1e-12 * max(abs(low), abs(high), 1e-300):
        width = abs(low) or 1.0
        return Scale(low - 0.5 * width, high + 0.5 * width, start, end)
    return Scale(low - room * width, high + room * width, start, end)
