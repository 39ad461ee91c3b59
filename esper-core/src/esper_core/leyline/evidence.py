"""What is known of a seed's gain, and what does a gate say to it? Records of a measurement, a look and an opinion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

Strictness = Literal["strict", "permissive", "off"]
"""How much a gate asks for. ``growth.evidence.judge`` says what each means."""

_READ: Final = {"ser_json_inf_nan": "strings", "extra": "forbid"}
"""How pydantic reads and writes these records at the file boundary: nothing unknown, and NaN by its name."""


class Finding(StrEnum):
    """What a gate found. Only SHOWN opens it; UNKNOWN says nothing against the seed."""

    SHOWN = "shown"
    NOT_SHOWN = "not-shown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much the loss of host and seed was below that of the undisturbed host, over the same examples.

    One difference for each example, host less trial, in nats: positive where the seed helps. Every number but ``n`` is
    NaN or infinite where a loss was.
    """

    __pydantic_config__ = _READ
    n: int
    """Examples."""
    mean: float
    deviation: float
    """Standard deviation of the differences, with n − 1."""
    skewness: float
    """Third central moment in standard deviations (with n); below 0 where a few examples got far worse."""
    worst: float
    """The smallest difference."""
    best: float
    """The largest difference."""

    @property
    def standard_error(self) -> float:
        """Of the mean, in nats: deviation / √n."""
        return self.deviation / math.sqrt(self.n)

    @property
    def finite(self) -> bool:
        """Whether every number is one: then every loss was."""
        return all(map(math.isfinite, (self.mean, self.deviation, self.skewness, self.worst, self.best)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look of a gate saw: the gain of this step's network, in nats, and how low and how high it may be.

    ``lower`` and ``upper`` are one-sided bounds; each is wrong with probability ``alpha``.
    """

    __pydantic_config__ = _READ
    n: int
    mean: float
    standard_error: float
    lower: float
    upper: float
    alpha: float
    """What this look spends of the gate's chance to be wrong."""
    looks: int
    """Looks of this gate at this seed so far, this one with them."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a gate says of a seed in one step, and why. ``evidence`` is None where there was none or nobody looked."""

    __pydantic_config__ = _READ
    finding: Finding
    reason: str
    evidence: Evidence | None = None
    price: float | None = None
    """What the gain was held against, in nats; None where the gates are off."""

    @property
    def opens(self) -> bool:
        """Whether the gate lets the seed pass."""
        return self.finding is Finding.SHOWN
