"""Measurements of one network in one decision step: losses, metric, and gains of seeds.

Everything measured stays on the device until it is read once a step, as a single tensor: ``StepMeasurements.numbers``
builds it, ``read`` gives the numbers their names again, and ``signals`` makes the step's ``Signals`` of them.

A seed that incubates, or is on a branch, is compared with the host itself. Once it acts on the host there is no host
without it any more. Then it is compared with the twin at the same step, corrected by the lead that the twin had when
the seed began to act. Where two seeds act at once, or another one was fossilised since, the gain cannot be attributed:
it is unknown until there is a step in which no seed acts.

Operations are the floating-point operations that one network has cost, discarded work included. Forward passes of host
and blocks are counted once, before the run. Training on a batch costs three times as much: the forward pass, the
gradients of activations, and those of parameters. In the shadow the host's parameters get none, so there it costs twice
as much. That counts the first layer's gradient of the inputs, which no pass computes.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from esper_core.growth import decode_state, device_of, encode_state, host_parameters, paired, read_gain
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import GradientHealth, SeedSignals, Signals, SlotSignals
from esper_core.plugins.returned_values import AttributedTask
from esper_core.trainer.batches import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from esper_core.growth import Averages, Garden, RandomStream, Seed
    from esper_core.growth.slots import Slot
    from esper_core.leyline import Gain, Operations, Split, Task
    from esper_core.leyline.protocols import State

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of a network on a split: the loss of each example in nats, and the metric over all of them.

    ``evidence`` has one number for each example, by which networks are compared; a lower one is better.
    """

    losses: Tensor
    metric: Tensor
    evidence: Tensor
    means: Tensor = field(init=False)
    """(mean loss, metric)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "means", torch.stack([self.losses.mean(), self.metric]))


def evaluate(
    model: nn.Module,
    task: Task,
    split: Split,
    run: Callable[[nn.Module, Tensor], Tensor] = nn.Module.__call__,
    *,
    evidence: Literal["auto", "loss", "metric"] = "loss",
    device: torch.device | None = None,
) -> Evaluation:
    """Evaluate ``model`` on the whole split in inference mode, and leave it in training mode.

    ``evidence`` is ``growth.evidence``: whether networks are compared by their losses or by the task's scores.
    ``device`` is that of the model; None: it is looked up.
    """
    model.eval()
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    with torch.inference_mode():
        for inputs, targets in chunks(split, device or device_of(model)):
            outputs = run(model, inputs)
            losses.append(task.losses(outputs, targets))
            scores.append(task.scores(outputs, targets))
        loss_rows, score_rows = torch.cat(losses), torch.cat(scores)
    model.train()
    return evaluation_of(task, loss_rows, score_rows, evidence)


def evaluation_of(
    task: Task, losses: Tensor, scores: Tensor, evidence: Literal["auto", "loss", "metric"]
) -> Evaluation:
    """Return the evaluation of a whole split from losses and scores, as they come from inference mode."""
    with torch.inference_mode():
        if isinstance(task, AttributedTask):
            task.require_sound(scores, losses)
        metric = scores.mean()
        if task.metric.exponential:
            metric = metric.exp()
    worse = -scores if task.metric.direction == "up" else scores
    return Evaluation(losses, metric.to(losses.dtype), worse if evidence == "metric" else losses)


class SeedGains:
    """Gains of the living seeds in the latest step, as tensors of ``growth.paired``, by the seeds' numbers.

    Trials draw from ``stream``, so that they take no random numbers from the host's evaluation.
    """

    def __init__(self, garden: Garden, averages: Averages, stream: RandomStream) -> None:
        self._garden = garden
        self._averages = averages
        self._stream = stream
        self._lead: Tensor | None = None
        self._fossils: list[int] = []
        self._differences: dict[int, Tensor] = {}
        self.gains: dict[int, Tensor] = {}
        self.margins: dict[int, Tensor] = {}
        """By how much each seed is better than the best of the others that incubate, on the same examples."""
        self.trials: dict[int, Tensor] = {}
        """The evidence of the present step with each seed that was evaluated in a group already, by their numbers."""

    def measure(self, evaluate: Callable[[], Tensor], evidence: Tensor, undisturbed: Tensor | None) -> None:
        """Measure the gain of every living seed.

        Args:
            evaluate: Returns the evidence of the network as it acts then on the validation split.
            evidence: The evidence that ``evaluate`` gave without any trial, one number for each example.
            undisturbed: The twin's evidence; None where there is no twin.
        """
        self.gains = {}
        before, self._differences = self._differences, {}

        def measure_gain(number: int, host: Tensor, trial: Tensor) -> None:
            self.gains[number] = paired(host, trial, before.get(number))
            self._differences[number] = host - trial

        trials: dict[int, Tensor] = {}
        for number in self._garden.incubating:
            if (trial := self.trials.get(number)) is None:
                with self._averages.judged(number), self._stream:
                    trial = evaluate()
            trials[number] = trial
            measure_gain(number, evidence, trial)
        self.margins, self.trials = _margins(trials), {}
        if undisturbed is None:
            return
        acting, slots = self._garden.blended, self._garden.slots.values()
        fossils = [seed.number for _, seed in self._garden.all_seeds() if seed.stage is Stage.FOSSILISED]
        # By strength, not by stage: a seed that is blended in on its branch leaves the host as it is.
        if not any(slot.strength > 0.0 for slot in slots):
            self._lead, self._fossils = undisturbed - evidence, fossils
        elif len(acting) != 1 or fossils != self._fossils:
            self._lead = None
        elif self._lead is not None:
            measure_gain(acting[0], undisturbed - self._lead, evidence)

    def take_left_out(self, losses: Mapping[int | None, Tensor]) -> None:
        """Take the gains of a set's seeds from the losses without each of them, and with all of them under None."""
        self.gains |= {number: paired(rows, losses[None]) for number, rows in losses.items() if number is not None}

    def forget_examples(self) -> None:
        """Forget the gains of single examples, because the next ones are others, or come in another order."""
        self._differences = {}

    def forget_lead(self) -> None:
        """Forget the twin's lead, because the twin was rolled back: acting seeds have no known gain until none acts."""
        self._lead = None

    def state_dict(self) -> State:
        """Return gains, differences, the twin's lead with the fossils at its measurement, and the random stream."""
        return encode_state(
            {
                "gains": self.gains,
                "differences": self._differences,
                "margins": self.margins,
                "lead": self._lead,
                "fossils": self._fossils,
                "stream": self._stream.state_dict(),
            }
        )

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, for a garden with the same seeds."""
        saved = decode_state(state, device_of(self._garden.model))
        self.gains, self.margins = saved["gains"], saved["margins"]
        self._differences = saved["differences"]
        self._lead, self._fossils = saved["lead"], saved["fossils"]
        self._stream.load_state_dict(saved["stream"])


def _margins(trials: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return by how much each trial is better than the best other; nothing if there is no other."""
    if len(trials) < 2:
        return {}
    evidence_TN = torch.stack(list(trials.values()))
    means_TT = evidence_TN.mean(1).repeat(len(trials), 1).fill_diagonal_(math.inf)
    best_T = means_TT.nan_to_num(nan=math.inf).argmin(1)  # chosen on the device, so that nothing waits for it
    rivals_TN = evidence_TN.index_select(0, best_T)
    return {number: paired(rivals_TN[row], evidence_TN[row]) for row, number in enumerate(trials)}


