"""What is an environment? One training of one host from scratch: defined by its seed, its recipe, and the actions.

Everything here stays on the device; ``reading`` is what the pool reads, once a step.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from esper_core.config import ComputeConfig
from esper_core.governor import Governor, Preflight
from esper_core.growth import (
    Draws,
    FaultBook,
    Garden,
    Gates,
    OptimizerKeeper,
    OptimizerSettings,
    RandomStream,
    SeedFault,
    Snapshot,
    derive_seed,
    graft,
    host_parameters,
    implant,
    in_words,
    restore_torch_defaults,
    summed,
    without_folders,
)
from esper_core.leyline.constants import PROBE_EXAMPLES
from esper_core.trainer.batches import BatchOrder, feed_for, sent
from esper_core.trainer.forward import Notices, Passes, way_for
from esper_core.trainer.measurements import Leaning, Measured, Reading, Scales, evaluate
from esper_core.trainer.remembering import bring_back, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.config import EpisodeConfig, GovernorConfig, GrowthConfig, OptimizersConfig
    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth, Transition, Variety
    from esper_core.leyline.actions import Action, ActionMask
    from esper_core.leyline.protocols import Schedule, Split, SplitName, State, Task
    from esper_core.leyline.signals import Signals, Verdict
    from esper_core.leyline.specs import Operations, SlotPlace
    from esper_core.trainer.forward import Loss, Way

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all environments of a run have in common."""

    task: Task
    data: Mapping[SplitName, Split]
    build_host: Callable[[], nn.Module]
    slots: Mapping[str, SlotPlace]
    varieties: Mapping[str, Sequence[Variety]]
    episode: EpisodeConfig
    optimizers: OptimizersConfig
    growth: GrowthConfig
    governor: GovernorConfig
    device: torch.device
    host_schedule: Schedule | None = None
    seed_schedule: Schedule | None = None
    draws: Draws = Draws.ANYWHERE
    """When host and blueprints draw random numbers, as far as a trial told."""
    operations: Operations | None = None
    """Of host and blueprints, where a reward has a price for them."""
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    new_way: Callable[[ComputeConfig, Garden, Notices], Way] = way_for
    notices: Notices = field(default_factory=Notices)
    """What is told once in the run."""

    def on(self, device: torch.device) -> Recipe:
        """The same on another device, with the data there, unless it stays on the host."""
        if device == self.device:
            return self
        if self.compute.data == "streamed":
            return replace(self, device=device)
        data = {name: type(own)(own.inputs.to(device), own.targets.to(device)) for name, own in self.data.items()}
        return replace(self, device=device, data=data)


@dataclass(frozen=True, slots=True)
class Mishap:
    """A seed was lost: whose it was, what it did, and whether its blueprint is withdrawn from the run by it.

    ``ending`` is None where it could not even be built. blamed: whether it counts against its blueprint.
    """

    slot: str
    blueprint: str
    what: str
    ending: Transition | None
    blamed: bool = True
    withdrawn: bool = False

    def counted(self, faults: FaultBook) -> Mishap:
        """The same, counted against its blueprint in the whole run, if that is to blame."""
        return replace(self, withdrawn=self.blamed and faults.record(self.blueprint))


