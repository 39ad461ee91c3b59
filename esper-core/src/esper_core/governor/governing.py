"""What is done about an environment in trouble? The governor of one environment: it watches, decides, and rolls back.

``heed`` once a step, when the signals are read; ``roll_back`` where that is what was decided; ``note`` whatever changed
in the garden. All of it is done on the environment's own lane and touches nothing of another's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from esper_core.config import GovernorConfig
from esper_core.governor.decision import Act, Decision, RolledBack
from esper_core.governor.history import History
from esper_core.governor.judgement import judge_step
from esper_core.governor.shelf import Kept, Shelf
from esper_core.governor.watch import Watch
from esper_core.growth import FaultBook
from esper_core.leyline.actions import Op
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import CALM, Level, Verdict, most_severe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from esper_core.growth import Garden, Transition
    from esper_core.leyline.actions import ActionMask
    from esper_core.leyline.signals import Metric, Signals


@dataclass(frozen=True, slots=True)
class _Plan:
    """A rollback that was decided on: for which decision, and to what."""

    decision: Decision
    kept: Kept


class Governor:
    """Watches one environment, episode after episode.

    Args:
        settings: bounds, windows and what may be done.
        metric: what the task is judged by: a better one is progress, too; None: only the loss counts.
        faults: counts what goes wrong, over all environments of a run.
    """

    def __init__(
        self, settings: GovernorConfig | None = None, *, metric: Metric | None = None, faults: FaultBook | None = None
    ) -> None:
        self._settings = GovernorConfig() if settings is None else settings
        self._metric = metric
        self._faults = FaultBook() if faults is None else faults
        self._watch = Watch(self._settings.watch_steps)
        self._shelf = Shelf(self._settings.snapshots)
        self._history = History()
        self._rollbacks = 0
        self._warned, self._calm = False, True

    def begin(self, garden: Garden, guessing_loss: float | None = None) -> None:
        """An episode begins, with a host that nothing trained yet.

        guessing_loss: validation loss of this host, or what the task says that guessing has; None: unknown, and then
        no collapse can be told.
        """
        self._garden = garden
        known = guessing_loss is not None and math.isfinite(guessing_loss)
        self._history = History(guessing_loss if known else None)
        self._rollbacks = 0
        self._warned, self._calm = False, True
        self._plan: _Plan | None = None
        self._watch.forget()
        self._shelf.renew(garden, -1, self._history)

    def note(self, changes: Iterable[Transition], step: int) -> None:
        """What changed in the garden in ``step``, or was decided after it.

        A seed that was kept for good makes another network: every snapshot is taken anew, for no older one fits it.
        """
        changes = list(changes)
        self._watch.note(changes, step)
        if any(change.now is Stage.FOSSILIZED for change in changes):
            self._shelf.renew(self._garden, step, self._history)

    def heed(self, signals: Signals, *, opinion: Verdict = CALM, host_finite: bool | None = None) -> Decision:
        """What is to be done after a step that was measured; where it was healthy, a snapshot is taken if it is time.

        opinion: what others say of it, who can raise the alarm and not call it off. host_finite: whether the host's
        parameters and gradients are; None where nobody looked.
        """
        judged = judge_step(
            self._history,
            signals,
            self._settings,
            acting=self._garden.blended_slots,
            metric=self._metric,
            host_finite=host_finite,
        )
        verdict = most_severe([judged.verdict, opinion])
        self._calm = verdict.level in (Level.CALM, Level.ENOUGH)
        self._watch.heed(signals)
        if verdict.level is Level.PANIC:
            return self._panic(signals, verdict, second_opinion=verdict is not judged.verdict)
        self._history = judged.history
        if judged.healthy and opinion.level is not Level.WARNING and self._is_time(signals, improved=judged.improved):
            self._shelf.take(self._garden, signals.step, self._history)
        if verdict.level is Level.ENOUGH:
            return Decision(Act.EARLY_STOP, signals.step, verdict)
        if why := self._plateau(signals):
            return Decision(Act.EARLY_STOP, signals.step, Verdict(Level.ENOUGH, why))
        warned, self._warned = self._warned, verdict.level is Level.WARNING
        act = Act.WARN if self._warned and not warned else Act.CONTINUE
        return Decision(act, signals.step, verdict)

    def narrowed(self, mask: ActionMask) -> ActionMask:
        """``mask`` without what is final, after a step that was not calm: a state that may be sick is not kept."""
        if self._calm:
            return mask
        final = frozenset({Op.FOSSILISE})
        ops = {slot: ops - final for slot, ops in mask.ops.items()}
        seeds = {slot: {name: ops - final for name, ops in own.items()} for slot, own in mask.seeds.items()}
        return replace(mask, ops=ops, seeds=seeds)

    def roll_back(self, decision: Decision) -> RolledBack:
        """Go back as ``decision``, the latest one, says: host and fossils are bit for bit what they were.

        Seeds whose fate is open are dropped, and their slots rest. No optimizer remembers anything, and the governor
        only what it knew then.
        """
        if self._plan is None or self._plan.decision is not decision:
            msg = f"only the latest decision to roll back can be carried out. Received: {decision}"
            raise ValueError(msg)
        kept, self._plan = self._plan.kept, None
        kept.snapshot.restore(self._garden)
        transitions = self._garden.uproot(f"rolled back: {decision.reason}")
        self._history, self._warned = kept.history, False
        self._watch.forget()
        self._rollbacks += 1
        self._shelf.renew(self._garden, kept.step, self._history)
        losses = self._history.train_losses
        withdrawn = decision.counted(self._faults)
        return RolledBack(tuple(transitions), withdrawn, losses[-1] if losses else self._history.guessing_loss)

    def state(self) -> State:
        """All that it knows, between two steps, when no rollback is planned: its snapshots are part of it."""
        return State.of(
            {"shelf": self._shelf.state()},
            history=self._history.as_json(),
            rollbacks=self._rollbacks,
            warned=self._warned,
            calm=self._calm,
            watch=self._watch.as_json(),
        )

    def load(self, state: State) -> None:
        """Know what another governor knew, of the garden that ``begin`` was given: as grown as it was there."""
        known = state.plain
        self._history = History.from_json(known["history"])
        self._rollbacks, self._warned, self._calm = known["rollbacks"], known["warned"], known["calm"]
        self._plan = None
        self._watch.load(known["watch"])
        self._shelf.load(state.part("shelf"), self._garden)

    def _is_time(self, signals: Signals, *, improved: bool) -> bool:
        """Whether to take a snapshot of this healthy step: it is better than ever, or the last one is old.

        None is taken while a seed acts on the host, which leans on it. A rollback takes it out, and what would be left
        then was never seen, let alone judged.
        """
        if self._garden.blended:
            return False
        latest = self._shelf.latest
        return improved or latest is None or signals.step - latest >= self._settings.snapshot_steps

    def _plateau(self, signals: Signals) -> str | None:
        """Why nothing more is to be expected: no progress for long, and no seed whose fate is open."""
        patience, stale = self._settings.patience, self._history.stale_steps
        if patience is None or stale < patience or signals.seeds:
            return None
        return f"no improvement for {stale} steps (governor.patience)"

    def _panic(self, signals: Signals, verdict: Verdict, *, second_opinion: bool) -> Decision:
        culprit = self._watch.culprit(self._garden.blended_slots)
        kept, why = self._way_back()
        if kept is None:
            told = Verdict(Level.PANIC, f"{verdict.reason}; {why}")
            return Decision(Act.STOP, signals.step, told, culprit, second_opinion=second_opinion)
        penalty = self._settings.penalty
        decision = Decision(
            Act.ROLL_BACK, signals.step, verdict, culprit, kept.step, penalty, second_opinion=second_opinion
        )
        self._plan = _Plan(decision, kept)
        return decision

    def _way_back(self) -> tuple[Kept | None, str]:
        """The state to go back to, or why there is none."""
        if not self._settings.rollback:
            return None, "rolling back is switched off (governor.rollback)"
        if self._rollbacks >= self._settings.rollbacks:
            return None, f"it was rolled back {self._rollbacks} times already (governor.rollbacks)"
        kept, flaws = self._shelf.sound(self._garden)
        return kept, f"there is nothing sane to go back to: {'; '.join(flaws)}"
