"""The verdict on one step of an environment, from its signals and the losses of the healthy steps before.

Every bound is relative to what the environment did before: no loss is too large as such.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import CLEAR_GAIN_SHARE, HISTORY_STEPS_NEEDED, TRIFLE_SHARE
from esper_core.leyline.signals import CALM, Level, Verdict, most_severe

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from esper_core.config import GovernorConfig
    from esper_core.leyline.signals import Metric, Signals


@dataclass(frozen=True, slots=True)
class LossHistory:
    """Losses of the latest healthy steps, and the best so far. All numbers are finite, so it can be written as JSON.

    Attributes:
        guessing_loss: Validation loss before any training; None: not measured.
        best_loss: The lowest validation loss so far.
        best_metric: The best metric so far.
        stale_steps: Steps since loss or metric last improved.
        surging_steps: How many steps in a row, up to the latest, a loss surged.
        train_losses: Of the latest healthy steps.
        validation_losses: Of the latest healthy steps.
        strengths: By slot how strongly its seeds act on the host: number of fossils plus the living seed's alpha.
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
        """Return the history as plain data."""
        losses = {name: list(getattr(self, name)) for name in ("train_losses", "validation_losses")}
        return {**asdict(self), **losses}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> LossHistory:
        """Return the history that ``as_json`` wrote."""
        losses = {name: tuple(plain[name]) for name in ("train_losses", "validation_losses")}
        return cls(**{**plain, **losses})

    def with_strengths(self, signals: Signals, acting: Collection[str]) -> LossHistory:
        """Return this history, or an empty one where a seed was removed or its alpha fell: that is another network.

        Its loss may rise, which is no failure, and earlier losses cannot be compared with it.
        """
        alphas = {slot.name: slot.living.alpha for slot in signals.slots if slot.name in acting and slot.living}
        strengths = {slot.name: slot.fossils + alphas.get(slot.name, 0.0) for slot in signals.slots}
        if any(strengths.get(name, 0.0) < before for name, before in self.strengths.items()):
            return LossHistory(self.guessing_loss, strengths=strengths)
        return replace(self, strengths=strengths)

    def with_step(self, signals: Signals, steps: int, metric: Metric | None) -> tuple[LossHistory, bool]:
        """Add a healthy step; keep ``steps`` of them. Returns the history, and whether the loss is the best so far."""
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

    def with_warning(self, signals: Signals, metric: Metric | None) -> LossHistory:
        """Add a step with a warning: its losses are not kept, and its metric may be the best so far."""
        best_metric = self.best_metric if metric is None else _better(metric, signals.validation_metric, self)
        stale = 0 if best_metric != self.best_metric else self.stale_steps + 1
        return replace(self, best_metric=best_metric, stale_steps=stale)


