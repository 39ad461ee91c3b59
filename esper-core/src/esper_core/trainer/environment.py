"""An environment: one training of one host from scratch, on the data of a task.

Its seed, its recipe and the actions that are carried out in it define every number of it. It drives a
``GrowingNetwork`` with batches and evaluations; everything stays on the device until the pool reads it, once a step.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from esper_core.growth import (
    Draws,
    FaultBook,
    Host,
    OptimizerKeeper,
    OptimizerSettings,
    RandomStream,
    derive_seed,
    draws_of,
    draws_of_variety,
    graft,
    host_parameters,
    implant,
    slots_of,
    state_mismatch,
)
from esper_core.leyline.constants import PROBE_EXAMPLES
from esper_core.leyline.protocols import State
from esper_core.plugins.isolation import attempt
from esper_core.plugins.process_state import Guard, Memory, Scope
from esper_core.settings import ComputeConfig
from esper_core.trainer.batches import IMAGES, BatchOrder, feed_for, sent
from esper_core.trainer.forward import CompiledHost, ForwardPass, Notices, channels_last, lay_out, torch_compiler
from esper_core.trainer.growing_network import GrowingNetwork
from esper_core.trainer.measurements import Evaluation, OperationCount, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.growth import Garden, Growth, Transition
    from esper_core.leyline import ActionMask, Signals, SlotPlace, Split, SplitName, Task
    from esper_core.trainer.forward import Warn
    from esper_core.trainer.growing_network import NetworkSettings


@dataclass(frozen=True, slots=True)
class Reports:
    """How messages name host and task, and what was reported of them.

    Attributes:
        host: Names the host.
        label: Names host and task, where it is not known which of them it was.
        memory: What is remembered of what they changed of the process's state.
        warn: Warns of a host that cannot be compiled.
    """

    host: str = "the host"
    label: str = "the host"
    memory: Memory = field(default_factory=dict)
    warn: Warn = field(default_factory=lambda: Notices().warn)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all environments of a run have in common.

    Attributes:
        data: The splits, on the device or, if streamed, on the host (the CPU).
        build_host: Builds a host from torch's default generator.
        network: What may grow in each host, by which rules, and the length of episodes.
    """

    task: Task
    data: Mapping[SplitName, Split]
    build_host: Callable[[], nn.Module]
    slots: Mapping[str, SlotPlace]
    network: NetworkSettings
    batch_size: int
    device: torch.device
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    reports: Reports = field(default_factory=Reports)

    def guard(self) -> Guard:
        """Return a guard around calls into the code of host and task."""
        return Guard(self.reports.label, Scope.PROCESS)

    def on(self, device: torch.device) -> Recipe:
        """Return the recipe for another device, with the data on it unless they are streamed."""
        data = self.data
        if self.compute.data == "resident" and device != self.device:
            data = {
                name: type(split)(split.inputs.to(device), split.targets.to(device)) for name, split in data.items()
            }
        return replace(self, device=device, data=data)

    def laid_out(self, host: nn.Module) -> Recipe:
        """Return the recipe with channels-last hosts and images, where ``compute.layout`` allows it and it works.

        ``host`` is a host of this recipe, grafted. Its own weights are laid out as those of the recipe returned.
        """
        train, layout = self.data["train"], torch.channels_last
        if self.compute.layout == "plain" or train.inputs.dim() != IMAGES:
            return self
        lay_out(host, layout)
        images = replace(train, inputs=train.inputs[:PROBE_EXAMPLES], targets=train.targets[:PROBE_EXAMPLES])
        dry_run = replace(self, data={"train": channels_last(images)})
        # Whatever it raises is no fault: code that calls ``view`` works in the plain layout, and trains there.
        if attempt(lambda: dry_run.find_draws(host, layout)).error is not None:
            lay_out(host, torch.contiguous_format)
            return self
        streamed = self.compute.data == "streamed"  # they may lie in a file, and stay as they are
        data = self.data if streamed else {name: channels_last(split) for name, split in self.data.items()}
        return replace(self, build_host=lambda: lay_out(self.build_host(), layout), data=data)

    def find_draws(self, host: nn.Module, images: torch.memory_format = torch.contiguous_format) -> Draws:
        """Run a grafted host of this recipe, and every blueprint on ``images`` of this layout, on a few examples.

        Returns:
            In which passes any of them draws random numbers.
        """
        train, device = self.data["train"], self.device
        inputs, targets = (sent(tensor[:PROBE_EXAMPLES], device) for tensor in (train.inputs, train.targets))
        forward = ForwardPass(ComputeConfig(), self.task, device, self.reports.host)
        (loss,) = forward.losses(inputs, targets)
        draws = [draws_of(host, loss)]
        with Host(host).evaluating(), torch.no_grad():
            self.task.scores(forward.outputs(host, inputs), targets)  # they may be of a wrong form, too
        for slot in slots_of(host):
            for variety in self.network.varieties.get(slot.name, ()):
                assert slot.site is not None
                outcome = attempt(partial(draws_of_variety, variety, slot.site, device, images))
                if outcome.error is not None and images is not torch.contiguous_format:
                    raise outcome.error  # the block works in the plain layout alone
                # A block that fails here will fail where its seed is born, and is a lost seed there.
                draws.append(Draws.ANYWHERE if outcome.value is None else outcome.value)
        return max(draws)


