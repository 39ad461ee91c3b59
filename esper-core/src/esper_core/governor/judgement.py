"""Is an environment still sane? One verdict for each environment and step, from signals that were read already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline.health import CALM, Level, Verdict

if TYPE_CHECKING:
    from esper_core.leyline.signals import Signals


def judge(signals: Signals) -> Verdict:
    """PANIC at once where a loss is not a number; CALM otherwise."""
    if signals.finite:
        return CALM
    incubation = {slot.name: slot.incubation_loss for slot in signals.slots if slot.incubation_loss is not None}
    reason = f"a loss is not finite: train {signals.train_loss}, validation {signals.validation_loss}"
    return Verdict(Level.PANIC, reason + (f", incubation {incubation}" if incubation else ""))
