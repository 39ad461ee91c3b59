"""What is remembered of an environment's healthy steps? Plain numbers, all finite: they can be written as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from esper_core.leyline.signals import Metric, Signals


@dataclass(frozen=True, slots=True)
class History:
    """Losses of the latest healthy steps, and the best there were.

    guessing_loss: validation loss before any training; None: nobody measured it.
    stale_steps: steps since loss or metric were better than ever.
    surging_steps: steps running, up to the latest, in which a loss surged.
    strengths: by slot how strongly its seeds act on the host: its fossils, and its living seed's alpha.
    """

    guessing_loss: float | None = None
    best_loss: float | None = None
    best_metric: float | None = None
    stale_steps: int = 0
    surging_steps: int = 0
    train_losses: tuple[float, ...] = ()
    validation_losses: tuple[float, ...] = ()
    strengths: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What ``from_json`` makes it of."""
        losses = {name: list(getattr(self, name)) for name in ("train_losses", "validation_losses")}
        return {**asdict(self), **losses}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> History:
        """The history that was told."""
        losses = {name: tuple(told[name]) for name in ("train_losses", "validation_losses")}
        return cls(**{**told, **losses})

    def heeding_strengths(self, signals: Signals, acting: Collection[str]) -> History:
        """The same, or a new one where a seed was taken out or held back: what is left is another network.

        What it loses by that is no sign of sickness, and the losses before are no measure for it.
        """
        alphas = {slot.name: slot.living.alpha for slot in signals.slots if slot.name in acting and slot.living}
        strengths = {slot.name: slot.fossils + alphas.get(slot.name, 0.0) for slot in signals.slots}
        if any(strengths.get(name, 0.0) < before for name, before in self.strengths.items()):
            return History(self.guessing_loss, strengths=strengths)
        return replace(self, strengths=strengths)

    def with_step(self, signals: Signals, steps: int, metric: Metric | None) -> tuple[History, bool]:
        """The history after one more healthy step, ``steps`` of which it holds; whether the loss was never so low."""
        loss = signals.validation_loss
        improved = self.best_loss is None or loss < self.best_loss
        best_metric = self.best_metric if metric is None else _better(metric, signals.validation_metric, self)
        progress = improved or best_metric != self.best_metric
        history = replace(
            self,
            best_loss=loss if improved else self.best_loss,
            best_metric=best_metric,
            stale_steps=0 if progress else self.stale_steps + 1,
            train_losses=(*self.train_losses, signals.train_loss)[-steps:],
            validation_losses=(*self.validation_losses, loss)[-steps:],
        )
        return history, improved

    def with_warning(self, signals: Signals, metric: Metric | None) -> History:
        """The history after a step with a warning: its losses are no measure; the metric may be better than ever."""
        best_metric = self.best_metric if metric is None else _better(metric, signals.validation_metric, self)
        stale = 0 if best_metric != self.best_metric else self.stale_steps + 1
        return replace(self, best_metric=best_metric, stale_steps=stale)


def _better(metric: Metric, value: float, history: History) -> float | None:
    """The best value of the metric so far; one that is no number counts for nothing."""
    before = history.best_metric
    if not math.isfinite(value):
        return before
    return value if before is None or metric.gain(value, before) > 0.0 else before
