"""Programs: outputs, losses and gradients of several networks in one pass.

A ``Program`` is made once for a structure. It has a copy of the host, the stand-in, whose parameters and buffers are
only places: in a pass it has the tensors of several networks there, stacked. ``Training`` keeps them so from batch to
batch, and calls the code of the host in the first one alone.

Behind each slot a pass parts into runs of networks with guests of one kind, and comes together again.

Equal classes and shapes do not mean equal functions, so ``why_different`` compares values before one is trusted.
"""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from esper_core.fused.blocks import Block, TrainingState, Updates
from esper_core.fused.networks import Guest, HostTensors, host_modules, signature_of, surroundings_of
from esper_core.fused.rows import NotFusedError, Rows, refuse, stack_of
from esper_core.fused.tapes import GRAPHS, CapturedPass, Tape
from esper_core.growth import MOMENTS, AdamSettings, Alpha, KeptBuffers, Presence, Slot, begun_state, describe_error
from esper_core.leyline import Stage
from esper_core.plugins.process_state import Guard, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    Losses = Callable[[Tensor, Tensor], Tensor]
    """Computes one number for each example, from outputs and targets."""

log = logging.getLogger("esper")

EAGER: Final = 2
"""Passes before one is captured on a GPU: the first is recorded, and the second chooses kernels."""

TOLERANCE: Final = 1e-3
"""Largest difference, as a share of the largest number. Another order of sums gives about 1e-6; another function, 1."""

TRIAL_ADAM: Final = AdamSettings(adamw, learning_rate=30.0, betas=(0.9, 0.999), weight_decay=0.0, epsilon=1e-8)
"""Takes about the gradients as its first step where second moments are 1. Where they are 0, Adam takes their signs,
which differ with the last digits of a gradient near 0."""


def bare_copy(model: nn.Module, tensors: dict[int, Any] | None = None, keep: nn.Module | None = None) -> nn.Module:
    """Return a copy of a network without its living seeds, but with ``keep``.

    ``tensors`` replaces tensors, by their identities.
    """
    slots = [slot for slot in model.modules() if isinstance(slot, Slot)]
    living = {id(seed): None for slot in slots for seed in slot.nursery if seed is not keep}
    copy = deepcopy(model, {**(tensors or {}), **living})
    for slot in (slot for slot in copy.modules() if isinstance(slot, Slot)):
        kept = [seed for seed in slot.seeds if seed is not None]
        del slot.seeds[:]
        slot.seeds.extend(kept)
    return copy


class StandIn:
    """A copy of a module, in which the tensors of several take the places of its own."""

    def __init__(self, module: nn.Module) -> None:
        tensors = HostTensors.of(module)
        numbers = {id(tensor): number for number, tensor in enumerate(tensors.every())}
        self.module = bare_copy(module, dict.fromkeys(numbers))
        self._filled = range(len(numbers) - len(tensors.buffers), len(numbers))
        self._places: list[tuple[dict[str, Any], str, int]] = []
        for path, part in host_modules(module):
            copy = self.module.get_submodule(path)
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                delattr(copy, name)
                # An ordinary attribute, since torch would refuse tensors that are no parameters.
                self._places.append((vars(copy), name, numbers[id(tensor)]))

    def fill(self, stacks: Sequence[Tensor], *, training: bool) -> None:
        """Put stacked tensors into their places, for a pass in this mode."""
        rows = [Rows.of(stack) for stack in stacks]
        for attributes, name, number in self._places:
            attributes[name] = rows[number]
        if self.module.training is not training:
            self.module.train(training)

    def buffers(self) -> list[Tensor]:
        """Return the stacked buffers after a pass."""
        # A host may put another tensor in the place of a buffer, rather than fill it.
        after = {number: attributes[name] for attributes, name, number in self._places if number in self._filled}
        return [stack_of(after[number]).detach() for number in self._filled]


