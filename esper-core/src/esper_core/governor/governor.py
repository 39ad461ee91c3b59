"""What shall be done about an environment? One decision a step, as data: it says what, why, and whose doing it was.

Can a mutation be afforded? What it would take is reckoned before anything is touched.

The estimate counts what is kept for each parameter: its value, its gradient, the optimizer's state and the snapshots.
It does not count activations, which depend on the batch and on what the device's libraries do with it.

Which states can be gone back to? Some snapshots, the newest first, each with what was known when it was taken.

What is done about an environment in trouble? The governor of one environment: it watches, decides, and rolls back.

``heed`` once a step, when the signals are read; ``roll_back`` where that is what was decided; ``note`` whatever changed
in the garden. All of it is done on the environment's own lane and touches nothing of another's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from esper_core.config import GovernorConfig, GrowthConfig
from esper_core.governor.attribution import Watch
from esper_core.governor.judgement import History, judge_step
from esper_core.growth import FaultBook, Presence, Snapshot
from esper_core.leyline.actions import ActionMask, Op
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import CALM, Level, Verdict, most_severe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_core.config import OptimizerConfig, OptimizersConfig
    from esper_core.governor.attribution import Culprit
    from esper_core.growth import Garden, Transition, Variety
    from esper_core.leyline.signals import Metric, Signals
    from esper_core.leyline.specs import Site


class Act(StrEnum):
    """What can be done, the mildest first.

    CONTINUE and WARN: the environment goes on. EARLY_STOP: its episode ends here, cut short, and nothing is wrong.
    ROLL_BACK: it goes back to a sane state, and its episode ends here for who learns from it. STOP: nothing helps.
    """

    CONTINUE = "continue"
    WARN = "warn"
    EARLY_STOP = "early-stop"
    ROLL_BACK = "roll-back"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done after ``step``.

    culprit: the mutation that a panic is attributed to, where one is under watch.
    back_to: the step after which the state was taken that a rollback returns to; -1: before any training.
    penalty: what is to be taken off this step's reward. second_opinion: whether the verdict is not the governor's own.
    """

    act: Act
    step: int
    verdict: Verdict = CALM
    culprit: Culprit | None = None
    back_to: int | None = None
    penalty: float = 0.0
    second_opinion: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the episode ends in this step for the learner, and nothing is to be hoped for behind it."""
        return self.act in (Act.ROLL_BACK, Act.STOP)

    @property
    def truncated(self) -> bool:
        """Whether the episode is cut in this step: what the state promised is still worth what it promised."""
        return self.act is Act.EARLY_STOP

    @property
    def reason(self) -> str:
        """The verdict's reason, and whose doing it was."""
        doing = f"; after {self.culprit.mutation}" if self.culprit is not None else ""
        return self.verdict.reason + doing

    def counted(self, faults: FaultBook) -> bool:
        """Count a rollback against its culprit's blueprint, if it is to blame; whether that is withdrawn by it."""
        culprit = self.culprit
        return culprit is not None and culprit.blamed and faults.record(culprit.mutation.blueprint)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did: seeds that were dropped, and whether it withdraws the culprit's blueprint from the run.

    train_loss: of the last healthy step before the state that was returned to, that of guessing before any; None where
    that is unknown.
    """

    transitions: tuple[Transition, ...]
    withdrawn: bool
    train_loss: float | None


_MIB = 1 << 20
_STATE_NUMBERS = {"adam": 2, "adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps for each parameter; sgd: with momentum."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is refused in one run: what its settings do not let a network afford.

    varieties: for each slot what may grow in it. incubation: how seeds begin; each on a branch takes a host of its own.
    """

    settings: GovernorConfig
    optimizers: OptimizersConfig
    varieties: Mapping[str, Sequence[Variety]]
    incubation: str = GrowthConfig().incubation

    def narrowed(self, garden: Garden, mask: ActionMask) -> ActionMask:
        """``mask`` without what cannot be afforded: so a policy is not even offered it."""
        if self.settings.memory_mib is None:
            return mask
        varieties = {(slot, one.id): one for slot, several in self.varieties.items() for one in several}
        blueprints = {
            slot: tuple(
                one for one in fitting if not self._is_too_large(garden, garden.slots[slot].site, varieties[slot, one])
            )
            for slot, fitting in mask.blueprints.items()
        }
        ops = {slot: ops if blueprints.get(slot) else ops - {Op.GERMINATE} for slot, ops in mask.ops.items()}
        return replace(mask, ops=ops, blueprints=blueprints)

    def mebibytes(self, garden: Garden, more: int = 0) -> float:
        """What the network takes, in MiB, with ``more`` parameters that a seed would bring."""
        parameters = list(garden.model.parameters())
        grown = {id(parameter) for slot in garden.slots.values() for parameter in slot.parameters()}
        living = {id(parameter) for seed in garden.living_seeds() for parameter in seed.parameters()}
        host = sum(one.nbytes for one in parameters if id(one) not in grown)
        fossils = sum(one.nbytes for one in parameters if id(one) in grown - living)
        seeds = sum(one.nbytes for one in parameters if id(one) in living)
        seeds += more * (parameters[0].element_size() if parameters else 4)
        branches = sum(seed.presence is Presence.BRANCHED for seed in garden.living_seeds())
        branches += bool(more) and self.incubation == "branch"
        of_fossils = self._copies(self.optimizers.host)
        of_host = of_fossils + branches * (1 + _remembered(self.optimizers.host))
        return (host * of_host + fossils * of_fossils + seeds * self._copies(self.optimizers.seed)) / _MIB

    def _is_too_large(self, garden: Garden, site: Site | None, variety: Variety) -> bool:
        """Return whether the network would exceed the memory budget with a seed of this variety."""
        most = self.settings.memory_mib
        if most is None or site is None:
            return False
        return self.mebibytes(garden, variety.most_parameters(site)) > most

    def _copies(self, optimizer: OptimizerConfig) -> int:
        """Numbers that are kept for each parameter: value and gradient, optimizer's state, snapshots."""
        return 2 + _remembered(optimizer) + (self.settings.snapshots if self.settings.rollback else 0)


