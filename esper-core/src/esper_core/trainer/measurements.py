"""What was measured in a step, and how is it read? It stays on the device, and is read in one tensor, once a step.

What do seeds gain? The losses of the same examples, with and without them; the differences stay on the device.

While a seed incubates, or is on a branch, it is weighed against the host itself. Once it acts on the host there is no
host without it any more, and it is weighed against the twin at the same step, less what the twin was behind when it
began. Where two seeds act at once, or another was kept since, nobody can tell whose the gain is: then it is unknown,
until there is a step in which none acts.

How much does a network lean on each of the seeds that act in it? Its losses with each left out, by prefix replay.

That is dependence, and not what a seed is good for: a network leans on whatever it was trained with. No gate minds it.

How good is the network as it acts now? Its losses and its metric on a split, in inference mode, on the device.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esper_core.growth import (
    NUMBERS,
    WIDTH,
    Counterfactuals,
    SeedFault,
    decode_state,
    device_of,
    each_left_out,
    encode_state,
    host_parameters,
    paired,
    read_gain,
    read_health,
    restore_torch_defaults,
)
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import SeedSignals, Signals, SlotSignals
from esper_core.trainer.batches import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, nn

    from esper_core.growth import Garden, RandomStream, Seed
    from esper_core.leyline.protocols import Split, Task
    from esper_core.leyline.specs import Operations


class Reading:
    """The measurements of one environment: ``take`` writes down those of training; the others have those of evaluation.

    train_loss is the mean over the batches of the step; what is known of seeds is by their numbers. operations: what is
    told of them, where somebody asked.
    """

    def __init__(
        self,
        garden: Garden,
        scales: Scales,
        leaning: Leaning,
        device: torch.device,
        operations: Operations | None = None,
    ) -> None:
        self._garden = garden
        self._operations = operations
        self._scales = scales
        self._leaning = leaning
        self._host_parameters = sum(parameter.numel() for parameter in host_parameters(garden.model))
        self.train_loss = torch.full((), math.nan, device=device)
        self.incubation_losses: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}
        self.host_finite = True
        """Whether parameters and gradients of the host's side were, when the step was read last."""
        self.gone_wild: tuple[int, ...] = ()
        """Numbers of the seeds whose own loss, or the host's in their trial, was not finite in that step."""
        self._looked = -1

    def take(self, losses: Sequence[Tensor]) -> None:
        """Write down what training left: the loss of each batch, and what the seeds' own training was like."""
        self.train_loss = torch.stack(list(losses)).mean()
        self.incubation_losses = self._garden.take_incubation_losses()
        self.gradients = self._garden.keeper.take_gradients()

    def forget(self, number: int) -> None:
        """Let go of what was measured of a seed that is gone."""
        for known in (self.incubation_losses, self.gradients, self._scales.gains, self._leaning.dependences):
            known.pop(number, None)

    def numbers(self, evaluation: Tensor) -> Tensor:
        """All that is to be read of this step, in one tensor.

        Train loss, validation loss and metric, whether every number of the host's side is one, and the factor on the
        loss where there is one; then, seed by seed, incubation losses, gradients' numbers, gains', and dependences'.
        """
        incubation = [loss.reshape(1) for loss in self.incubation_losses.values()]
        by_seed = [
            *incubation,
            *self.gradients.values(),
            *self._scales.gains.values(),
            *self._leaning.dependences.values(),
        ]
        scale = self._scale()
        numbers = [self.train_loss.reshape(1), evaluation, self._is_host_finite(scale), *scale, *by_seed]
        return torch.cat([number.double() for number in numbers])

    def signals(self, step: int, read: Sequence[float]) -> Signals:
        """What was read, with names to it, and what is known without reading."""
        train_loss, validation_loss, validation_metric, finite, *rest = read
        scale = rest.pop(0) if self._garden.keeper.scaler is not None else None
        losses = {number: loss for number, (loss,) in _dealt(rest, self.incubation_losses, 1)}
        known = {number: read_health(numbers) for number, numbers in _dealt(rest, self.gradients, WIDTH)}
        health = {number: one for number, one in known.items() if not math.isnan(one.non_finite)}
        gains = {number: read_gain(numbers) for number, numbers in _dealt(rest, self._scales.gains, NUMBERS)}
        leant = {number: read_gain(numbers) for number, numbers in _dealt(rest, self._leaning.dependences, NUMBERS)}
        self.host_finite = finite == 1.0
        wild = [number for number, loss in losses.items() if not math.isfinite(loss)]
        if math.isfinite(validation_loss):
            wild += [n for n, gain in gains.items() if not gain.finite and n in self._garden.incubating]
        self.gone_wild = tuple(dict.fromkeys(wild))
        gates = self._garden.gates
        if step > self._looked:
            self._looked = step
            gates.look(self._garden.living_seeds(), gains)

        def seed_signals(seed: Seed) -> SeedSignals:
            return SeedSignals(
                blueprint=seed.blueprint,
                stage=seed.stage,
                alpha=seed.alpha.value,
                parameters=seed.parameter_count,
                age=None if seed.born is None else step - seed.born,
                incubation_loss=losses.get(seed.number),
                gradients=health.get(seed.number),
                gain=gains.get(seed.number),
                dependence=leant.get(seed.number),
                opinion=gates.opinion(seed),
            )

        return Signals(
            step=step,
            train_loss=train_loss,
            validation_loss=validation_loss,
            validation_metric=validation_metric,
            parameters=count_parameters(self._garden.model),
            host_parameters=self._host_parameters,
            slots=tuple(
                SlotSignals(slot.name, slot.state, len(slot.fossils), tuple(map(seed_signals, slot.nursery)))
                for slot in self._garden.slots.values()
            ),
            loss_scale=scale,
            flops=self._flops(),
            host_flops=None if self._operations is None else self._operations.host,
        )

    def state(self) -> State:
        """What was measured in training, and whether the gates were told of it. The next reading says the rest anew."""
        return encode_state(
            {
                "train_loss": self.train_loss,
                "incubation_losses": self.incubation_losses,
                "gradients": self.gradients,
                "looked": self._looked,
            }
        )

    def load(self, state: State) -> None:
        """Know what another reading knew, of a garden that has grown as this one has."""
        known = decode_state(state, self.train_loss.device)
        self.train_loss, self.incubation_losses = known["train_loss"], known["incubation_losses"]
        self.gradients, self._looked = known["gradients"], known["looked"]

    def _flops(self) -> int | None:
        """Of what is computed when the network is asked: a seed in isolation is not."""
        if self._operations is None:
            return None
        acting = (
            (name, seed.blueprint)
            for name, slot in self._garden.slots.items()
            for seed in slot.stack
            if seed.stage is Stage.FOSSILIZED or seed.alpha.value > 0.0
        )
        return self._operations.host + sum(self._operations.blocks[block] for block in acting)

    def _scale(self) -> list[Tensor]:
        """The factor on the training loss, where there is one."""
        scaler = self._garden.keeper.scaler
        return [] if scaler is None else [scaler.scale(torch.ones(1, device=self.train_loss.device))]

    def _is_host_finite(self, scale: Sequence[Tensor]) -> Tensor:
        """1.0 where every parameter and gradient of host and fossils is finite, 0.0 where one is not.

        A loss that is scaled may overflow on the way back: that step was left out, and the next has a smaller factor.
        It is none of the factor's doing any more where that is below 1.
        """
        keeper = self._garden.keeper
        own = [parameter for share in (keeper.host, *keeper.fossils.values()) for parameter in share.parameters]
        gradients = [parameter.grad for parameter in own if parameter.grad is not None]
        finite = [_values(tensor).isfinite().all() for tensor in own]
        of_gradients = [_values(tensor).isfinite().all() for tensor in gradients]
        for factor in scale:
            of_gradients = [one | (factor >= 1.0).all() for one in of_gradients]
        finite += of_gradients
        device = self.train_loss.device
        return (torch.stack(finite).all() if finite else torch.ones((), device=device)).double().reshape(1)