class Environment:
    """One host in training, with its seeds. Its attributes are those of ``AnyEnvironment``.

    Environments of one index share their seeds. ``implants`` gives, for an episode's seed, what the host has grown
    from the start, as if it had been fossilised there.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        arm: str,
        index: int,
        pool_index: int = 0,
        faults: FaultBook | None = None,
        implants: Callable[[int], Sequence[Growth]] | None = None,
    ) -> None:
        self.recipe, self.arm, self.index, self.pool_index = recipe, arm, index, pool_index
        self.round = self.seed = self.steps = 0
        self.over = False
        self.signals: Signals | None = None
        self._implants = implants
        self._faults = faults or FaultBook()
        self.forward = ForwardPass(recipe.compute, recipe.task, recipe.device, recipe.reports.host)
        self._operations = OperationCount(recipe.network.operations)
        self.feed = feed_for(recipe.compute.data, recipe.data["train"], recipe.device)

    @property
    def model(self) -> nn.Module:
        """The host with what grew in it."""
        return self.network.model

    @property
    def flops(self) -> int | None:
        """Operations of the episode so far, those of discarded seeds included; None: unknown."""
        return None if self.recipe.network.operations is None else self._operations.total

    @property
    def garden(self) -> Garden:
        """The network's seeds."""
        return self.network.garden

    @property
    def keeper(self) -> OptimizerKeeper:
        """The network's optimizers."""
        return self.network.keeper

    def guard(self, scope: Scope = Scope.PROCESS) -> Guard:
        """Return a guard around calls into the code of host, task and seeds."""
        return Guard(" or ".join(dict.fromkeys(self.components())), scope, memory=self.recipe.reports.memory)

    def components(self) -> list[str]:
        """Return the names in messages of everything that computes here."""
        seeds = self.garden.all_seeds() if hasattr(self, "network") else []
        return [self.recipe.reports.label, *(seed.title for _, seed in seeds)]

    def reset(self, round_: int, seed: int, *, bare: bool = False) -> None:
        """Begin an episode with a new host from ``seed``; ``bare`` leaves out implants, for a state to be loaded."""
        recipe, self.round, self.seed = self.recipe, round_, seed
        train, network, schedule = recipe.data["train"], recipe.network, recipe.network.schedules.get
        with RandomStream(derive_seed(seed, "host"), recipe.device):
            model = recipe.build_host().to(recipe.device)
        # Two examples, because BatchNorm refuses a single vector in training.
        graft(model, recipe.slots, example=sent(train.inputs[:2], recipe.device))
        # Before the garden is made, which adopts the fossils that it finds.
        if self._implants is not None and not bare:
            implant(model, self._implants(seed), network.varieties, seed=seed, probe=self._probe_loss)
        keeper = OptimizerKeeper(
            host_parameters(model),
            host_settings=OptimizerSettings.of(network.optimizers.host, schedule("host")),
            seed_settings=OptimizerSettings.of(network.optimizers.seed, schedule("seed")),
            steps=network.steps,
            scaler=self.forward.new_scaler(),
        )
        compile_host = partial(CompiledHost, warn=recipe.reports.warn, compiler=torch_compiler)
        self.network = GrowingNetwork(
            model,
            keeper,
            network,
            seed=seed,
            probe=self._probe_loss,
            faults=self._faults,
            compile_host=compile_host if recipe.compute.compile else None,
        )
        self.order = BatchOrder(len(train), recipe.batch_size, derive_seed(seed, "order"), train.inputs.device)
        self._operations.total = 0
        self.steps = 0
        self.over = False

    def _probe_loss(self, model: nn.Module) -> Tensor:
        """Return the mean loss on some training data, which a block that is born informed looks at."""
        data, device = self.recipe.data["train"], self.recipe.device
        # On the CPU, so that every device takes the same examples.
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "probe"))
        indices = torch.randperm(len(data), generator=generator)[:PROBE_EXAMPLES].to(data.inputs.device)
        inputs, targets = sent(data.inputs[indices], device), sent(data.targets[indices], device)
        return self.recipe.task.losses(model(inputs), targets).mean()

    def train(self) -> list[Transition]:
        """Train for one decision step, and return the seeds' changes of stage."""
        transitions, batches = self.open_step(), self.recipe.network.batches
        losses = [self.network.train_batch(self.forward.losses(*self.feed.next(self.order))) for _ in range(batches)]
        return transitions + self.close_step(losses)

    def open_step(self) -> list[Transition]:
        """Begin a decision step, and return the seeds' changes of stage."""
        transitions = self.network.open_step()
        # A trial in which a seed failed leaves the model in evaluation mode.
        self.model.train()
        return transitions

    def close_step(self, losses: Sequence[Tensor]) -> list[Transition]:
        """End the training of a step, given the loss of each batch, and return the seeds' changes of stage."""
        self.steps += 1
        self._operations.train(self.garden, len(losses) * self.recipe.batch_size)
        return self.network.close_step(losses)

    def evaluate(self, split: SplitName) -> Tensor:
        """Evaluate the network as it acts now, and return mean loss and metric, on the device."""
        # It is judged by its averaged weights, and tested with those that it would be saved with.
        evaluation = self.network.evaluate(self._evaluation(split), averaged=split == "validation")
        return self.take_evaluation(split, evaluation)

    def take_evaluation(self, split: SplitName, evaluation: Evaluation) -> Tensor:
        """Take the evaluation of the network as it acts now, and return mean loss and metric, on the device."""
        self._operations.evaluate(self.garden, len(evaluation.losses))
        if split == "validation":
            self.network.evaluation = evaluation
        return evaluation.means

    def _evaluation(self, split: SplitName) -> Callable[[], Evaluation]:
        """Return what evaluates the network as it acts when it is called."""
        recipe, run = self.recipe, self.forward.outputs
        evidence, device = recipe.network.growth.evidence, recipe.device
        return partial(evaluate, self.model, recipe.task, recipe.data[split], run, evidence=evidence, device=device)

    def measure_seeds(self, undisturbed: Tensor | None) -> None:
        """Measure the gains of living seeds, after every environment was evaluated for validation."""
        network, evaluation = self.network, self._evaluation("validation")
        network.measure_gains(lambda: evaluation().evidence, undisturbed)
        self._operations.measure_seeds(network.garden, len(network.evaluation.losses))

    def measure_again(self, step: int, evaluate: Callable[[], object] | None = None) -> Signals:
        """Return the signals of a network that was changed after its step was read. The training loss stays.

        ``evaluate`` does what ``evaluate("validation")`` does, in another way.
        """
        # The pool guards the other evaluations; this one is called apart from them.
        with self.guard():
            (evaluate or partial(self.evaluate, "validation"))()
        self.signals = self.network.signals(step, self.network.numbers().tolist())
        return self.signals

    def mask(self) -> ActionMask:
        """Return what can be done now: nothing once the episode is over."""
        return self.garden.mask().shut() if self.over else self.network.mask()

    def state_dict(self) -> State:
        """Return the state between two steps. Faults of blueprints belong to the pool, and data to the task."""
        position = {name: getattr(self, name) for name in ("round", "seed", "steps", "over")}
        state = State.of({"order": self.order.state_dict()}, **position, flops=self.flops)
        network = self.network.state_dict()
        return State({**state.plain, **network.plain}, {**state.tensors, **network.tensors})

    def load_state_dict(self, state: State) -> None:
        """Restore, bit for bit, the state of an environment of an equal recipe.

        Raises:
            GrowthError: The state does not fit. The environment must be reset, or given another state.
        """
        try:
            round_, seed, steps = (operator.index(state.plain[name]) for name in ("round", "seed", "steps"))
            self.reset(round_, seed, bare=True)
            self.network.load_state_dict(state)
            self.order.load_state_dict(state.part("order"))
            self.steps, self.over = steps, cast("bool", state.plain["over"])
            self._operations.total = state.plain["flops"] or 0
        # A file may hold anything; a damaged state, and one of another recipe, are one error to whoever loads it.
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"it cannot be read: {type(error).__name__}: {error}"
            raise state_mismatch(why) from error

    def close(self) -> None:
        """Release everything, and the thread that gathers batches. The environment cannot be used any more."""
        self.feed.close()
        vars(self).clear()  # parts of it refer to each other
