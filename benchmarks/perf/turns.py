"""Compare two ways on a machine of varying speed: they take turns, and medians are compared.

Who goes first changes with each turn, so that no side always comes after the same other.
"""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from esper_core.app.runtime import tune_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WARM: Final = 3
"""Turns that are not counted: caches fill, and memory is asked for the first time."""

ALLOCATORS: Final = ("default", "tuned")
"""glibc as it is, and as a run of Esper tells it to be, in this order: there is no way back."""


def timed(act: Callable[[], Any]) -> Callable[[], float]:
    """Return a function that calls ``act`` and returns the seconds of wall clock it took."""

    def seconds() -> float:
        begin = time.perf_counter()
        act()
        return time.perf_counter() - begin

    return seconds


def times(sides: Mapping[str, Callable[[], float]], turns: int, warm: int = WARM) -> dict[str, list[float]]:
    """Return the times of each side, turn by turn."""
    names = list(sides)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm + turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds = sides[name]()
            if turn >= warm:
                taken[name].append(seconds)
    return taken


def medians(sides: Mapping[str, Callable[[], float]], turns: int, warm: int = WARM) -> dict[str, float]:
    """Return the median time of each side over its turns."""
    return {name: statistics.median(taken) for name, taken in times(sides, turns, warm).items()}


@contextmanager
def allocated(how: str) -> Iterator[bool]:
    """Allocate memory by one of ``ALLOCATORS`` inside the block; yield whether this system has it."""
    yield how == "default" or tune_allocator()