@dataclass(frozen=True, slots=True)
class Measurements:
    """The numbers of one step on the host (the CPU), by name; those of seeds by the seeds' numbers.

    Attributes:
        host_finite: Whether parameters and gradients of host and fossils are finite.
        gains: Gains over the undisturbed host.
        margins: Those over the best other seed that incubates.
        non_finite_seeds: Incubating seeds whose own loss, or the network's in their trial, is not finite.
    """

    train_loss: float
    validation_loss: float
    validation_metric: float
    host_finite: bool
    loss_scale: float | None
    incubation_losses: Mapping[int, float]
    gradients: Mapping[int, GradientHealth]
    gains: Mapping[int, Gain]
    margins: Mapping[int, Gain]
    non_finite_seeds: tuple[int, ...]


class StepMeasurements:
    """Collects what is measured in a step on the device, and reads it at once."""

    def __init__(self, garden: Garden, gains: SeedGains, operations: Operations | None) -> None:
        self._garden = garden
        self._operations = operations
        self._gains = gains
        self._host_parameters = sum(parameter.numel() for parameter in host_parameters(garden.model))
        self.train_loss = torch.full((), math.nan, device=device_of(garden.model))
        self.incubation_losses: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}

    def record_training(self, losses: Sequence[Tensor]) -> None:
        """Record the loss of each batch of the step, and losses and gradients of the seeds that trained in it."""
        self.train_loss = torch.stack(list(losses)).mean()
        self.incubation_losses = self._garden.take_incubation_losses()
        self.gradients = self._garden.keeper.take_gradients()

    def forget(self, number: int) -> None:
        """Drop what was measured of a seed that is gone."""
        for measured in self._by_seed():
            measured.pop(number, None)

    def _by_seed(self) -> tuple[dict[int, Tensor], ...]:
        return self.incubation_losses, self.gradients, self._gains.gains, self._gains.margins

    def numbers(self, evaluation: Tensor) -> Tensor:
        """Return all measurements of this step, with ``evaluation``, as one tensor, which ``read`` takes apart."""
        scaler = self._garden.keeper.scaler
        # By a product on the device, because ``get_scale`` would wait for it.
        scale = [] if scaler is None else [scaler.scale(torch.ones(1, device=self.train_loss.device))]
        by_seed = [tensor for measured in self._by_seed() for tensor in measured.values()]
        numbers = [self.train_loss, evaluation, self._is_host_finite(scale), *scale, *by_seed]
        # In float64, as gains are computed; float32 would round them, and large numbers of examples.
        return torch.cat([number.double().reshape(-1) for number in numbers])

    def read(self, numbers: Sequence[float]) -> Measurements:
        """Name the numbers of the tensor that ``numbers`` returned, after it was copied to the host."""
        remaining = iter(numbers)
        train_loss, validation_loss, validation_metric, finite = islice(remaining, 4)
        scale = None if self._garden.keeper.scaler is None else next(remaining)
        losses_of, gradients_of, gains_of, margins_of = (
            {number: list(islice(remaining, tensor.numel())) for number, tensor in measured.items()}
            for measured in self._by_seed()
        )
        losses = {number: loss for number, (loss,) in losses_of.items()}
        gains = {number: read_gain(values) for number, values in gains_of.items()}
        non_finite = [number for number, loss in losses.items() if not math.isfinite(loss)]
        # In a host that is broken itself every trial is, so no seed is to blame.
        if math.isfinite(validation_loss):
            incubations = self._garden.incubating.items()
            # By the mean alone: of a single example there is no deviation.
            sick = [incubation for n, incubation in incubations if n in gains and not math.isfinite(gains[n].mean)]
            non_finite += [seed.number for incubation in sick for _, seed in incubation.members]
        return Measurements(
            train_loss=train_loss,
            validation_loss=validation_loss,
            validation_metric=validation_metric,
            host_finite=finite == 1.0,
            loss_scale=scale,
            incubation_losses=losses,
            # NaN: the scaled loss overflowed in every batch, and nothing is known of the gradients.
            gradients={n: GradientHealth(*values) for n, values in gradients_of.items() if not math.isnan(values[-1])},
            gains=gains,
            margins={number: read_gain(values) for number, values in margins_of.items()},
            non_finite_seeds=tuple(dict.fromkeys(non_finite)),
        )

    def signals(self, step: int, measured: Measurements, prices: Mapping[int, float]) -> Signals:
        """Return the signals of a step: what was measured, what seeds cost, and what is known without measuring."""

        def signals_of(seed: Seed) -> SeedSignals:
            return SeedSignals(
                blueprint=seed.blueprint,
                stage=seed.stage,
                alpha=seed.alpha.value,
                parameters=seed.parameter_count,
                age=None if seed.born is None else step - seed.born,
                incubation_loss=measured.incubation_losses.get(seed.number),
                gradients=measured.gradients.get(seed.number),
                gain=measured.gains.get(seed.number),
                opinion=self._garden.gates.opinion(seed),
                price=prices.get(seed.number),
                margin=measured.margins.get(seed.number),
            )

        seeds = self._garden.all_seeds()
        return Signals(
            step=step,
            train_loss=measured.train_loss,
            validation_loss=measured.validation_loss,
            validation_metric=measured.validation_metric,
            parameters=self._host_parameters + sum(seed.parameter_count for _, seed in seeds),
            host_parameters=self._host_parameters,
            slots=tuple(
                SlotSignals(slot.name, slot.state, len(slot.seeds) - len(living), tuple(map(signals_of, living)))
                for slot in self._garden.slots.values()
                for living in (slot.nursery,)
            ),
            loss_scale=measured.loss_scale,
            flops=self._flops(seeds),
            host_flops=None if self._operations is None else self._operations.host,
        )

    def state_dict(self) -> State:
        """Return what was measured in training; the rest is measured again in the next step."""
        by_seed = {"incubation_losses": self.incubation_losses, "gradients": self.gradients}
        return encode_state({"train_loss": self.train_loss, **by_seed})

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, for a garden with the same seeds."""
        saved = decode_state(state, self.train_loss.device)
        self.train_loss, self.gradients = saved["train_loss"], saved["gradients"]
        self.incubation_losses = saved["incubation_losses"]

    def _flops(self, seeds: Iterable[tuple[Slot, Seed]]) -> int | None:
        """Return the operations of one inference; a seed in isolation takes no part in it."""
        if self._operations is None:
            return None
        acting = (
            (slot.name, seed.blueprint)
            for slot, seed in seeds
            if seed.stage is Stage.FOSSILISED or seed.alpha.value > 0.0
        )
        return self._operations.host + sum(self._operations.blocks[block] for block in acting)

    def _is_host_finite(self, scale: Sequence[Tensor]) -> Tensor:
        """Return whether every parameter and gradient of host and fossils is finite.

        A scaled loss may overflow in backward: the optimizer leaves that step out, and the factor is halved. Gradients
        that are not finite count only once the factor is below 1, since then it cannot be the cause.
        """
        keeper = self._garden.keeper
        device = self.train_loss.device
        parameters = are_finite(
            [parameter for owner in keeper.owned_by_host() for parameter in owner.parameters], device
        )
        gradients = are_finite(keeper.host_gradients(), device)
        for factor in scale:
            gradients = gradients | (factor[0] >= 1.0)
        return parameters & gradients


def are_finite(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return whether all values of all tensors are finite; of a sparse one, those that are stored.

    Their largest magnitude is taken, in one kernel for many tensors where the device has one.
    """
    values = (
        tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in (tensor.detach() for tensor in tensors)
    )
    non_empty = [tensor for tensor in values if tensor.numel()]
    return (
        get_total_norm(non_empty, math.inf).isfinite() if non_empty else torch.ones((), dtype=torch.bool, device=device)
    )


