"""The verdict on one step of an environment, from its signals and the losses of the healthy steps before.

Every bound is relative to the environment's own history; there is no absolute bound on a loss. Training losses are
compared with training losses alone, and validation losses with validation losses: they are measured on other data, in
batches of another size, and often with augmentation or dropout.

A finite loss is judged only while a seed acts on the host, or shortly after one did. Whatever the loss of a host does
that only trains is the doing of its training: a warm restart, stronger augmentation, overfitting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from esper_core.leyline.constants import CLEAR_GAIN_SHARE, EXPLOSION_RATIO, HISTORY_STEPS_NEEDED, TRIFLE_SHARE
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
    """

    verdict: Verdict
    history: LossHistory
    healthy: bool = False


def judge_step(
    history: LossHistory,
    signals: Signals,
    settings: GovernorConfig,
    *,
    acting: Collection[str],
    changed: bool = False,
    metric: Metric | None = None,
    host_finite: bool | None = None,
) -> Judgement:
    """Judge a step after the healthy ones in ``history``.

    Args:
        history: The losses of the healthy steps so far.
        signals: What was measured in this step.
        settings: The thresholds.
        acting: The slots whose living seeds act on the host; incubating seeds cannot harm it.
        changed: Whether a seed that acted on the host was kept or removed shortly before.
        metric: The task's metric; None: only the loss counts as progress.
        host_finite: Whether the host's parameters and gradients are finite; None: not checked.
    """
    broken = _judge_numbers(signals, acting, host_finite)
    if broken.level is Level.PANIC:
        return Judgement(broken, history)
    history = history.with_strengths(signals, acting)
    if acting or changed:
        surge, history = _judge_surge(history, signals, settings, acting)
        verdict = most_severe([_judge_collapse(history, signals, settings, acting), surge])
    else:
        verdict, history = CALM, replace(history, surging_steps=0)
    if verdict.level is Level.PANIC:
        return Judgement(verdict, history)
    healthy = verdict.level is not Level.WARNING
    after = history.with_step(signals, settings.history_steps, metric, healthy=healthy)
    # ``broken`` may be a warning of a seed that incubates, which says nothing against the host.
    return Judgement(broken if healthy else verdict, after, healthy)


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


def _judge_collapse(
    history: LossHistory, signals: Signals, settings: GovernorConfig, acting: Collection[str]
) -> Verdict:
    """Detect a collapse: a network that was clearly better than guessing and is not any more.

    The validation loss alone also rises in an overfitted network whose metric is as good as before: that is a WARNING
    while a seed acts, and nothing otherwise. If the training loss is the highest for long, too, the network lost what
    it had learnt: PANIC.
    """
    guessing, best, trained = history.guessing_loss, history.best_loss, history.train_losses
    if guessing is None or best is None or guessing - best <= CLEAR_GAIN_SHARE * abs(guessing):
        return CALM
    bound = guessing - (1.0 - settings.collapse_share) * (guessing - best)
    if signals.validation_loss < bound:
        return CALM
    lost = (
        f"the validation loss was {best:.4g} and is {signals.validation_loss:.4g}, and {guessing:.4g} before training"
    )
    if _is_enough(trained, settings) and signals.train_loss > max(trained):
        return Verdict(Level.PANIC, f"collapse: {lost}; the training loss is the highest, {signals.train_loss:.4g}")
    overfitted = f"{lost}; the training loss is {signals.train_loss:.4g}: it may overfit"
    return Verdict(Level.WARNING, overfitted) if acting else CALM


def _judge_surge(
    history: LossHistory, signals: Signals, settings: GovernorConfig, acting: Collection[str]
) -> tuple[Verdict, LossHistory]:
    """Return WARNING where the loss surges above recent healthy ones, PANIC after ``surge_steps`` such steps in a row.

    The validation loss decides: a training loss that rises alone harms nothing. While no seed acts on the host, both
    have to surge, because at a high learning rate batch normalisation lets the validation loss of a network surge that
    trains well. An explosion is a PANIC at once.
    """
    validation = _surge("validation", history.validation_losses, signals.validation_loss, history, settings)
    training = _surge("training", history.train_losses, signals.train_loss, history, settings)
    if validation is None or not (acting or training):
        return CALM, replace(history, surging_steps=0)
    history = replace(history, surging_steps=history.surging_steps + 1)
    surges = [surge for surge in (training, validation) if surge is not None]
    description = "; ".join(description for description, _ in surges)
    lasts = history.surging_steps >= settings.surge_steps
    if not lasts and all(explodes for _, explodes in surges):
        return Verdict(Level.PANIC, f"explosion: {description}"), history
    surge = f"surge, step {history.surging_steps} of {settings.surge_steps}: {description}"
    return Verdict(Level.PANIC if lasts else Level.WARNING, surge), history


def _surge(
    kind: str, before: Sequence[float], loss: float, history: LossHistory, settings: GovernorConfig
) -> tuple[str, bool] | None:
    """Describe a loss that exceeds mean + k·σ and m × mean of ``before`` by more than a trifle, and say if it explodes.

    With too few losses before, the validation loss is compared with that of guessing, and the training loss with none.
    m × mean is written so that it holds for negative losses, too. A trifle is a share of the loss of guessing.
    """
    guessing = 0.0 if history.guessing_loss is None else abs(history.guessing_loss)
    if _is_enough(before, settings):
        mean, sigma = fmean(before), pstdev(before)
        reference = f"{mean:.4g} ± {sigma:.4g} before"
    elif kind == "validation" and history.guessing_loss is not None:
        mean, sigma = history.guessing_loss, 0.0
        reference = f"{mean:.4g} before training"
    else:
        return None
    excess = loss - mean
    bounds = (settings.surge_ratio - 1.0) * abs(mean), TRIFLE_SHARE * guessing, settings.surge_sigmas * sigma
    if excess <= max(bounds):
        return None
    # Losses near 0 multiply easily, so an explosion also exceeds many times the loss before training.
    explodes = excess > (EXPLOSION_RATIO - 1.0) * max(abs(mean), guessing)
    return f"the {kind} loss is {loss:.4g}, and was {reference}", explodes


def _is_enough(losses: Sequence[float], settings: GovernorConfig) -> bool:
    """Return whether losses are a history with which others can be compared."""
    # A history that is set to be shorter never gets as long as needed.
    return len(losses) >= min(HISTORY_STEPS_NEEDED, settings.history_steps)