class GuestSeats(nn.Module):
    """Stands behind a slot for the guests of all networks of a pass, as a seed that always acts."""

    number, stage, presence, alpha, acts = -1, Stage.FOSSILISED, Presence.ACTING, Alpha(1.0), True
    title = blueprint = "guest"
    block = None

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[int, int, Guest | None, Any]] = []
        """Where runs of networks begin and end, with a guest of theirs and its stand-in if they have any here."""

    def forward(self, hidden: Any, _: float, inputs: Any = None, *_layer: Any) -> Tensor:
        """Return what leaves the slot for every network."""
        # Also where nobody is a guest: sums over another layout would have other bits.
        stack = stack_of(hidden).contiguous()
        if all(guest is None for _, _, guest, _ in self.runs):
            return Rows.of(stack)
        outputs = []
        # The gradient of a split is one tensor; each slice would have one of the size of all.
        parts = stack.split([end - start for start, end, _, _ in self.runs])
        for (start, end, guest, seed), part in zip(self.runs, parts, strict=True):
            if guest is None:
                outputs.append(part)
                continue
            of_module = Rows.of(stack_of(inputs)[start:end]) if guest.seed.adapts else None
            with guest.slot.entered(guest.seed):
                outputs.append(stack_of(seed(Rows.of(part), guest.strength, of_module)))
        return Rows.of(torch.cat(outputs).contiguous())


@dataclass(frozen=True, slots=True)
class Run:
    """Networks that follow one another in a pass and have guests of one kind; the stacks are those of the guests."""

    start: int
    end: int
    guest: Guest | None
    stacks: Sequence[Tensor] = ()


@dataclass(frozen=True, slots=True)
class Stacks:
    """The tensors of several networks, stacked."""

    networks: Sequence[Tensor]
    runs: Sequence[Run]

    @classmethod
    def of(cls, networks: Sequence[HostTensors]) -> Stacks:
        """Stack copies of networks; those with guests of one kind follow one another."""
        guests = [network.guest.tensors for network in networks if network.guest is not None]
        first, runs = len(networks) - len(guests), []
        for run in runs_of(networks):
            of_run = [] if run.guest is None else guests[run.start - first : run.end - first]
            runs.append(replace(run, stacks=stacked(of_run)))
        return cls(stacked(networks), runs)


def runs_of(networks: Sequence[HostTensors]) -> list[Run]:
    """Return which networks have guests of one kind."""
    runs: list[Run] = []
    for _, group in groupby(networks, lambda network: None if network.guest is None else network.guest.kind):
        members, start = list(group), runs[-1].end if runs else 0
        runs.append(Run(start, start + len(members), members[0].guest))
    return runs


def stacked(networks: Sequence[HostTensors]) -> list[Tensor]:
    """Return the stacked tensors of several networks, without guests."""
    with torch.no_grad():
        return [torch.stack(tensors) for tensors in zip(*(network.every() for network in networks), strict=True)]


class Program:
    """Runs several networks of the structure of ``model``."""

    def __init__(self, model: nn.Module) -> None:
        self._stand_in = StandIn(model)
        self._guests: dict[Hashable, StandIn] = {}
        self._seats: dict[str, GuestSeats] = {}
        self._tapes: dict[Hashable, Tape] = {}
        self._idle: Training | None = None
        for slot in (module for module in self._stand_in.module.modules() if isinstance(module, Slot)):
            self._seats[slot.name] = GuestSeats()
            slot.seeds.append(self._seats[slot.name])

    def lend_training(self, networks: Sequence[HostTensors], half_life: float) -> Training:
        """Return training passes of these networks: those that were given back last, if they have the same form."""
        training, self._idle = self._idle, None
        if training is None or not training.fits(networks):
            return Training(self, networks, half_life)
        training.take(networks)
        return training

    def give_back(self, training: Training) -> None:
        """Keep training passes, whose blocks nobody reads any more, for networks of the same form."""
        self._idle = training

    def outputs(self, stacks: Stacks, inputs_EN: Tensor, *, training: bool = False) -> list[Tensor]:
        """Return the outputs (E, N, …) of networks with these tensors, and in training their buffers after the pass.

        Raises:
            NotFusedError: The host calls what is not in the table, or returns no tensor of floats.
        """
        sources = [inputs_EN, *stacks.networks, *(stack for run in stacks.runs for stack in run.stacks)]
        form = form_of(stacks, inputs_EN, training=training)
        if form in self._tapes:
            return self._tapes[form].replay(sources)
        with Tape() as tape:
            results = self._pass(stacks, inputs_EN, training=training)
        tape.finish(sources, results)
        self._tapes[form] = tape
        return results

    def _pass(self, stacks: Stacks, inputs_EN: Tensor, *, training: bool) -> list[Tensor]:
        for seats in self._seats.values():
            seats.runs = []
        stand_ins = [self._stand_in]
        for run in stacks.runs:
            stand_in = None
            if run.guest is not None:
                stand_in = self._guests.get(run.guest.kind) or StandIn(run.guest.seed)
                self._guests[run.guest.kind] = stand_in
                stand_in.fill(run.stacks, training=training)
                stand_ins.append(stand_in)
            for name, seats in self._seats.items():
                is_here = run.guest is not None and run.guest.slot.name == name
                here = (run.guest, stand_in.module) if is_here and stand_in is not None else (None, None)
                seats.runs.append((run.start, run.end, *here))
        self._stand_in.fill(stacks.networks, training=training)
        outputs = self._stand_in.module(Rows.of(inputs_EN))
        if not (
            isinstance(outputs, Rows) and outputs.is_floating_point() and outputs.shape[:1] == inputs_EN.shape[1:2]
        ):
            refuse("it returns something else than a tensor of floats")
        return [stack_of(outputs), *(buffer for stand_in in stand_ins if training for buffer in stand_in.buffers())]


