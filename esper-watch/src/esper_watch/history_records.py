"""Records of a history: seeds, and what gates saw of them.

Runs have up to a million steps, so looks are kept as columns of numbers and become records when asked for.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from esper_core.leyline import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline import Reason
    from esper_core.leyline.events import StageChanged

LARGEST_FLOAT: Final = 3e38
"""Larger numbers do not fit into single precision."""

EnvironmentKey = tuple[int, str, int]
"""Round, arm and environment seed."""


@dataclass(frozen=True, slots=True)
class SeedGain:
    """The latest measured gain of a seed, in nats, and the price that its gate requires."""

    step: int
    stage: Stage
    mean: float
    error: float
    """Standard error of the mean."""
    price: float | None
    examples: int


class Look(NamedTuple):
    """One seed in one step, in nats. What is unknown is NaN."""

    step: int
    alpha: float
    """How strongly the seed acts, from 0 to 1."""
    mean: float
    """The measured gain."""
    lower: float
    """Lower confidence bound of the gate, if it looked."""
    upper: float
    price: float
    """The gain that the gate requires."""
    opens: float
    """1 if the gate was open, else 0."""

    @property
    def judged(self) -> bool:
        """Whether a gate looked in this step."""
        return not math.isnan(self.lower)


class Looks:
    """The looks at one seed, as a column of single-precision numbers."""

    __slots__ = ("_numbers", "judged")

    def __init__(self) -> None:
        self._numbers = array("f")
        self.judged = 0
        """Looks of gates among them."""

    def add(self, look: Look) -> None:
        """Append a look."""
        self.judged += look.judged
        self._numbers.extend(map(_bounded, look))

    def __iter__(self) -> Iterator[Look]:
        """Yield the looks in their order."""
        width = len(Look._fields)
        for start in range(0, len(self._numbers), width):
            step, *numbers = self._numbers[start : start + width]
            yield Look(int(step), *numbers)


@dataclass(slots=True)
class SeedLife:
    """One seed: where it grew, its stage changes in order, and its latest measured gain."""

    round: int
    arm: str
    seed: int
    """The environment's seed."""
    slot: str
    seed_id: int
    """Counts the seeds of one episode from 0."""
    blueprint: str
    parameters: int
    changes: list[StageChanged] = field(default_factory=list)
    gain: SeedGain | None = None
    looks: Looks = field(default_factory=Looks, compare=False, repr=False)
    """What was measured of the seed in each step."""

    @property
    def environment(self) -> EnvironmentKey:
        """The environment that the seed grew in."""
        return self.round, self.arm, self.seed

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.changes[-1].now

    @property
    def reason(self) -> Reason:
        """Reason of the latest stage change."""
        return self.changes[-1].reason

    @property
    def kept(self) -> bool:
        """Whether the seed became part of its network."""
        return self.stage is Stage.FOSSILISED

    @property
    def ended(self) -> bool:
        """Whether the seed was kept or pruned."""
        return self.stage in (Stage.FOSSILISED, Stage.PRUNED)


def _bounded(number: float) -> float:
    """Return a number that fits into single precision; a larger one is as good as infinite."""
    return number if -LARGEST_FLOAT < number < LARGEST_FLOAT or number != number else math.copysign(math.inf, number)
