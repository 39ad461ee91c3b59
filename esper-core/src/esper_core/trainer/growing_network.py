"""One network that grows while it trains: its slots, seeds, optimizers, gates, measurements and governor.

A ``GrowingNetwork`` has no data. Its caller passes the losses of each batch and a function that evaluates it. One
decision step is, in this order:

    open_step()                 newborn seeds start to train
    train_batch(losses)         for each batch: trains host and seeds
    close_step(batch_losses)    ramps that have arrived are noticed
    evaluate(...), measure(...) validation, gains of seeds
    conclude_step(...)          reads the numbers; the gates look at them
    heal(signals)               takes out seeds that broke a loss
    judge(signals), roll_back(decision)
    apply(action)               the action of a policy

``trainer.environment`` drives it with the data of a task, and ``trainer.loop`` keeps the order.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import nn

from esper_core.governor import Governor
from esper_core.growth import (
    Averages,
    Draws,
    FaultBook,
    Garden,
    Gates,
    RandomStream,
    SeedFault,
    SeedPrices,
    Snapshot,
    Transition,
    decode_state,
    derive_seed,
    describe_error,
    device_of,
    encode_state,
)
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import Cause, Reason
from esper_core.plugins.process_state import restore_defaults
from esper_core.settings import GovernorConfig, GrowthConfig, OptimizersConfig
from esper_core.trainer.event_records import LostSeed, plain_of, record_of
from esper_core.trainer.measurements import Evaluation, SeedGains, StepMeasurements

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from esper_core.governor import GovernorDecision, RolledBack
    from esper_core.growth import OptimizerKeeper, Variety
    from esper_core.leyline import Action, ActionMask, Metric, Operations, Schedule, Signals, Verdict
    from esper_core.trainer.forward import CompiledHost, Loss
    from esper_core.trainer.measurements import Measurements

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class SeedRemover:
    """Takes seeds out of a network where they fail, keeps a record of each, and counts the faults of blueprints."""

    garden: Garden
    measurements: StepMeasurements
    faults: FaultBook
    records: list[LostSeed] = field(default_factory=list)
    """Seeds that were lost since ``take`` was called last."""

    def take(self) -> list[LostSeed]:
        """Return the records since the last call, each counted against its blueprint."""
        records, self.records = self.records, []
        return [record.counted(self.faults) for record in records]

    def run_without_faulty(self, act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what ``act`` gives for these arguments, repeated without the seeds that fail in it."""
        # This ends, because each turn takes out a seed or raises.
        while True:
            try:
                return act(*arguments, **named)
            except SeedFault as fault:
                restore_defaults()  # an error in the middle of a pass may leave others
                if not self.remove(fault.what, fault.slots, fault.number):
                    raise

    def remove(
        self, failure: str, slots: Collection[str] | None = None, number: int | None = None, blame: str = "code"
    ) -> bool:
        """Take out the living seeds of these slots, or the one of this number; return whether there was any."""
        lost = self.garden.remove(Reason(Cause.LOST, failure), slots, number)
        for transition in lost:
            self.measurements.forget(transition.seed)
            self.records.append(LostSeed(transition.slot, transition.blueprint, failure, transition, blame))
        return bool(lost)

    def record_unborn(self, slot: str, blueprint: str, failure: str) -> None:
        """Record a seed that could not be built."""
        self.records.append(LostSeed(slot, blueprint, failure, None))

    def blame_acting(self, failure: str) -> NoReturn:
        """Raise SeedFault for the seeds in the host's own pass; RuntimeError if there is none: host or task did it."""
        if self.garden.blended:
            raise SeedFault(self.garden.blended_slots, failure)
        raise RuntimeError(failure)

    def state_dict(self) -> State:
        """Return the records."""
        return encode_state([plain_of(record) for record in self.records])

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned."""
        self.records = record_of(list[LostSeed], decode_state(state))


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """What may grow in a network, and by which rules.

    Attributes:
        varieties: For each slot, what may grow in it.
        steps: Decision steps in which gates may look.
        batches: Batches of a decision step, on which ramps of alpha are spread.
        optimizers: Of host and seeds.
        schedules: Learning rate schedules of the ``"host"`` and of each ``"seed"``; where there is none: constant.
        metric: What the governor counts as progress, beside the loss.
        draws: When host and blueprints draw random numbers.
        operations: Operations of host and blueprints; None: unknown.
    """

    varieties: Mapping[str, Sequence[Variety]]
    steps: int
    batches: int = 1
    growth: GrowthConfig = field(default_factory=GrowthConfig)
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    optimizers: OptimizersConfig = field(default_factory=OptimizersConfig)
    schedules: Mapping[str, Schedule | None] = field(default_factory=dict)
    metric: Metric | None = None
    draws: Draws = Draws.ANYWHERE
    operations: Operations | None = None


class GrowingNetwork:
    """One growing network, driven from outside with losses and evaluations.

    A seed that fails in any of its passes is taken out, and the pass is repeated without it; ``lost`` records
    which. An error that no seed is to blame for is raised.

    Its ``governor`` judges it and rolls it back; ``governor.begin`` must be called before the first step.

    Args:
        model: The host, grafted, on its device.
        keeper: Its optimizers.
        settings: What may grow, and by which rules.
        seed: RNG seed of this network.
        probe: Mean loss on some training data, for blueprints that choose their first weights by it.
        faults: Counts failures of blueprints over all networks of the run; None: of this one alone.
        compile_host: Makes what runs the host's training pass compiled; None: it runs as written.
    """

    def __init__(
        self,
        model: nn.Module,
        keeper: OptimizerKeeper,
        settings: NetworkSettings,
        *,
        seed: int,
        probe: Callable[[nn.Module], Tensor],
        faults: FaultBook | None = None,
        compile_host: Callable[[Garden], CompiledHost] | None = None,
    ) -> None:
        self.model, self.keeper, self._draws = model, keeper, settings.draws
        growth, varieties = settings.growth, settings.varieties
        faults = faults or FaultBook()
        self.governor = Governor(settings.governor, metric=settings.metric, faults=faults)
        device, deterministic = device_of(model), self._draws is Draws.NEVER
        self.garden = Garden(
            model,
            keeper,
            varieties,
            seed=seed,
            batches=settings.batches,
            settings=growth,
            faults=faults,
            probe=probe,
            gates=Gates(growth, settings.steps),
            deterministic=deterministic,
        )
        # Three of them, so that evaluations and trials do not shift the numbers that dropout draws in training.
        self.training_stream, self.evaluation_stream, trial_stream = (
            RandomStream(derive_seed(seed, purpose), device, idle=deterministic)
            for purpose in ("training", "evaluation", "trial")
        )
        self.averages = Averages(self.garden, growth.average, is_final=growth.final_weights == "average")
        self.prices = SeedPrices(self.garden, growth, settings.metric, settings.operations)
        self.gains = SeedGains(self.garden, self.averages, trial_stream)
        self.measurements = StepMeasurements(self.garden, self.gains, settings.operations)
        self.lost = SeedRemover(self.garden, self.measurements, faults)
        self.compiled = None if compile_host is None else compile_host(self.garden)
        self.measured: Measurements
        """What was read last."""
        self.evaluation: Evaluation
        """The latest evaluation on the validation split; whoever evaluates sets it."""
        self._step_start: tuple[Snapshot, Tensor] | None = None
        """Host and fossils, and the training loss, before a step in which seeds act."""

    def open_step(self) -> list[Transition]:
        """Begin a decision step: newborn seeds start to train."""
        transitions = self.lost.run_without_faulty(self.garden.open_step)
        self.averages.open_step()
        self._step_start = None
        if self.garden.blended:
            # Only now is it needed: a seed that does not act cannot break the host.
            self._step_start = Snapshot(self.garden), self.measurements.train_loss
        return transitions

    def train_batch(self, losses: Sequence[Loss]) -> Tensor:
        """Train host and acting seeds on one batch, and each incubating seed; return the batch's mean loss, detached.

        ``losses`` are those of each part of the batch; together they add up to its mean loss.
        """
        self.garden.tick()
        loss = self.train_host(losses)
        self.incubate(losses)
        return loss

    def train_host(self, losses: Sequence[Loss]) -> Tensor:
        """Train host and acting seeds alone on one batch, after alphas moved on; return its mean loss, detached."""
        with self._drawing(Draws.ANYWHERE):
            return self.lost.run_without_faulty(self._train_host, losses)

    def incubate(self, losses: Sequence[Loss], numbers: Sequence[int] | None = None) -> None:
        """Train these seeds on one batch, after host and averages took it; None: averages take it, then all seeds."""
        if numbers is None:
            self.averages.take_batch()
            numbers = tuple(self.garden.incubating)  # of which those that fail are taken out
        for number in numbers:
            self.lost.run_without_faulty(self.garden.incubate, number, *losses)

    def close_step(self, batch_losses: Sequence[Tensor]) -> list[Transition]:
        """End the training of a step: ramps that have arrived are noticed, and seeds that are ready advance."""
        self.measurements.record_training(batch_losses)
        return self.lost.run_without_faulty(self.garden.close_step)

    def _train_host(self, losses: Sequence[Loss]) -> Tensor:
        blended = self.garden.blended

        def train(model: nn.Module) -> Tensor:
            # At the beginning of each attempt, since one that failed leaves gradients behind.
            self.keeper.zero_grad()
            parts = [self._forward_backward(loss, model, blended) for loss in losses]
            return parts[0] if len(parts) == 1 else torch.stack(parts).sum()

        loss = train(self.model) if self.compiled is None else self.compiled.run(train)
        self.keeper.step(blended)
        return loss

    def _forward_backward(self, compute: Loss, model: nn.Module, blended: Sequence[int]) -> Tensor:
        with self._drawing(Draws.FORWARD):
            loss = compute(model)
        # Before the loss is looked at: with gradients switched off it has none, and the message would hide the cause.
        if changes := restore_defaults():
            self.lost.blame_acting(f"{changes} while it was in the host")
        if not loss.requires_grad:
            if blended or any(owner.parameters for owner in self.keeper.owned_by_host()):
                self.lost.blame_acting("left the loss without a gradient")
            return loss  # the host is frozen, and no seed acts on it yet
        if not blended:
            self.keeper.backward(loss)
            return loss.detach()
        # Code of acting seeds may run there. Nothing tells them apart: the youngest counts, since the others have been
        # through such passes before.
        slot, seed = max(self.garden.acting(), key=lambda place: place[1].number)
        try:
            with slot.entered(seed):
                self.keeper.backward(loss)
        except Exception as error:
            # An error of autograd does not say whose backward it was, so all acting seeds are taken out.
            raise SeedFault(self.garden.blended_slots, f"{describe_error(error)} in backward") from error
        return loss.detach()

    def _drawing(self, when: Draws) -> AbstractContextManager[Any]:
        """Return a context with the training stream, if ``when`` is the time at which the host draws from it.

        A pass that compiles holds the stream until its gradients are there: torch's generators cannot be exchanged in
        the middle of it.
        """
        compiles = self.compiled is not None and self._draws is Draws.FORWARD and self.compiled.compiles_next
        draws = Draws.ANYWHERE if compiles else self._draws
        return self.training_stream if draws is when else nullcontext()

    def evaluate(self, evaluate: Callable[[], Evaluation | Tensor], *, averaged: bool = True) -> Evaluation:
        """Return the result of ``evaluate``, which runs the model on a split, for the network as it acts now.

        If it returns the loss of each example alone, the losses are metric and evidence, too. ``averaged``: with the
        running average of the weights, by which networks are judged, in place of those of the latest batch.
        """

        def checked() -> Evaluation:
            with self.averages.judged() if averaged else nullcontext():
                evaluation = evaluate()
            if changes := restore_defaults():
                self.lost.blame_acting(changes)
            if isinstance(evaluation, Evaluation):
                return evaluation
            return Evaluation(evaluation, evaluation.mean(), evaluation)

        with self.evaluation_stream:
            return self.lost.run_without_faulty(checked)

    def measure_gains(self, evaluate: Callable[[], Tensor], undisturbed: Tensor | None) -> None:
        """Measure what living seeds gain on the validation split, after ``evaluation`` was set to its result.

        ``evaluate`` returns the evidence on it for the network as it acts then, one number for each example;
        ``undisturbed`` holds the twin's evidence on it, one number for each example; None where there is no twin.
        """
        self.lost.run_without_faulty(self.gains.measure, evaluate, self.evaluation.evidence, undisturbed)

    def numbers(self) -> Tensor:
        """Return all measurements of this step as one tensor on the device."""
        return self.measurements.numbers(self.evaluation.means)

    def conclude_step(self, step: int, numbers: Sequence[float]) -> Signals:
        """Read the numbers of a step, let the gates look at them once, and return the step's signals."""
        self.measured = self.measurements.read(numbers)
        prices, correlation = self._prices(), self.averages.take_correlation()
        gains = self.measured.gains
        sets = [incubation for incubation in self.garden.incubating.values() if incubation.is_set]
        # To leave out the seeds of a set takes a pass for each, so that it is not done in every step.
        living = [seed for seed in self.garden.living_seeds() if not seed.in_set or seed.number in gains]
        self.garden.gates.look([*living, *sets], gains, prices, correlation)
        return self.measurements.signals(step, self.measured, prices)

    def signals(self, step: int, numbers: Sequence[float]) -> Signals:
        """Return the signals of a network that was changed and measured again in a step that is concluded."""
        self.measured = self.measurements.read(numbers)
        return self.measurements.signals(step, self.measured, self._prices())

    def _prices(self) -> dict[int, float]:
        measured = self.measured
        return self.prices.of_living(measured.validation_loss, measured.validation_metric, measured.gains)

    def heal(self, signals: Signals) -> bool:
        """Take out the seeds that made a loss non-finite, and restore the host if harmed; return whether any was.

        An incubating seed cannot harm the host. An acting one can: the host returns to what it was when this step began
        and its optimizers start afresh. If no living seed is to blame nothing is done here; the governor decides.
        """
        sick = self.measured.non_finite_seeds
        if math.isfinite(signals.train_loss) and math.isfinite(signals.validation_loss):
            for number in sick:
                self.lost.remove("made its own loss not finite", number=number, blame="numbers")
            return bool(sick)
        if self._step_start is None or not self.garden.blended:
            return False
        snapshot, self.measurements.train_loss = self._step_start
        snapshot.restore(self.garden)
        self.averages.forget()
        self.lost.remove("made the host's loss not finite", self.garden.blended_slots, blame="numbers")
        for number in sick:  # they trained on a broken host: lost with it, without a fault of their own
            self.lost.remove("was lost with a host that another seed had harmed", number=number, blame="none")
        return True

    def judge(self, signals: Signals, opinion: Verdict) -> GovernorDecision:
        """Return what the governor decides after a step."""
        return self.governor.decide(signals, opinion=opinion, host_finite=self.measured.host_finite)

    def roll_back(self, decision: GovernorDecision) -> RolledBack:
        """Return to the state that ``decision`` names, and forget what was measured since."""
        # The order of batches and random numbers go on: with the same ones the same failure would come again.
        rolled = self.governor.roll_back(decision)
        self.averages.forget()
        for transition in rolled.transitions:
            self.measurements.forget(transition.seed)
        loss = math.nan if rolled.train_loss is None else rolled.train_loss
        self.measurements.train_loss = torch.full((), loss, device=device_of(self.model))
        return rolled

    def close(self) -> None:
        """Free the copies of the host that are needed to undo steps, once no step follows."""
        self.governor.close()
        self._step_start = None

    def mask(self) -> ActionMask:
        """Return what can be done now."""
        return self.governor.restrict(self.garden.mask())

    def apply(self, action: Action, step: int) -> list[Transition]:
        """Carry out what was decided after ``step``. A blueprint that cannot be built is a lost seed."""
        try:
            return self.garden.apply(action, step)
        except SeedFault as fault:
            self.lost.record_unborn(action.slot or "", action.blueprint or "", fault.what)
            return []

    def state_dict(self) -> State:
        """Return the state between two steps, when what was decided is carried out.

        It leaves out what every step measures anew, and what is needed only to undo a step.
        """
        streams = encode_state((self.training_stream.state_dict(), self.evaluation_stream.state_dict()))
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return State.of({"garden": self.garden.state_dict(), "streams": streams, **parts})

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, in a network that was just made with the same settings."""
        self.garden.load_state_dict(state.part("garden"))
        self.governor.begin(self.garden)  # its snapshots fit the network as it is now; the state's own follow
        training, evaluation = decode_state(state.part("streams"))
        self.training_stream.load_state_dict(training)
        self.evaluation_stream.load_state_dict(evaluation)
        for name, part in self._parts().items():
            part.load_state_dict(state.part(name))

    def _parts(self) -> dict[str, Governor | Averages | SeedGains | StepMeasurements | SeedRemover]:
        return {
            "governor": self.governor,
            "averages": self.averages,
            "gains": self.gains,
            "measurements": self.measurements,
            "lost_seeds": self.lost,
        }