def form_of(stacks: Stacks, inputs_EN: Tensor, *, training: bool) -> Hashable:
    """Return what passes have in common that make the same calls."""
    guests = [None if run.guest is None else run.guest.kind for run in stacks.runs]
    return training, inputs_EN.shape, tuple((run.start, kind) for run, kind in zip(stacks.runs, guests, strict=True))


class Training:
    """Training passes of several networks, whose numbers stay in blocks from batch to batch.

    Args:
        half_life: Of running averages, in batches; 0: there are none.

    Attributes:
        hosts: The block of the networks; those of their guests follow it, one for each kind.
    """

    def __init__(self, program: Program, networks: Sequence[HostTensors], half_life: float = 0.0) -> None:
        self._program, self._runs = program, runs_of(networks)
        # Each with the networks that it belongs to, and whether it has the networks themselves or their guests.
        self._parts = [(slice(None), 0)] + [(slice(run.start, run.end), 1) for run in self._runs if run.guest]
        self.blocks = [
            Block([network.with_guest()[part] for network in networks[place]]) for place, part in self._parts
        ]
        self.hosts = self.blocks[0]
        self._updates = [Updates(block, half_life) for block in self.blocks]
        self._passes_left: float = EAGER if self.hosts.values.device.type in GRAPHS else math.inf
        self._captured: CapturedPass | None = None
        self.take(networks)

    def fits(self, networks: Sequence[HostTensors]) -> bool:
        """Return whether these networks have the form of those before."""
        kinds = [[(run.end, run.guest and run.guest.kind) for run in runs] for runs in (self._runs, runs_of(networks))]
        return kinds[0] == kinds[1]

    def take(self, networks: Sequence[HostTensors]) -> None:
        """Go on with networks of this form."""
        self._runs = runs_of(networks)
        for block, (place, part) in zip(self.blocks, self._parts, strict=True):
            block.read([network.with_guest()[part] for network in networks[place]])

    def read(self, states: Sequence[Sequence[TrainingState]]) -> None:
        """Take in how each network is trained, and how its guest is."""
        for updates, (place, part) in zip(self._updates, self._parts, strict=True):
            updates.read([of_network[part] for of_network in states[place]])

    def write(self, networks: Sequence[HostTensors], states: Sequence[Sequence[TrainingState]]) -> None:
        """Copy back what the networks have now."""
        for block, updates, (place, part) in zip(self.blocks, self._updates, self._parts, strict=True):
            for row, (network, of_network) in enumerate(zip(networks[place], states[place], strict=True)):
                block.write(row, network.with_guest()[part])
                updates.write(row, of_network[part])

    def step(self) -> None:
        """Take a step of each network, by the gradients of the latest batch."""
        for updates in self._updates:
            updates.step()

    def compute(self, inputs_EN: Tensor, targets_EN: Tensor, losses: Losses) -> Tensor:
        """Return the loss of each network on a batch of its own; blocks have gradients and buffers, and do not change.

        Raises:
            NotFusedError: As for ``Program.outputs``, or the loss has no gradient.
        """
        batch = [inputs_EN, targets_EN]
        if self._captured is None and self._passes_left == 0:
            try:
                self._captured = CapturedPass(partial(self._compute, losses), batch)
            except RuntimeError as error:
                log.info("a pass is launched call by call, since it cannot be captured: %s", describe_error(error))
                self._passes_left = math.inf
        if self._captured is not None:
            return self._captured(batch)
        self._passes_left -= 1
        return self._compute(losses, *batch)

    def _compute(self, losses: Losses, inputs_EN: Tensor, targets_EN: Tensor) -> Tensor:
        hosts, *guests = (
            [*block.leaves, *block.frozen, *(buffer.clone() for buffer in block.buffers)] for block in self.blocks
        )
        of_guests = iter(guests)
        stacks = Stacks(hosts, [replace(run, stacks=next(of_guests)) if run.guest else run for run in self._runs])
        outputs, *after = self._program.outputs(stacks, inputs_EN, training=True)
        losses_E = losses(outputs.flatten(0, 1), targets_EN.flatten(0, 1)).view(len(inputs_EN), -1).mean(1)
        if not losses_E.requires_grad:
            refuse("its loss has no gradient")
        leaves = [leaf for block in self.blocks for leaf in block.leaves]
        of_leaves = iter(torch.autograd.grad(losses_E.sum(), leaves))
        left = iter(after)
        for block in self.blocks:
            for gradient in block.of_leaves:
                gradient.copy_(next(of_leaves))
            block.after = [next(left).detach() for _ in block.buffers]
        return losses_E.detach()