def _values(tensor: Tensor) -> Tensor:
    """What stands in a tensor; of a sparse one what is there."""
    return tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()


def count_parameters(model: nn.Module) -> int:
    """How many numbers ``model`` trains or holds as parameters, each once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _dealt(numbers: list[float], seeds: Iterable[int], width: int) -> Iterator[tuple[int, list[float]]]:
    """For each seed the next ``width`` of ``numbers``, which are taken off."""
    for seed in list(seeds):
        yield seed, numbers[:width]
        del numbers[:width]


class Scales:
    """What living seeds gained in the last step: ``gains`` holds what ``growth.paired`` tells, by the seeds' numbers.

    stream: of the random numbers that a trial draws, so that it takes none from the host's evaluation.
    """

    def __init__(self, garden: Garden, stream: RandomStream) -> None:
        self._garden = garden
        self._stream = stream
        self._lead: Tensor | None = None
        self._fossils: tuple[Seed, ...] = ()
        self.gains: dict[int, Tensor] = {}

    def weigh(self, evaluate: Callable[[], Measured], losses: Tensor, undisturbed: Tensor | None) -> None:
        """Weigh every living seed.

        evaluate: the network as it acts, on the validation split. losses: what it gave without any trial, one for each
        example; ``undisturbed`` those of the twin, None where there is none.
        """
        self.gains = {}
        acting = self._garden.blended
        for number in self._garden.incubating:
            if number not in acting:
                self.gains[number] = paired(losses, self._tried(number, evaluate))
        if undisturbed is None:
            return
        fossils = tuple(seed for slot in self._garden.slots.values() for seed in slot.fossils)
        if not any(slot.strength > 0.0 for slot in self._garden.slots.values()):
            self._lead, self._fossils = undisturbed - losses, fossils
        elif len(acting) != 1 or fossils != self._fossils:
            self._lead = None
        elif self._lead is not None:
            self.gains[acting[0]] = paired(undisturbed - self._lead, losses)

    def forget_lead(self) -> None:
        """The twin is not what it was: what a seed gains that acts now is unknown until none does."""
        self._lead = None

    def state(self) -> State:
        """The gains, what the twin was behind when no seed acted, with which fossils, and the random numbers."""
        return encode_state(
            {
                "gains": self.gains,
                "lead": self._lead,
                "fossils": [seed.number for seed in self._fossils],
                "stream": self._stream.state_dict(),
            }
        )

    def load(self, state: State) -> None:
        """Know what other scales knew, of a garden that has grown as this one has."""
        known = decode_state(state, device_of(self._garden.model))
        fossils = {seed.number: seed for slot in self._garden.slots.values() for seed in slot.fossils}
        self.gains, self._lead = known["gains"], known["lead"]
        self._fossils = tuple(fossils[number] for number in known["fossils"])
        self._stream.load_state_dict(known["stream"])

    def _tried(self, number: int, evaluate: Callable[[], Measured]) -> Tensor:
        """The losses with one incubating seed, who answers for what it does to torch on the way."""
        with self._garden.trial(number), self._stream:
            tried = evaluate().losses
        if done := restore_torch_defaults():
            slot, _ = self._garden.home_of(number)
            raise SeedFault([slot.name], done, number=number)
        return tried


@dataclass(frozen=True, slots=True)
class Measured:
    """What a network does on a split: the loss of each example in nats, and the metric of them all."""

    losses: Tensor
    metric: Tensor

    def means(self) -> Tensor:
        """(mean loss, metric)."""
        return torch.stack([self.losses.mean(), self.metric])


def as_written(model: nn.Module, inputs: Tensor) -> Tensor:
    """What the model puts out."""
    outputs: Tensor = model(inputs)
    return outputs


def evaluate(
    model: nn.Module, task: Task, split: Split, run: Callable[[nn.Module, Tensor], Tensor] = as_written
) -> Measured:
    """What ``model`` does on the whole ``split``. The model is left in training mode. run: how a pass is computed."""
    model.eval()
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    with torch.inference_mode():
        for inputs, targets in chunks(split, device_of(model)):
            outputs = run(model, inputs)
            losses.append(task.losses(outputs, targets))
            scores.append(task.scores(outputs, targets))
        own, metric = torch.cat(losses), torch.cat(scores).mean()
        if task.metric.exponential:
            metric = metric.exp()
    model.train()
    return Measured(own.clone(), metric.to(own.dtype).clone())


log = logging.getLogger("esper")


class Leaning:
    """What was found in the last step: ``dependences`` holds what ``growth.paired`` tells, by the seeds' numbers.

    seed: of the random numbers that the network may draw, the same with and without a seed. quiet: it draws none.
    run: how a pass is computed.
    """

    def __init__(
        self,
        garden: Garden,
        seed: int,
        *,
        quiet: bool = False,
        run: Callable[[nn.Module, Tensor], Tensor] = as_written,
    ) -> None:
        self._garden = garden
        self._counterfactuals = Counterfactuals(garden.model, seed=seed, quiet=quiet, run=run)
        self.dependences: dict[int, Tensor] = {}

    def measure(self, task: Task, split: Split) -> None:
        """Measure each acting seed on ``split``. The model is left in training mode."""
        self.dependences = {}
        acting = self._counterfactuals.acting()
        if not acting:
            return
        model, known = self._garden.model, self._counterfactuals.reason
        model.eval()
        try:
            batches = chunks(split, device_of(model))
            measured = self._counterfactuals.measure(each_left_out(acting), batches, task.losses)
        finally:
            model.train()
        if measured.separate not in (None, known):
            log.info("each configuration of %s takes a pass of its own: %s", type(model).__name__, measured.separate)
        for name in acting:
            seed = self._garden.slots[name].living
            assert seed is not None
            self.dependences[seed.number] = paired(measured.rows[acting - {name}], measured.rows[acting])

    def state(self) -> State:
        """What was found, and what is known of the way to find it."""
        return State.of({"found": encode_state(self.dependences), "way": self._counterfactuals.state_dict()})

    def load(self, state: State) -> None:
        """Know what another one knew, of a garden that has grown as this one has."""
        self.dependences = decode_state(state.part("found"), device_of(self._garden.model))
        self._counterfactuals.load_state_dict(state.part("way"))
