"""What is an environment? One training of one host from scratch: defined by its seed, its recipe, and the actions.

Everything here stays on the device; ``readings`` is what the pool reads, once a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from esper_core.growth import (
    NUMBERS,
    WIDTH,
    FaultBook,
    Garden,
    Gates,
    OptimizerKeeper,
    RandomStream,
    Regimen,
    SeedFault,
    Snapshot,
    derive_seed,
    disturbed,
    graft,
    in_words,
    read_gain,
    read_health,
)
from esper_core.leyline.constants import PROBE_EXAMPLES
from esper_core.leyline.signals import SeedSignals, Signals, SlotSignals
from esper_core.trainer.batches import BatchOrder
from esper_core.trainer.evaluation import Measured, evaluate
from esper_core.trainer.weighing import Scales

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.config import EpisodeConfig, GrowthConfig, OptimizersConfig
    from esper_core.growth import Seed, Transition, Variety
    from esper_core.leyline.actions import Action, ActionMask
    from esper_core.leyline.protocols import Schedule, Split, SplitName, Task
    from esper_core.leyline.specs import SlotPlace

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
    device: torch.device
    host_schedule: Schedule | None = None
    seed_schedule: Schedule | None = None


@dataclass(frozen=True, slots=True)
class Mishap:
    """A seed was lost: whose it was, what it did, and whether its blueprint is withdrawn from the run by it.

    ``ending`` is None where it could not even be built.
    """

    slot: str
    blueprint: str
    what: str
    withdrawn: bool
    ending: Transition | None


class Environment:
    """One host in training, with its garden. ``arm`` and ``index`` say whose it is; ``seed`` defines the episode."""

    def __init__(self, recipe: Recipe, *, arm: str, index: int, faults: FaultBook | None = None) -> None:
        self.recipe = recipe
        self.arm = arm
        self.index = index
        self.round = 0
        self.seed = 0
        self._faults = FaultBook() if faults is None else faults
        self._mishaps: list[Mishap] = []

    def reset(self, round_: int, seed: int) -> None:
        """Begin an episode: a new host, its slots empty, everything random derived from ``seed``."""
        recipe, self.round, self.seed = self.recipe, round_, seed
        train = recipe.data["train"]
        with RandomStream(derive_seed(seed, "host"), recipe.device):
            self.model = recipe.build_host().to(recipe.device)
        self.host_parameters = count_parameters(self.model)
        graft(self.model, recipe.slots, example=train.inputs[:2])
        self.keeper = OptimizerKeeper(
            self.model.parameters(),
            host_settings=Regimen.of(recipe.optimizers.host, recipe.host_schedule),
            seed_settings=Regimen.of(recipe.optimizers.seed, recipe.seed_schedule),
            steps=recipe.episode.steps,
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
        )
        self.order = BatchOrder(len(train), recipe.episode.batch_size, derive_seed(seed, "order"))
        self.training_stream = RandomStream(derive_seed(seed, "training"), recipe.device)
        self.evaluation_stream = RandomStream(derive_seed(seed, "evaluation"), recipe.device)
        self._train_loss = torch.full((), math.nan, device=recipe.device)
        self._incubation_losses: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self.scales = Scales(self.garden, RandomStream(derive_seed(seed, "trial"), recipe.device))
        self._measured: Measured | None = None
        self._looked = -1
        self._known_losses: dict[int, float] = {}
        self._sane: tuple[Snapshot, Tensor] | None = None

    def train(self) -> list[Transition]:
        """One decision step of training: every batch trains host and blended seeds, and then each incubating seed."""
        transitions = self._despite_faults(self.garden.open_step)
        self._sane = (Snapshot(self.garden), self._train_loss) if self.garden.blended else None
        data, device = self.recipe.data["train"], self.recipe.device
        self.model.train()
        losses: list[Tensor] = []
        with self.training_stream:
            for _ in range(self.recipe.episode.batches):
                indices = self.order.next().to(device)
                inputs, targets = data.inputs[indices], data.targets[indices]
                losses.append(self._train_batch(inputs, targets))
        self._train_loss = torch.stack(losses).mean()
        self._incubation_losses = self.garden.take_incubation_losses()
        self._gradients = self.keeper.take_gradients()
        return transitions + self._despite_faults(self.garden.close_step)

    def _train_batch(self, inputs: Tensor, targets: Tensor) -> Tensor:
        def loss(model: nn.Module) -> Tensor:
            return self.recipe.task.losses(model(inputs), targets).mean()

        self.garden.tick()
        whole = self._despite_faults(lambda: self._train_host(loss))
        for number in self.garden.incubating:
            self._despite_faults(partial(self._incubate, number, loss))
        return whole

    def _incubate(self, number: int, loss: Callable[[nn.Module], Tensor]) -> None:
        self.garden.incubate(number, loss)
        if done := disturbed():
            slot, _ = self.garden.home_of(number)
            raise SeedFault([slot.name], done, number=number)

    def _probe_loss(self, model: nn.Module) -> Tensor:
        """The mean loss on some of the training data: what a block looks at that is born informed."""
        data = self.recipe.data["train"]
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "probe"))
        some = torch.randperm(len(data), generator=generator)[:PROBE_EXAMPLES].to(self.recipe.device)
        return self.recipe.task.losses(model(data.inputs[some]), data.targets[some]).mean()

    def _train_host(self, loss: Callable[[nn.Module], Tensor]) -> Tensor:
        self.keeper.zero_grad()
        whole = loss(self.model)
        if done := disturbed():
            self._blame_those_who_act(f"{done} while it was in the host")
        if not whole.requires_grad:
            if self.keeper.host.parameters or self.garden.learning:
                self._blame_those_who_act("left the loss without a gradient")
            return whole  # a frozen host, and no seed that acts on it yet
        try:
            whole.backward()
        except Exception as error:
            if not self.garden.blended:
                raise
            raise SeedFault(self.garden.blended_slots, f"{in_words(error)} in backward") from error
        self.keeper.step(self.garden.learning)
        return whole.detach()

    def _blame_those_who_act(self, what: str) -> None:
        """The seeds that act on the host did it; where there are none, host or task."""
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

    def weigh(self, twin: Environment | None) -> None:
        """Measure what living seeds gain on the validation split, after every environment was evaluated on it."""
        assert self._measured is not None
        undisturbed = None if twin is None or twin is self or twin._measured is None else twin._measured.losses
        self._despite_faults(
            partial(self.scales.weigh, partial(self._evaluate, "validation"), self._measured.losses, undisturbed)
        )

    def _evaluate(self, split: SplitName) -> Measured:
        measured = evaluate(self.model, self.recipe.task, self.recipe.data[split])
        if done := disturbed():
            self._blame_those_who_act(done)
        return measured

    def heal(self, signals: Signals) -> bool:
        """Take out the seeds that made a loss not finite, and bring the host back; whether there were any.

        A seed that incubates did the host no harm. One that is blended in did: the host becomes what it was when this
        step began. Where no living seed is to blame nothing is done; that is for the governor.
        """
        sick = self._seeds_gone_wild()
        if math.isfinite(signals.train_loss) and math.isfinite(signals.validation_loss):
            for number in sick:
                self._lose_one(number, "made its own loss not finite")
            return bool(sick)
        if self._sane is None or not self.garden.blended:
            return False
        snapshot, self._train_loss = self._sane
        snapshot.restore(self.garden)
        self._lose(SeedFault(self.garden.blended_slots, "made the host's loss not finite"))
        for number in sick:  # they learnt from a host that was sick: lost with it, and not to blame
            self._lose_one(number, "was lost with a host that another seed had harmed", blamed=False)
        return True

    def take_mishaps(self) -> list[Mishap]:
        """The seeds that were lost since this was asked last."""
        mishaps, self._mishaps = self._mishaps, []
        return mishaps

    def _despite_faults(self, act: Callable[[], T]) -> T:
        """What ``act`` gives, if need be without the seeds that are in its way."""
        while True:
            try:
                return act()
            except SeedFault as fault:
                disturbed()  # what raised in the middle may have left torch in disorder
                self._lose(fault)

    def _seeds_gone_wild(self) -> list[int]:
        """The living seeds whose own loss is not finite."""
        known = self._known_losses
        return [seed.number for seed in self.garden.living_seeds() if not math.isfinite(known.get(seed.number, 0.0))]

    def _lose_one(self, number: int, what: str, *, blamed: bool = True) -> None:
        slot, _ = self.garden.home_of(number)
        self._lose(SeedFault([slot.name], what, number=number), blamed=blamed)

    def _lose(self, fault: SeedFault, *, blamed: bool = True) -> None:
        lost = self.garden.uproot(f"lost: it {fault.what}", fault.slots, fault.number) if fault.slots else []
        if not lost:
            raise fault
        for transition in lost:
            self._incubation_losses.pop(transition.seed, None)
            self._gradients.pop(transition.seed, None)
            self.scales.gains.pop(transition.seed, None)
            withdrawn = blamed and self._faults.record(transition.blueprint)
            self._mishaps.append(Mishap(transition.slot, transition.blueprint, fault.what, withdrawn, transition))

    def readings(self, evaluation: Tensor) -> Tensor:
        """All that is to be read of this step, in one tensor.

        Train loss, validation loss and metric; then, seed by seed, incubation losses, gradients' numbers, and gains'.
        """
        incubation = [loss.reshape(1) for loss in self._incubation_losses.values()]
        by_seed = [*incubation, *self._gradients.values(), *self.scales.gains.values()]
        numbers = [self._train_loss.reshape(1), evaluation, *by_seed]
        return torch.cat([number.double() for number in numbers])

    def signals(self, step: int, readings: Sequence[float]) -> Signals:
        """What was read, with names to it, and what is known without reading."""
        train_loss, validation_loss, validation_metric, *rest = readings
        losses = {number: loss for number, (loss,) in _dealt(rest, self._incubation_losses, 1)}
        health = {number: read_health(numbers) for number, numbers in _dealt(rest, self._gradients, WIDTH)}
        gains = {number: read_gain(numbers) for number, numbers in _dealt(rest, self.scales.gains, NUMBERS)}
        self._known_losses = losses
        if step > self._looked:
            self._looked = step
            self.garden.gates.look(self.garden.living_seeds(), gains)

        def told(seed: Seed) -> SeedSignals:
            return SeedSignals(
                blueprint=seed.blueprint,
                stage=seed.stage,
                alpha=seed.alpha.value,
                parameters=seed.parameter_count,
                age=None if seed.born is None else step - seed.born,
                incubation_loss=losses.get(seed.number),
                gradients=health.get(seed.number),
                gain=gains.get(seed.number),
                opinion=self.garden.gates.opinion(seed),
            )

        return Signals(
            step=step,
            train_loss=train_loss,
            validation_loss=validation_loss,
            validation_metric=validation_metric,
            parameters=count_parameters(self.model),
            host_parameters=self.host_parameters,
            slots=tuple(
                SlotSignals(slot.name, slot.state, len(slot.fossils), tuple(map(told, slot.nursery)))
                for slot in self.garden.slots.values()
            ),
        )

    def mask(self) -> ActionMask:
        """What could be done now."""
        return self.garden.mask()

    def apply(self, action: Action, step: int) -> list[Transition]:
        """Carry out what was decided after ``step``. A blueprint that cannot be built is a mishap; nothing grows."""
        try:
            return self.garden.apply(action, step)
        except SeedFault as fault:
            blueprint = action.blueprint or ""
            withdrawn = self._faults.record(blueprint)
            self._mishaps.append(Mishap(action.slot or "", blueprint, fault.what, withdrawn, None))
            return []


def _dealt(numbers: list[float], seeds: Iterable[int], width: int) -> Iterator[tuple[int, list[float]]]:
    """For each seed the next ``width`` of ``numbers``, which are taken off."""
    for seed in list(seeds):
        yield seed, numbers[:width]
        del numbers[:width]


def count_parameters(model: nn.Module) -> int:
    """How many numbers ``model`` trains or holds as parameters, each once."""
    return sum(parameter.numel() for parameter in model.parameters())
