"""Is an environment still sane? One verdict for each environment and step, from signals that were read already."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper_core.leyline.signals import Signals


class Level(StrEnum):
    """How bad it is."""

    CALM = "calm"
    PANIC = "panic"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level and the reason for it."""

    level: Level
    reason: str = ""


CALM = Verdict(Level.CALM)


def judge(signals: Signals) -> Verdict:
    """PANIC at once where a loss is not a number; CALM otherwise."""
    if signals.finite:
        return CALM
    incubation = {slot.name: slot.incubation_loss for slot in signals.slots if slot.incubation_loss is not None}
    reason = f"a loss is not finite: train {signals.train_loss}, validation {signals.validation_loss}"
    return Verdict(Level.PANIC, reason + (f", incubation {incubation}" if incubation else ""))
