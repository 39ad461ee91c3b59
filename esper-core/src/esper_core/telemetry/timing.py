"""Where did the time go? Regions of the loop are timed always; the summary tells their sums."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Clock:
    """Sums of wall-clock seconds by region."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._before = self._latest = 0.0
        self.seconds: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since the clock was made, and those before that it goes on from."""
        return self._before + perf_counter() - self._began

    def go_on(self, seconds: Mapping[str, float], total: float) -> None:
        """Go on from where another clock was, which went on from no later than now."""
        self.seconds, self._before = dict(seconds), total

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Time a block. Regions do not overlap."""
        start = perf_counter()
        try:
            yield
        finally:
            self._latest = perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + self._latest

    def carve(self, region: str, part: str, share: float) -> None:
        """Take ``share`` of the seconds that were added to ``region`` last for a region of its own, ``part``."""
        seconds = share * self._latest
        self.seconds[region] -= seconds
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def summary(self) -> dict[str, float]:
        """Seconds by region, what is left as ``other``, and ``total`` since the clock was made."""
        total = self.total
        return {**self.seconds, "other": max(0.0, total - sum(self.seconds.values())), "total": total}
