"""Sum up the wall-clock time that a run spends in each region of its loop."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Clock:
    """Wall-clock seconds by region. Regions do not overlap."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self.seconds: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since the clock was made, plus those of an interrupted run that it continues."""
        return perf_counter() - self._began

    def continue_from(self, seconds: Mapping[str, float], total: float) -> None:
        """Add to the seconds that a run had spent before it was interrupted."""
        self.seconds, self._began = dict(seconds), self._began - total

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Time the ``with`` block."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start

    def summary(self) -> dict[str, float]:
        """Return seconds by region, the rest as ``other``, and ``total``."""
        total = self.total
        return {**self.seconds, "other": max(0.0, total - sum(self.seconds.values())), "total": total}
