"""The verdict on one step of an environment, from its signals and the losses of the healthy steps before.

Every bound is relative to the environment's own history; there is no absolute bound on a loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from esper_core.leyline.constants import CLEAR_GAIN_SHARE, HISTORY_STEPS_NEEDED, TRIFLE_SHARE
from esper_core.leyline.signals import CALM, Level, Verdict, most_severe

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from esper_core.leyline import Metric, Signals
    from esper_core.settings import GovernorConfig


@dataclass(frozen=True, slots=True)
class LossHistory:
    """Losses of the latest healthy steps, and the best so far. All numbers are finite, so it can be written as JSON.

    Attributes:
        guessing_loss: Validation loss before any training; None: not measured.
        best_loss: The lowest validation loss so far.
        stale_steps: Steps since loss or metric last improved.
        surging_steps: How many steps in a row, up to the latest, a loss surged.
        train_losses: Of the latest healthy steps, as ``validation_losses``.
        strengths: By slot how strongly its seeds act on the host: number of fossils plus the living seed's alpha.
    """

    guessing_loss: float | None = None
    best_loss: float | None = None
    best_metric: float | None = None
    stale_steps: int = 0
    surging_steps: int = 0
    train_losses: Sequence[float] = field(default_factory=list)
    validation_losses: Sequence[float] = field(default_factory=list)
    strengths: Mapping[str, float] = field(default_factory=dict)

    def with_strengths(self, signals: Signals, acting: Collection[str]) -> LossHistory:
        """Return this history, or an empty one if a seed was removed or its alpha fell.

        The network is then a different one: a higher loss is no failure, and earlier losses cannot be compared.
        """
        alphas = {slot.name: slot.living.alpha for slot in signals.slots if slot.name in acting and slot.living}
        strengths = {slot.name: slot.fossils + alphas.get(slot.name, 0.0) for slot in signals.slots}
        if any(strengths.get(name, 0.0) < before for name, before in self.strengths.items()):
            return LossHistory(self.guessing_loss, strengths=strengths)
        return replace(self, strengths=strengths)

    def with_step(self, signals: Signals, steps: int, metric: Metric | None, *, healthy: bool) -> LossHistory:
        """Add a step. Only losses of healthy ones are kept, the latest ``steps``; any metric may be the best so far."""
        loss, value, best = signals.validation_loss, signals.validation_metric, self.best_metric
        history = self
        if metric is not None and math.isfinite(value) and (best is None or metric.gain(value, best) > 0.0):
            history = replace(history, best_metric=value)
        if healthy:
            history = replace(
                history,
                best_loss=loss if self.best_loss is None else min(self.best_loss, loss),
                train_losses=[*self.train_losses, signals.train_loss][-steps:],
                validation_losses=[*self.validation_losses, loss][-steps:],
            )
        progress = (history.best_loss, history.best_metric) != (self.best_loss, self.best_metric)
        return replace(history, stale_steps=0 if progress else self.stale_steps + 1)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging one step, and the history from now on.

    Attributes:
        healthy: Whether a snapshot of the host may be taken.
        improved: Whether the validation loss is the best so far.
    """

    verdict: Verdict
    history: LossHistory
    healthy: bool = False
    improved: bool = False


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
        history: The losses of the healthy steps so far.
        signals: What was measured in this step.
        settings: The thresholds.
        acting: The slots whose living seeds act on the host; incubating seeds cannot harm it.
        metric: The task's metric; None: only the loss counts as progress.
        host_finite: Whether the host's parameters and gradients are finite; None: not checked.
    """
    broken = _judge_numbers(signals, acting, host_finite)
    if broken.level is Level.PANIC:
        return Judgement(broken, history)
    history = history.with_strengths(signals, acting)
    surge, history = _judge_surge(history, signals, settings, acting)
    verdict = most_severe([_judge_collapse(history, signals, settings), surge])
    if verdict.level is Level.PANIC:
        return Judgement(verdict, history)
    healthy = verdict.level is not Level.WARNING
    after = history.with_step(signals, settings.history_steps, metric, healthy=healthy)
    return Judgement(broken if healthy else verdict, after, healthy, after.best_loss != history.best_loss)


def _judge_numbers(signals: Signals, acting: Collection[str], host_finite: bool | None) -> Verdict:
    """Return PANIC for numbers of the host that are not finite, and a WARNING for gradients of an incubating seed."""
    if not signals.finite:
        losses = f"train {signals.train_loss}, validation {signals.validation_loss}"
        return Verdict(Level.PANIC, f"a loss is not finite: {losses}")
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
    lost = (
        f"the validation loss was {best:.4g} and is {signals.validation_loss:.4g}, and {guessing:.4g} before training"
    )
    if signals.train_loss < bound:
        return Verdict(Level.WARNING, f"{lost}; the training loss is {signals.train_loss:.4g}: it may overfit")
    return Verdict(Level.PANIC, f"collapse: {lost}; so is the training loss, {signals.train_loss:.4g}")


def _judge_surge(
    history: LossHistory, signals: Signals, settings: GovernorConfig, acting: Collection[str]
) -> tuple[Verdict, LossHistory]:
    """Return WARNING where a loss surges above recent healthy ones, PANIC after ``surge_steps`` such steps in a row.

    While no seed acts on the host, its validation loss alone is a WARNING: at a high learning rate, batch normalisation
    lets it surge in a network that trains well.
    """
    losses = {
        "training": (history.train_losses, signals.train_loss),
        "validation": (history.validation_losses, signals.validation_loss),
    }
    guessing, surges = history.guessing_loss, {}
    for name, (before, loss) in losses.items():
        if len(before) < min(HISTORY_STEPS_NEEDED, settings.history_steps):
            before = () if guessing is None else (guessing,)
        if before and _surges(before, loss, guessing, settings):
            surges[name] = f"the {name} loss is {loss:.4g}, and was {fmean(before):.4g} ± {pstdev(before):.4g} before"
    history = replace(history, surging_steps=history.surging_steps + 1 if surges else 0)
    if not surges:
        return CALM, history
    for_long = history.surging_steps >= settings.surge_steps
    level = Level.PANIC if for_long and (acting or "training" in surges) else Level.WARNING
    description = "; ".join(surges.values())
    return Verdict(level, f"surge, step {history.surging_steps} of {settings.surge_steps}: {description}"), history


def _surges(before: Sequence[float], loss: float, guessing: float | None, settings: GovernorConfig) -> bool:
    """Return whether the loss exceeds mean + k·σ and m × mean, by more than a share of the loss of guessing.

    m × mean is written so that it holds for negative losses, too.
    """
    mean = fmean(before)
    trifle = 0.0 if guessing is None else TRIFLE_SHARE * abs(guessing)
    excess = loss - mean
    if excess <= max((settings.surge_ratio - 1.0) * abs(mean), trifle):
        return False  # nearly always; skips the deviation, which takes longest
    return excess > settings.surge_sigmas * pstdev(before)
