"""Patience: after how many seconds a component counts as hanging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 3600.0
"""Patience before the first step is done."""

LEAST_SECONDS: Final = 180.0
LONGEST_REQUESTS: Final = 20.0
"""Patience afterwards, in seconds and in multiples of the longest request so far; the larger one counts."""


@dataclass(slots=True)
class Patience:
    """How long a worker may take for a request: a fixed number of seconds, or as long as others took, many times."""

    fixed: float | None = None
    longest: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds after which a worker counts as hanging."""
        if self.fixed is not None:
            return self.fixed
        return FIRST_SECONDS if self.longest is None else max(LEAST_SECONDS, LONGEST_REQUESTS * self.longest)

    def record(self, seconds: float, *, ends_step: bool) -> None:
        """Take account of how long a request took; before the first step is done, requests prepare."""
        if self.longest is not None or ends_step:
            self.longest = max(self.longest or 0.0, seconds)
