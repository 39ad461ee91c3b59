"""What is remembered of an environment's healthy steps? Plain numbers, all finite: they can be written as JSON.

Is an environment still sane? A verdict for each step, from signals that were read already and the steps before.

Every bound is relative to what the environment itself did before: no loss is too large as such.
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of one step.

    history: what is remembered from now on. healthy: whether the host is, and could be gone back to.
    improved: whether its validation loss was never so low.
    """

    verdict: Verdict
    history: History
    healthy: bool = False
    improved: bool = False


def judge(signals: Signals) -> Verdict:
    """PANIC at once where a loss is not a number; CALM otherwise."""
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
    history: History,
    signals: Signals,
    settings: GovernorConfig,
    *,
    acting: Collection[str],
    metric: Metric | None = None,
    host_finite: bool | None = None,
) -> Judgement:
    """What to think of a step that was measured, after the healthy ones in ``history``.

    acting: the slots whose living seeds act on the host: what goes on behind its back is no harm to it.
    metric: what the task is judged by; None: only the loss counts as progress.
    host_finite: whether the host's parameters and gradients are; None where nobody looked.
    """
    broken = most_severe([judge(signals), _judge_numbers(signals, acting, host_finite)])
    if broken.level is Level.PANIC:
        return Judgement(broken, history)
    history = history.heeding_strengths(signals, acting)
    surge, history = _judge_surge(history, signals, settings)
    verdict = most_severe([_judge_collapse(history, signals, settings), surge])
    if verdict.level is Level.WARNING:
        return Judgement(verdict, history.with_warning(signals, metric))
    if verdict.level is Level.PANIC:
        return Judgement(verdict, history)
    history, improved = history.with_step(signals, settings.history_steps, metric)
    return Judgement(broken, history, healthy=True, improved=improved)


def _judge_numbers(signals: Signals, acting: Collection[str], host_finite: bool | None) -> Verdict:
    """PANIC for gradients that are no numbers where they reach the host; a WARNING for a seed's own."""
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


def _judge_collapse(history: History, signals: Signals, settings: GovernorConfig) -> Verdict:
    """What was clearly better than guessing is not any more.

    The validation loss alone is a WARNING: it rises in an overfitted network, too, whose metric is as good as ever.
    Only a network that lost what it had learnt has the training loss of guessing as well.
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


def _judge_surge(history: History, signals: Signals, settings: GovernorConfig) -> tuple[Verdict, History]:
    """WARNING where a loss stands out from its recent healthy history, PANIC where it does so some steps running."""
    losses = {
        "training": (_measure(history.train_losses, history, settings), signals.train_loss),
        "validation": (_measure(history.validation_losses, history, settings), signals.validation_loss),
    }
    told = [
        f"the {name} loss is {loss:.4g}, and was {fmean(before):.4g} ± {pstdev(before):.4g} before"
        for name, (before, loss) in losses.items()
        if before and _surges(before, loss, history.guessing_loss, settings)
    ]
    history = replace(history, surging_steps=history.surging_steps + 1 if told else 0)
    if not told:
        return CALM, history
    level = Level.PANIC if history.surging_steps >= settings.surge_steps else Level.WARNING
    return Verdict(level, f"surge, step {history.surging_steps} of {settings.surge_steps}: {'; '.join(told)}"), history


def _measure(recent: Sequence[float], history: History, settings: GovernorConfig) -> Sequence[float]:
    """What a loss is compared with: the recent ones, or while there are too few of them the loss of guessing."""
    if len(recent) >= min(HISTORY_STEPS_NEEDED, settings.history_steps):
        return recent
    return () if history.guessing_loss is None else (history.guessing_loss,)


def _surges(before: Sequence[float], loss: float, guessing: float | None, settings: GovernorConfig) -> bool:
    """Whether the loss exceeds mean + k·σ, and m × the mean, and by more than a trifle.

    m × the mean is written so that it holds for losses below 0, too; what a trifle is the loss of guessing says.
    """
    mean = fmean(before)
    trifle = 0.0 if guessing is None else TRIFLE_SHARE * abs(guessing)
    excess = loss - mean
    if excess <= max((settings.surge_ratio - 1.0) * abs(mean), trifle):
        return False  # as nearly always: the deviation, which takes longest, is not needed
    return excess > settings.surge_sigmas * pstdev(before)