def why_different(
    model: nn.Module, program: Program, inputs: Tensor, targets: Tensor, losses: Losses, guest: Guest | None = None
) -> str | None:
    """Return in what a program differs from its networks, or why they cannot be compared; None: in nothing.

    Two copies with random weights are run both ways on one half each of the examples: in training and in evaluation;
    with ``guest``, a seed of the model that acts on them.
    """
    changes: list[Any] = []
    try:
        # A tape would repeat the numbers that a pass drew from a generator that is not torch's.
        with Guard("", Scope.PROCESS, report=changes.append):
            why = _difference(model, program, inputs, targets, losses, guest)
        return "it draws random numbers, or changes settings" if changes else why
    except Exception as error:  # whatever is wrong with a network is reported where it is trained
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, NotFusedError):
            cause = cause.__cause__  # what a seed raised is the cause of a SeedFault
        return str(cause) if isinstance(cause, NotFusedError) else f"it raised {type(cause).__name__} as one program"


def _difference(
    model: nn.Module, program: Program, inputs: Tensor, targets: Tensor, losses: Losses, guest: Guest | None
) -> str | None:
    models = [bare_copy(model, keep=None if guest is None else guest.seed) for _ in range(2)]
    for number, copy in enumerate(models):
        fill_at_random(copy, number)
    batches_E = [tensor[: len(tensor) // 2 * 2].unflatten(0, (2, -1)) for tensor in (inputs, targets)]
    networks = [HostTensors.of(copy) if guest is None else acted_on(copy, guest) for copy in models]
    # First, since an engine knows whose code runs there.
    alone = [_train(models[row], networks[row], losses, *(batch[row] for batch in batches_E)) for row in (0, 1)]
    together = _train_as_one(program, networks, losses, batches_E)
    # A program of one: its row lies elsewhere in memory, and torch may take other kernels.
    singles = [
        _train_as_one(program, networks[row : row + 1], losses, [batch[row : row + 1].clone() for batch in batches_E])
        for row in (0, 1)
    ]
    for name, stacks, *of_rows in zip(("loss", "gradient", "step", "buffer"), together, *alone, *singles, strict=True):
        for stack, first, second, *of_singles in zip(stacks, *of_rows, strict=True):
            if not _are_close(stack, torch.stack([first, second])):
                return f"another {name} than one after another"
            if not torch.equal(stack, torch.cat(of_singles)):
                return f"another {name} among others than alone, by rounding"
    with torch.inference_mode():
        before = [(_state_of(copy.eval()), [buffer.clone() for buffer in copy.buffers()]) for copy in models]
        for _ in range(2):
            (outputs_E,) = program.outputs(Stacks.of(networks), batches_E[0])
        expected = torch.stack([copy(batch) for copy, batch in zip(models, batches_E[0], strict=True)])
    for copy, (state, buffers) in zip(models, before, strict=True):
        if _state_of(copy) != state or not all(map(torch.equal, copy.buffers(), buffers)):
            refuse("an evaluation changes buffers, attributes of modules, or what they refer to")
    # Kernels round the last numbers of a tensor otherwise, which shows in few of them.
    many = torch.cat([outputs_E.clone() * scale for scale in torch.linspace(-2, 2, 64).tolist()]).requires_grad_()
    targets_M = batches_E[1].repeat(64, *[1] * (batches_E[1].dim() - 1))
    of_each = torch.cat([losses(*of_row) for of_row in zip(many, targets_M, strict=True)])
    of_all = losses(many.flatten(0, 1), targets_M.flatten(0, 1))
    gradients = [torch.autograd.grad(rows.sum(), many) for rows in (of_each, of_all)]
    if not (torch.equal(of_all, of_each) and all(map(torch.equal, *gradients))):
        return "other losses among others than alone, by rounding"
    return None if _are_close(outputs_E, expected) else "other outputs than one after another"


def _train_as_one(
    program: Program, networks: Sequence[HostTensors], losses: Losses, batches_E: Sequence[Tensor]
) -> tuple[list[Tensor], ...]:
    """Return what training networks on a batch as one program gives: losses, gradients, parameters, and buffers."""
    training = Training(program, networks)
    for _ in range(2):  # the second pass repeats what the first one recorded
        losses_E = training.compute(batches_E[0], batches_E[1], losses)
    training.read([[trial_state(part) for part in network.with_guest()] for network in networks])
    training.step()
    gradients, steps, buffers = [], [], []
    for block in training.blocks:
        gradients += block.layout.views(block.gradients)[: len(block.leaves)]
        steps += block.layout.views(block.values)[: len(block.leaves)]
        buffers += block.after
    return [losses_E], gradients, steps, buffers


def _state_of(part: nn.Module) -> Hashable:
    """Return what passes may not change in a network, since a program would not see it."""
    return signature_of(part), surroundings_of(part)


def fill_at_random(copy: nn.Module, seed: int) -> None:
    """Give a network random parameters, so that the answer follows from its structure alone."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in copy.parameters():
            bound = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 1.0
            parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
        for buffer in copy.buffers():
            buffer.copy_(torch.where(buffer.isfinite(), buffer, 1))


def acted_on(copy: nn.Module, guest: Guest) -> HostTensors:
    """Let the one living seed of a network act on it as a guest would, and return its tensors."""
    (slot,) = (slot for slot in copy.modules() if isinstance(slot, Slot) and slot.nursery)
    (seed,) = slot.nursery
    seed.presence, seed.alpha = Presence.ACTING, Alpha(guest.strength, guest.strength)
    return replace(HostTensors.of(copy), guest=Guest.of(slot, seed, guest.strength))


def trial_state(network: HostTensors) -> TrainingState:
    """Return what trains a network for one step of a trial."""
    adams = [(TRIAL_ADAM, begun_state({}, parameter)) for parameter in network.trained]
    for _, state in adams:
        state["exp_avg_sq"] += 1
    return TrainingState(adams, [None] * len(network.varying))


def _train(
    model: nn.Module, network: HostTensors, losses: Losses, inputs: Tensor, targets: Tensor
) -> tuple[list[Tensor], ...]:
    """Return what training a network on a batch gives by itself; its own tensors are put back.

    These are its loss, gradients, parameters after a step, and buffers.
    """
    model.train()
    kept = KeptBuffers(model)
    parts = [model] if network.guest is None else [model, network.guest.seed]
    before = [_state_of(part) for part in parts]
    loss = losses(model(inputs), targets).mean()
    learning = [parameter for part in network.with_guest() for parameter in part.trained]
    # Code of the guest may run in the backward pass, too: an engine asks whose it was if the process dies there.
    with nullcontext() if network.guest is None else network.guest.slot.entered(network.guest.seed):
        gradients = torch.autograd.grad(loss, learning, allow_unused=True)
    if [_state_of(part) for part in parts] != before:
        refuse("a pass changes attributes of its modules, or what they refer to")
    after = [buffer.clone() for part in parts for buffer in HostTensors.of(part).buffers]
    kept.put_back()
    present = [gradient for gradient in gradients if gradient is not None]
    if len(present) < len(gradients):
        # In a block it would be 0, by which optimizers move a parameter, too.
        refuse("the loss does not depend on one of its parameters")
    stepped = [parameter.detach().clone() for parameter in learning]
    states = [state for part in network.with_guest() for _, state in trial_state(part).adams]
    TRIAL_ADAM.step(stepped, present, *([state[name] for state in states] for name in (*MOMENTS, "step")))
    return [loss.detach()], present, stepped, after


def _are_close(stack: Tensor, expected: Tensor) -> bool:
    scale = expected.abs().max()
    # Negated comparisons would count NaN as close.
    return expected.shape == stack.shape and bool((stack - expected).abs().max() <= TOLERANCE * scale + 1e-6)