THROUGH: Final = 2
"""Forward, and backward to what came in."""
TRAINING: Final = 3


class OperationCount:
    """Counts the operations of one episode.

    Args:
        operations: Those of a forward pass for one example; None: torch cannot count them, and nothing is added.
    """

    def __init__(self, operations: Operations | None) -> None:
        self._host, self._blocks = (0, Counter()) if operations is None else (operations.host, operations.blocks)
        self.total = 0

    def train(self, garden: Garden, examples: int) -> None:
        """Add the operations of training host, acting seeds and each incubating seed on so many examples."""
        acting = self._acting(garden)
        self.total += examples * TRAINING * acting
        for incubation in garden.incubating.values():
            host = TRAINING if incubation.lasting else THROUGH
            self.total += examples * (host * acting + TRAINING * self._sum(incubation.members))

    def evaluate(self, garden: Garden, examples: int) -> None:
        """Add the operations of an evaluation of the network as it acts now."""
        self.total += examples * self._acting(garden)

    def measure_seeds(self, garden: Garden, examples: int) -> None:
        """Add the operations of the evaluations that try each incubating seed."""
        for incubation in garden.incubating.values():
            self.total += examples * (self._acting(garden) + self._sum(incubation.members))

    def _acting(self, garden: Garden) -> int:
        """Return the operations of host, fossils and acting seeds."""
        if not self._blocks:
            return self._host
        blended, seeds = garden.blended, garden.all_seeds()
        acting = [place for place in seeds if place[1].stage is Stage.FOSSILISED or place[1].number in blended]
        return self._host + self._sum(acting)

    def _sum(self, seeds: Iterable[tuple[Slot, Seed]]) -> int:
        return sum(self._blocks[slot.name, seed.blueprint] for slot, seed in seeds)
