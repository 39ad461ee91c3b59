"""How is an environment judged? What is looked at, and a verdict with the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from esper_core.leyline.signals import Signals


class Level(StrEnum):
    """How bad it is, the least first.

    ENOUGH says that the episode may end: nothing is wrong, and nothing more is to be expected of it.
    """

    CALM = "calm"
    WARNING = "warning"
    ENOUGH = "enough"
    PANIC = "panic"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level and the reason for it. After PANIC nothing goes on as it was."""

    level: Level
    reason: str = ""


CALM = Verdict(Level.CALM)


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """One environment after a step, as it was measured: which it is, and its signals."""

    round: int
    arm: str
    seed: int
    signals: Signals


def most_severe(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that counts: the worst, and of several the first. CALM where there is none.

    >>> most_severe([CALM, Verdict(Level.PANIC, "too hot"), Verdict(Level.PANIC, "too cold")]).reason
    'too hot'
    """
    order = list(Level)
    return max(verdicts, key=lambda verdict: order.index(verdict.level), default=CALM)