def _better(metric: Metric, value: float, history: LossHistory) -> float | None:
    """Return the best value of the metric so far; one that is not finite does not count."""
    before = history.best_metric
    if not math.isfinite(value):
        return before
    return value if before is None or metric.gain(value, before) > 0.0 else before


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging one step.

    Attributes:
        verdict: How bad it is, and why.
        history: The history from now on.
        healthy: Whether a snapshot of the host may be taken.
        improved: Whether the validation loss is the best so far.
    """

    verdict: Verdict
    history: LossHistory
    healthy: bool = False
    improved: bool = False


def judge(signals: Signals) -> Verdict:
    """Return PANIC if a loss is not finite, else CALM."""
    if signals.finite:
        return CALM
    incubation = {
        f"{slot.name} {seed.blueprint}": seed.incubation_loss
        for slot in signals.slots
        for seed in slot.seeds
        if seed.incubation_loss is not None
    }
    reason = f"a loss is not finite: train {signals.train_loss}, validation {signals.validation_loss}"
    return Verdict(Level.PANIC, reason + (f", incubation {incubation}" if incubation else ""))


def judge_step(
    history: LossHistory,
    signals: Signals,
    settings: GovernorConfig,
    *,
    acting: Collection[str],
    metric: Metric | None = None,
    host_finite: bool | None = None,
) -> Judgement:
    """Judge a step after the healthy ones in ``history``.

    Args:
        history: Of the steps before.
        signals: The step's measurements.
        settings: The bounds.
        acting: The slots whose living seeds act on the host; incubating seeds cannot harm it.
        metric: The task's metric; None: only the loss counts as progress.
        host_finite: Whether the host's parameters and gradients are finite; None: not checked.
    """
    broken = most_severe([judge(signals), _judge_numbers(signals, acting, host_finite)])
    if broken.level is Level.PANIC:
        return Judgement(broken, history)
    history = history.with_strengths(signals, acting)
    surge, history = _judge_surge(history, signals, settings)
    verdict = most_severe([_judge_collapse(history, signals, settings), surge])
    if verdict.level is Level.WARNING:
        return Judgement(verdict, history.with_warning(signals, metric))
    if verdict.level is Level.PANIC:
        return Judgement(verdict, history)
    history, improved = history.with_step(signals, settings.history_steps, metric)
    return Judgement(broken, history, healthy=True, improved=improved)


def _judge_numbers(signals: Signals, acting: Collection[str], host_finite: bool | None) -> Verdict:
    """Return PANIC for non-finite gradients that reach the host, and a WARNING for those of an incubating seed."""
    if host_finite is False:
        return Verdict(Level.PANIC, "a parameter or a gradient of the host is not finite")
    sick = [
        slot
        for slot in signals.slots
        if any(seed.gradients is not None and seed.gradients.non_finite > 0.0 for seed in slot.seeds)
    ]
    level = Level.PANIC if any(slot.name in acting for slot in sick) else Level.WARNING
    names = ", ".join(slot.name for slot in sick)
    return Verdict(level, f"gradients of the seed in {names} are not finite") if sick else CALM


def _judge_collapse(history: LossHistory, signals: Signals, settings: GovernorConfig) -> Verdict:
    """Detect a collapse: a network that was clearly better than guessing and is not any more.

    The validation loss alone is a WARNING: it also rises in an overfitted network whose metric is as good as before.
    If the training loss is that of guessing, too, the network lost what it had learnt: PANIC.
    """
    guessing, best = history.guessing_loss, history.best_loss
    if guessing is None or best is None or guessing - best <= CLEAR_GAIN_SHARE * abs(guessing):
        return CALM
    bound = guessing - (1.0 - settings.collapse_share) * (guessing - best)
    if signals.validation_loss < bound:
        return CALM
    lost = f"the validation loss was {best:.4g} and is {signals.validation_loss:.4g}, where guessing has {guessing:.4g}"
    if signals.train_loss < bound:
        return Verdict(Level.WARNING, f"{lost}; the training loss is {signals.train_loss:.4g}: it may overfit")
    return Verdict(Level.PANIC, f"collapse: {lost}; so is the training loss, {signals.train_loss:.4g}")


def _judge_surge(history: LossHistory, signals: Signals, settings: GovernorConfig) -> tuple[Verdict, LossHistory]:
    """Return WARNING where a loss surges above recent healthy ones, PANIC after ``surge_steps`` such steps in a row."""
    losses = {
        "training": (_measure(history.train_losses, history, settings), signals.train_loss),
        "validation": (_measure(history.validation_losses, history, settings), signals.validation_loss),
    }
    found = [
        f"the {name} loss is {loss:.4g}, and was {_mean(before):.4g} ± {_deviation(before):.4g} before"
        for name, (before, loss) in losses.items()
        if before and _surges(before, loss, history.guessing_loss, settings)
    ]
    history = replace(history, surging_steps=history.surging_steps + 1 if found else 0)
    if not found:
        return CALM, history
    level = Level.PANIC if history.surging_steps >= settings.surge_steps else Level.WARNING
    return Verdict(level, f"surge, step {history.surging_steps} of {settings.surge_steps}: {'; '.join(found)}"), history


def _measure(recent: Sequence[float], history: LossHistory, settings: GovernorConfig) -> Sequence[float]:
    """Return what a loss is compared with: recent ones, or the loss of guessing while they are too few."""
    if len(recent) >= min(HISTORY_STEPS_NEEDED, settings.history_steps):
        return recent
    return () if history.guessing_loss is None else (history.guessing_loss,)


def _surges(before: Sequence[float], loss: float, guessing: float | None, settings: GovernorConfig) -> bool:
    """Return whether the loss exceeds mean + k·σ and m × mean, by more than a share of the loss of guessing.

    m × mean is written so that it holds for negative losses, too.
    """
    mean = _mean(before)
    trifle = 0.0 if guessing is None else TRIFLE_SHARE * abs(guessing)
    excess = loss - mean
    if excess <= max((settings.surge_ratio - 1.0) * abs(mean), trifle):
        return False  # nearly always; skips the deviation, which takes longest
    return excess > settings.surge_sigmas * _deviation(before)


def _mean(losses: Sequence[float]) -> float:
    """Return the mean, also of finite losses whose sum is beyond the largest float."""
    try:
        return fmean(losses)
    except OverflowError:
        return math.fsum(loss / len(losses) for loss in losses)


def _deviation(losses: Sequence[float]) -> float:
    """Return the standard deviation; infinite where it is beyond the largest float."""
    try:
        return pstdev(losses)
    except OverflowError:
        return math.inf