class Environment:
    """One host in training, with its garden. ``arm`` and ``index`` say whose it is; ``seed`` defines the episode.

    ``steps`` counts those that it was trained for; an episode that is ``over`` is trained and asked no more.
    ``implants`` says of a seed what the host has from the start, as if it had been kept there.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        arm: str,
        index: int,
        faults: FaultBook | None = None,
        implants: Callable[[int], Sequence[Growth]] | None = None,
    ) -> None:
        self.recipe = recipe
        self._implants = implants
        self.arm = arm
        self.index = index
        self.round = 0
        self.seed = 0
        self._faults = FaultBook() if faults is None else faults
        self._mishaps: list[Mishap] = []
        self._preflight = Preflight(recipe.governor, recipe.optimizers, recipe.varieties, recipe.growth.incubation)
        self.governor = Governor(recipe.governor, metric=recipe.task.metric, faults=self._faults)
        self.passes = Passes(recipe.compute, recipe.task, recipe.device)
        self._feed = feed_for(recipe.compute.data, recipe.data["train"], recipe.device)

    def reset(self, round_: int, seed: int, *, bare: bool = False) -> None:
        """Begin an episode: a new host, everything random derived from ``seed``. bare: without any implants."""
        recipe, self.round, self.seed, self._mishaps = self.recipe, round_, seed, []
        train, quiet = recipe.data["train"], recipe.draws is Draws.NEVER
        with RandomStream(derive_seed(seed, "host"), recipe.device):
            self.model = recipe.build_host().to(recipe.device)
        graft(self.model, recipe.slots, example=sent(train.inputs[:2], recipe.device))
        if self._implants is not None and not bare:
            implant(self.model, self._implants(seed), recipe.varieties, seed=seed, probe=self._probe_loss)
        self.keeper = OptimizerKeeper(
            host_parameters(self.model),
            host_settings=OptimizerSettings.of(recipe.optimizers.host, recipe.host_schedule),
            seed_settings=OptimizerSettings.of(recipe.optimizers.seed, recipe.seed_schedule),
            steps=recipe.episode.steps,
            scaler=self.passes.new_scaler(),
        )
        self.garden = Garden(
            self.model,
            self.keeper,
            recipe.varieties,
            seed=seed,
            batches=recipe.episode.batches,
            settings=recipe.growth,
            faults=self._faults,
            probe=self._probe_loss,
            gates=Gates(recipe.growth, recipe.episode.steps),
            quiet=quiet,
        )
        self.order = BatchOrder(len(train), recipe.episode.batch_size, derive_seed(seed, "order"))
        self.training_stream, self.evaluation_stream, trial_stream = (
            RandomStream(derive_seed(seed, purpose), recipe.device, idle=quiet)
            for purpose in ("training", "evaluation", "trial")
        )
        self.scales = Scales(self.garden, trial_stream)
        run = self.passes.outputs
        self.leaning = Leaning(self.garden, derive_seed(seed, "counterfactuals"), quiet=quiet, run=run)
        self.reading = Reading(self.garden, self.scales, self.leaning, recipe.device, recipe.operations)
        self.way = recipe.new_way(recipe.compute, self.garden, recipe.notices)
        self._measured: Measured | None = None
        self._sane: tuple[Snapshot, Tensor] | None = None
        self._snapshot: Snapshot | None = None
        self.steps = 0
        self.over = False
        self.seconds = 0.0, 0.0
        """Of the latest step's training: all of it, and what of it went into seeds that incubate."""

    def train(self) -> list[Transition]:
        """One decision step of training: every batch trains host and blended seeds, and then each incubating seed."""
        began, self._in_shadow = perf_counter(), 0.0
        transitions = self._despite_faults(self.garden.open_step)
        self._sane = (self._what_is_now(), self.reading.train_loss) if self.garden.blended else None
        self.model.train()
        batches = range(self.recipe.episode.batches)
        self.reading.take([self._train_batch(*self._feed.next(self.order)) for _ in batches])
        self.steps += 1
        transitions += self._despite_faults(self.garden.close_step)
        self.seconds = perf_counter() - began, self._in_shadow
        return transitions

    def _what_is_now(self) -> Snapshot:
        """A snapshot of host and fossils, in memory that is used again."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self.garden)
        else:
            self._snapshot.take(self.garden)
        return self._snapshot

    def _train_batch(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.garden.tick()
        with self._drawing(Draws.ANYWHERE):
            whole = self._despite_faults(partial(self._train_host, inputs, targets))
        if incubating := self.garden.incubating:
            began = perf_counter()
            for number in incubating:
                self._despite_faults(partial(self._incubate, number, self.passes.parts(inputs, targets)))
            self._in_shadow += perf_counter() - began
        return whole

    def _incubate(self, number: int, parts: Sequence[Loss]) -> None:
        self.garden.incubate(number, *parts)
        if done := restore_torch_defaults():
            slot, _ = self.garden.home_of(number)
            raise SeedFault([slot.name], done, number=number)

    def _probe_loss(self, model: nn.Module) -> Tensor:
        """The mean loss on some of the training data: what a block looks at that is born informed."""
        data, device = self.recipe.data["train"], self.recipe.device
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "probe"))
        some = torch.randperm(len(data), generator=generator)[:PROBE_EXAMPLES].to(data.inputs.device)
        inputs, targets = sent(data.inputs[some], device), sent(data.targets[some], device)
        return self.recipe.task.losses(model(inputs), targets).mean()

    def _train_host(self, inputs: Tensor, targets: Tensor) -> Tensor:
        whole = self.way.run(self._leave_gradients, inputs, targets)
        self.keeper.step(self.garden.blended)
        return whole

    def _leave_gradients(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Those of one batch, where the optimizers look for them; its mean loss."""
        self.keeper.zero_grad()
        return summed([self._pass(partial(part, model)) for part in self.passes.parts(inputs, targets)])

    def _pass(self, loss: Callable[[], Tensor]) -> Tensor:
        with self._drawing(Draws.FORWARD):
            whole = loss()
        if done := restore_torch_defaults():
            self._blame_those_who_act(f"{done} while it was in the host")
        if not whole.requires_grad:
            if self.keeper.host.parameters or self.garden.blended:
                self._blame_those_who_act("left the loss without a gradient")
            return whole  # a frozen host, and no seed that acts on it yet
        try:
            self.keeper.backward(whole)
        except Exception as error:
            if not self.garden.blended:
                raise
            raise SeedFault(self.garden.blended_slots, f"{in_words(error)} in backward") from error
        return whole.detach()

    def _drawing(self, when: Draws) -> AbstractContextManager[Any]:
        """The block in which the host draws from its stream, where this is when it does.

        Where torch's generators cannot be exchanged on the way, the host has them until its gradients are there.
        """
        draws = Draws.ANYWHERE if self.recipe.draws is Draws.FORWARD and self.way.holds else self.recipe.draws
        return self.training_stream if draws is when else nullcontext()

    def _blame_those_who_act(self, what: str) -> None:
        """The seeds that take part in the host's own pass did it; where there are none, host or task."""
        if self.garden.blended:
            raise SeedFault(self.garden.blended_slots, what)
        raise RuntimeError(what)

    def evaluate(self, split: SplitName) -> Tensor:
        """Mean loss and metric of the network as it acts now, on one split; two numbers on the device."""
        with self.evaluation_stream:
            measured = self._despite_faults(partial(self._evaluate, split))
        if split == "validation":
            self._measured = measured
        return measured.means()

    def weigh(self, undisturbed: Tensor | None) -> None:
        """Measure living seeds on the validation split, after every environment was evaluated on it.

        What they gain, and how much the network leans on those that act in it. undisturbed: the losses of the twin, one
        for each example; None where there is none.
        """
        assert self._measured is not None
        self._despite_faults(
            partial(self.scales.weigh, partial(self._measure, "validation"), self._measured.losses, undisturbed)
        )
        if self.recipe.growth.dependence:
            self._despite_faults(partial(self.leaning.measure, self.recipe.task, self.recipe.data["validation"]))

    def losses(self) -> tuple[Tensor, ...]:
        """Those of the examples of the validation split, where it was evaluated: what others are weighed against."""
        return () if self._measured is None else (self._measured.losses,)

    def numbers(self) -> Tensor:
        """All that is to be read of this step, after ``evaluate`` on the validation split."""
        assert self._measured is not None
        return self.reading.numbers(self._measured.means())

    def _evaluate(self, split: SplitName) -> Measured:
        measured = self._measure(split)
        if done := restore_torch_defaults():
            self._blame_those_who_act(done)
        return measured

    def _measure(self, split: SplitName) -> Measured:
        return evaluate(self.model, self.recipe.task, self.recipe.data[split], self.passes.outputs)

    def heal(self, signals: Signals) -> bool:
        """Take out the seeds that made a loss not finite, and bring the host back; whether there were any.

        A seed that incubates did the host no harm. One that is blended in did: the host becomes what it was when this
        step began, and its optimizers begin anew. Where no living seed is to blame nothing is done; that is for the
        governor.
        """
        sick = self.reading.gone_wild
        if math.isfinite(signals.train_loss) and math.isfinite(signals.validation_loss):
            for number in sick:
                self._lose_one(number, "made its own loss not finite")
            return bool(sick)
        if self._sane is None or not self.garden.blended:
            return False
        snapshot, self.reading.train_loss = self._sane
        snapshot.restore(self.garden)
        self._lose(SeedFault(self.garden.blended_slots, "made the host's loss not finite"))
        for number in sick:  # they learnt from a host that was sick: lost with it, and not to blame
            self._lose_one(number, "was lost with a host that another seed had harmed", blamed=False)
        return True

    def take_mishaps(self) -> list[Mishap]:
        """The seeds that were lost since this was asked last, each counted against its blueprint in the whole run."""
        mishaps, self._mishaps = self._mishaps, []
        return [mishap.counted(self._faults) for mishap in mishaps]

    def _despite_faults(self, act: Callable[[], T]) -> T:
        """What ``act`` gives, if need be without the seeds that are in its way."""
        while True:
            try:
                return act()
            except SeedFault as fault:
                restore_torch_defaults()  # what raised in the middle may have left torch in disorder
                self._lose(fault)

    def _lose_one(self, number: int, what: str, *, blamed: bool = True) -> None:
        if any(seed.number == number for seed in self.garden.living_seeds()):
            slot, _ = self.garden.home_of(number)
            self._lose(SeedFault([slot.name], what, number=number), blamed=blamed)

    def _lose(self, fault: SeedFault, *, blamed: bool = True) -> None:
        what = without_folders(fault.what)
        lost = self.garden.uproot(f"lost: it {what}", fault.slots, fault.number) if fault.slots else []
        if not lost:
            raise fault
        for transition in lost:
            self.reading.forget(transition.seed)
            self._mishaps.append(Mishap(transition.slot, transition.blueprint, what, transition, blamed))

    def judge(self, signals: Signals, opinion: Verdict) -> Decision:
        """What is to be done after a step that was read."""
        return self.governor.heed(signals, opinion=opinion, host_finite=self.reading.host_finite)

    def roll_back(self, decision: Decision) -> RolledBack:
        """Go back to the state that ``decision`` names; what was measured of the time since is forgotten."""
        rolled = self.governor.roll_back(decision)
        for transition in rolled.transitions:
            self.reading.forget(transition.seed)
        loss = math.nan if rolled.train_loss is None else rolled.train_loss
        self.reading.train_loss = torch.full((), loss, device=self.recipe.device)
        return rolled

    def state(self) -> State:
        """All that it knows, between two steps, when what was decided is carried out."""
        return state_of(self, self._mishaps)

    def load(self, state: State) -> None:
        """Go on, bit for bit, from where an environment of an equal recipe stood. GrowthError where it does not fit."""
        self._mishaps = [Mishap(**known) for known in bring_back(self, state)]

    def close(self) -> None:
        """Let everything go at once, the thread that gathers its batches among it. It is of no use any more."""
        self._feed.close()
        vars(self).clear()  # parts of it refer to each other

    def mask(self) -> ActionMask:
        """What could be done now, and can be afforded: nothing once the episode is over."""
        possible = self.garden.mask()
        if self.over:
            return possible.shut()
        return self.governor.narrowed(self._preflight.narrowed(self.garden, possible))

    def apply(self, action: Action, step: int) -> list[Transition]:
        """Carry out what was decided after ``step``. A blueprint that cannot be built is a mishap; nothing grows."""
        try:
            return self.garden.apply(action, step)
        except SeedFault as fault:
            self._mishaps.append(Mishap(action.slot or "", action.blueprint or "", without_folders(fault.what), None))
            return []
