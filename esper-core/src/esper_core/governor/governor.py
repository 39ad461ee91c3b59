"""The governor of one environment: decide what to do after a step, roll back, and stop early.

``decide`` is called once a step with the signals, ``roll_back`` where that was decided, and ``record`` with whatever
changed in the garden. It also holds what it needs for that: snapshots of healthy states.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from esper_core.governor.attribution import Culprit, MutationWatch
from esper_core.governor.judgement import LossHistory, judge_step
from esper_core.growth import FaultBook, Snapshot
from esper_core.leyline.lifecycle import ActionMask, Op, Stage
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import CALM, Cause, Level, Reason, Verdict, most_severe
from esper_core.settings import GovernorConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.growth import Garden, Transition
    from esper_core.leyline import Metric, Signals


class Act(StrEnum):
    """What the governor can do, the mildest first.

    CONTINUE and WARN let the environment go on. EARLY_STOP ends its episode, although nothing is wrong. ROLL_BACK
    returns it to a healthy state, and ends an episode for a policy that learns. STOP ends the run.
    """

    CONTINUE = "continue"
    WARN = "warn"
    EARLY_STOP = "early-stop"
    ROLL_BACK = "roll-back"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class GovernorDecision:
    """What to do after a step.

    Attributes:
        culprit: The mutation that a panic is attributed to; None if none is recent enough.
        back_to: The step after which the snapshot was taken that a rollback restores; -1: before any training.
        penalty: What is subtracted from the step's reward.
        second_opinion: Whether the verdict is a plugin's, and not the governor's own.
    """

    act: Act
    step: int
    verdict: Verdict = CALM
    culprit: Culprit | None = None
    back_to: int | None = None
    penalty: float = 0.0
    second_opinion: bool = False

    @property
    def truncated(self) -> bool:
        """Whether the episode is truncated in this step, so that its last state is valued."""
        return self.act is Act.EARLY_STOP

    @property
    def reason(self) -> str:
        """The verdict's reason, and the mutation that it is attributed to."""
        cause = f"; after {self.culprit.mutation}" if self.culprit is not None else ""
        return self.verdict.reason + cause

    def counted(self, faults: FaultBook) -> bool:
        """Count a rollback against its culprit's blueprint, and return whether that withdraws the blueprint."""
        culprit = self.culprit
        return culprit is not None and culprit.blamed and faults.record(culprit.mutation.blueprint)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did: which seeds it dropped, and whether it withdraws the culprit's blueprint from the run.

    ``train_loss`` is that of the last healthy step before the restored state, or the loss of guessing before any; None
    where it is unknown.
    """

    transitions: tuple[Transition, ...]
    withdrawn: bool
    train_loss: float | None


class Governor:
    """Watches one environment, episode after episode. One that is off (``governor: off``) does nothing.

    An improvement of ``metric`` or loss counts as progress; ``faults`` counts failures of blueprints over the run.
    """

    def __init__(
        self, settings: GovernorConfig | None = None, *, metric: Metric | None = None, faults: FaultBook | None = None
    ) -> None:
        self._settings = settings or GovernorConfig()
        self._metric = metric
        self._faults = faults or FaultBook()
        self._watch = MutationWatch(self._settings.watch_steps)
        self._snapshots = Snapshots(self._settings.copies)
        self._history, self._rollbacks = LossHistory(), 0
        self._warned, self._calm = False, True

    def begin(self, garden: Garden, guessing_loss: float | None = None) -> None:
        """Begin an episode with an untrained host.

        ``guessing_loss`` is the validation loss of this host; None: unknown, and a collapse cannot be detected.
        """
        self._garden = garden
        is_known = guessing_loss is not None and math.isfinite(guessing_loss)
        self._history = LossHistory(guessing_loss if is_known else None)
        self._rollbacks, self._warned, self._calm = 0, False, True
        self._planned: tuple[GovernorDecision, KeptSnapshot] | None = None
        self._watch.forget()
        self._snapshots.kept.clear()  # of another host, from whose tensors nothing says what trains in this one
        self._snapshots.renew(garden, -1, self._history)

    def close(self) -> None:
        """Free the snapshots."""
        self._snapshots.kept.clear()

    def record(self, changes: Sequence[Transition], step: int) -> None:
        """Record what changed in the garden in ``step``, or was decided after it.

        A fossilised seed makes another network, which no older snapshot fits: every snapshot is taken again.
        """
        self._watch.record(changes, step)
        if any(change.now is Stage.FOSSILISED for change in changes):
            self._snapshots.renew(self._garden, step, self._history)

    def decide(self, signals: Signals, *, opinion: Verdict = CALM, host_finite: bool | None = None) -> GovernorDecision:
        """Decide what to do after a step, and take a snapshot of a healthy one if it is time.

        ``opinion`` is the verdict of plugins, which can raise an alarm and not cancel one. ``host_finite`` says whether
        the host's parameters and gradients are finite; None: not checked. A governor that is off does nothing.
        """
        if not self._settings.enabled:
            return GovernorDecision(Act.CONTINUE, signals.step)
        self._watch.advance(signals)
        judged = judge_step(
            self._history,
            signals,
            self._settings,
            acting=self._garden.blended_slots,
            changed=self._watch.host_changed,
            metric=self._metric,
            host_finite=host_finite,
        )
        verdict = most_severe([judged.verdict, opinion])
        self._calm = verdict.level in (Level.CALM, Level.ENOUGH)
        if verdict.level is Level.PANIC:
            return self._panic(signals, verdict, second_opinion=verdict is not judged.verdict)
        best_loss, self._history = self._history.best_loss, judged.history
        improved = self._history.best_loss != best_loss
        # A state that a plugin doubts is not one to return to.
        if judged.healthy and opinion.level is not Level.WARNING and self._is_time(signals, improved=improved):
            self._snapshots.take(self._garden, signals.step, self._history)
        if verdict.level is Level.ENOUGH:
            return GovernorDecision(Act.EARLY_STOP, signals.step, verdict)
        if why := self._plateau(signals):
            return GovernorDecision(Act.EARLY_STOP, signals.step, Verdict(Level.ENOUGH, why))
        # Of warnings in a row only the first is an act, because a surge warns in each of its steps.
        warned, self._warned = self._warned, verdict.level is Level.WARNING
        act = Act.WARN if self._warned and not warned else Act.CONTINUE
        return GovernorDecision(act, signals.step, verdict)

    def restrict(self, mask: ActionMask) -> ActionMask:
        """Return ``mask`` without FOSSILISE after a step that was not calm, whose state must not become permanent."""
        if self._calm:
            return mask
        final = frozenset({Op.FOSSILISE})
        ops = {slot: ops - final for slot, ops in mask.ops.items()}
        seeds = {
            slot: {name: ops - final for name, ops in by_blueprint.items()} for slot, by_blueprint in mask.seeds.items()
        }
        return replace(mask, ops=ops, seeds=seeds)

    def roll_back(self, decision: GovernorDecision) -> RolledBack:
        """Carry out a rollback: restore host and fossils bit for bit from the snapshot.

        Seeds that are not fossilised are dropped, and their slots rest. Optimizers lose their state, and the
        governor's history returns to that of the snapshot. ``decision`` is what ``decide`` returned last.
        """
        if self._planned is None or self._planned[0] != decision:
            msg = f"only the latest decision to roll back can be carried out. Received: {decision}"
            raise ValueError(msg)
        (_, kept), self._planned = self._planned, None
        # First, since it raises and changes nothing if the snapshot is flawed.
        kept.snapshot.restore(self._garden)
        transitions = self._garden.remove(Reason(Cause.ROLLBACK, decision.reason))
        self._history, self._warned = kept.history, False
        self._watch.forget()
        self._rollbacks += 1
        # Snapshots that are newer than the restored one may hold what went wrong.
        self._snapshots.renew(self._garden, kept.step, self._history)
        losses = self._history.train_losses
        withdrawn = decision.counted(self._faults)
        return RolledBack(tuple(transitions), withdrawn, losses[-1] if losses else self._history.guessing_loss)

    def restore(self) -> None:
        """Restore the newest sound snapshot, if there is one, for whoever goes on after a stop. Seeds stay."""
        kept, _ = self._snapshots.newest_sound(self._garden)
        if kept is not None:
            kept.snapshot.restore(self._garden)

    def state_dict(self) -> State:
        """Return the state between two steps, when no rollback is planned; snapshots are part of it."""
        return State.of(
            {"snapshots": self._snapshots.state_dict()},
            history=asdict(self._history),
            rollbacks=self._rollbacks,
            warned=self._warned,
            calm=self._calm,
            watch=self._watch.state_dict(),
        )

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned. The garden passed to ``begin`` must have the same seeds as then."""
        saved = state.plain
        self._history = LossHistory(**saved["history"])
        self._rollbacks, self._warned, self._calm = saved["rollbacks"], saved["warned"], saved["calm"]
        self._planned = None
        self._watch.load_state_dict(saved["watch"])
        self._snapshots.load_state_dict(state.part("snapshots"), self._garden)

    def _is_time(self, signals: Signals, *, improved: bool) -> bool:
        """Return whether to take a snapshot of this healthy step.

        It is taken if the loss is the best so far, if the last one is old, or if it lacks parameters that train now.
        None is taken while a seed acts on the host. A rollback removes that seed, and the host without it was never
        evaluated.
        """
        kept = self._snapshots.kept
        return not self._garden.blended and (
            improved
            or not kept
            or signals.step - kept[0].step >= self._settings.snapshot_steps
            or kept[0].snapshot.is_outdated
        )

    def _plateau(self, signals: Signals) -> str | None:
        """Return why nothing more is expected: no progress for long, and no living seed. None where that is not so."""
        patience, stale = self._settings.patience, self._history.stale_steps
        if patience is None or stale < patience or signals.seeds:
            return None
        return f"no improvement for {stale} steps (governor.patience)"

    def _panic(self, signals: Signals, verdict: Verdict, *, second_opinion: bool) -> GovernorDecision:
        settings, culprit = self._settings, self._watch.culprit(self._garden.blended_slots)
        if not settings.rollback:
            why = "rollbacks are disabled (governor.rollback)"
        elif self._rollbacks >= settings.rollbacks:
            why = f"it was already rolled back {self._rollbacks} times (governor.rollbacks)"
        else:
            kept, flaws = self._snapshots.newest_sound(self._garden)
            if kept is not None:
                penalty = settings.penalty
                decision = GovernorDecision(
                    Act.ROLL_BACK, signals.step, verdict, culprit, kept.step, penalty, second_opinion=second_opinion
                )
                self._planned = decision, kept
                return decision
            why = f"there is no intact snapshot to restore: {'; '.join(flaws)}"
        final = Verdict(Level.PANIC, f"{verdict.reason}; {why}")
        return GovernorDecision(Act.STOP, signals.step, final, culprit, second_opinion=second_opinion)


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot, the step after which it was taken (-1: before any), and the history at that time."""

    step: int
    history: LossHistory
    snapshot: Snapshot


class Snapshots:
    """The latest snapshots of one environment, ``room`` of them, the newest first, in memory that is reused."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.kept: list[KeptSnapshot] = []

    def take(self, garden: Garden, step: int, history: LossHistory) -> None:
        """Take a snapshot, in the place of the oldest one if there is no room."""
        if not self._room:
            return
        if len(self.kept) < self._room:
            snapshot = Snapshot(garden, [kept.snapshot for kept in self.kept])
        else:
            snapshot = self.kept.pop().snapshot
            snapshot.take(garden, [kept.snapshot for kept in self.kept])
        self.kept.insert(0, KeptSnapshot(step, history, snapshot))

    def renew(self, garden: Garden, step: int, history: LossHistory) -> None:
        """Replace all snapshots by the present state, because older ones do not fit a network that has grown."""
        for _ in range(self._room):
            self.take(garden, step, history)

    def newest_sound(self, garden: Garden) -> tuple[KeptSnapshot | None, list[str]]:
        """Return the newest snapshot without a flaw, and the flaws of those that are newer."""
        flaws: list[str] = []
        for kept in self.kept:
            why = kept.snapshot.flaw(garden)
            if why is None:
                return kept, flaws
            flaws.append(f"{'before training' if kept.step < 0 else f'of step {kept.step}'}: {why}")
        return None, flaws

    def state_dict(self) -> State:
        """Return the snapshots, the newest first."""
        kept = [{"step": kept.step, "history": asdict(kept.history)} for kept in self.kept]
        return State.of({str(place): kept.snapshot.state_dict() for place, kept in enumerate(self.kept)}, kept=kept)

    def load_state_dict(self, state: State, garden: Garden) -> None:
        """Restore what ``state_dict`` returned, for a garden with the same seeds."""
        saved_snapshots = list(enumerate(state.plain["kept"][: self._room]))
        if saved_snapshots:  # a governor that was off, or closed, had none
            self.kept.clear()
        for place, saved in reversed(saved_snapshots):
            # Taken of the present state only for its memory; the oldest first, because each goes to the front.
            self.take(garden, saved["step"], LossHistory(**saved["history"]))
            self.kept[0].snapshot.load_state_dict(state.part(str(place)))