def _remembered(optimizer: OptimizerConfig) -> int:
    """Numbers that the optimizer keeps for each parameter."""
    return 0 if optimizer.kind == "sgd" and optimizer.momentum == 0.0 else _STATE_NUMBERS[optimizer.kind]


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot, the step after which it was taken (-1: before any), and the history of that time."""

    step: int
    history: History
    snapshot: Snapshot


class Shelf:
    """Up to ``room`` snapshots of one environment, the newest first, in memory that is used again and again."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.kept: list[Kept] = []

    @property
    def latest(self) -> int | None:
        """The step of the newest snapshot."""
        return self.kept[0].step if self.kept else None

    def take(self, garden: Garden, step: int, history: History) -> None:
        """One more snapshot, in the place of the oldest where there is no room."""
        if len(self.kept) < self._room:
            snapshot = Snapshot(garden)
        else:
            snapshot = self.kept.pop().snapshot
            snapshot.take(garden)
        self.kept.insert(0, Kept(step, history, snapshot))

    def renew(self, garden: Garden, step: int, history: History) -> None:
        """Every place holds what is now: for a network of another structure, to which no older state goes back."""
        for _ in range(self._room):
            self.take(garden, step, history)

    def state(self) -> State:
        """Its snapshots, the newest first."""
        kept = [{"step": kept.step, "history": kept.history.as_json()} for kept in self.kept]
        return State.of({str(place): kept.snapshot.state_dict() for place, kept in enumerate(self.kept)}, kept=kept)

    def load(self, state: State, garden: Garden) -> None:
        """Hold what another shelf held, of a garden that has grown as this one has."""
        self.kept.clear()
        for place, told in reversed(list(enumerate(state.plain["kept"]))):
            self.take(garden, told["step"], History.from_json(told["history"]))
            self.kept[0].snapshot.load_state_dict(state.part(str(place)))

    def sound(self, garden: Garden) -> tuple[Kept | None, list[str]]:
        """The newest snapshot without a flaw, and what is wrong with those before it."""
        flaws: list[str] = []
        for kept in self.kept:
            why = kept.snapshot.flaw(garden)
            if why is None:
                return kept, flaws
            flaws.append(f"{_place(kept.step)}: {why}")
        return None, flaws


def _place(step: int) -> str:
    return "before training" if step < 0 else f"of step {step}"


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
