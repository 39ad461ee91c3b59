"""Programs: outputs, losses and gradients of several networks in one pass.

A ``Program`` is made once for a structure. It has a copy of the host, the stand-in, whose parameters and buffers are
only places: in a pass it has the tensors of several networks there, stacked. The networks keep tensors of their own,
which optimizers, snapshots, branches and checkpoints may exchange between any two batches. To copy those of small
networks together takes a few per cent of a batch, and one that joins or leaves a group costs nothing.

A network may have a ``Guest``: a seed that acts on it and not on the others, because it is trained on a branch. Behind
each slot a pass parts into runs of networks with guests of one kind, and comes together again.

Equal classes and shapes do not mean equal functions, so ``why_different`` compares values before one is trusted.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.fused.rows import NotFusedError, Rows, refuse, stack_of
from esper_core.fused.signatures import host_modules, signature_of
from esper_core.growth import Alpha, KeptBuffers, Presence, Slot
from esper_core.leyline import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from esper_core.growth import Seed

    Losses = Callable[[Tensor, Tensor], Tensor]
    """Computes one number for each example, from outputs and targets."""

TOLERANCE: Final = 1e-3
"""Largest difference, as a share of the largest number. Another order of sums gives about 1e-6; another function, 1."""


@dataclass(frozen=True, slots=True)
class HostTensors:
    """The tensors of one network, without those of living seeds: each once, in the order of its modules.

    ``guest`` is the seed that acts on it, if one does.
    """

    trained: Sequence[Tensor]
    frozen: Sequence[Tensor]
    buffers: Sequence[Tensor]
    guest: Guest | None = None

    @classmethod
    def of(cls, model: nn.Module) -> HostTensors:
        """Return the tensors of a network, or of a seed, as they are registered now."""
        modules = [module for _, module in host_modules(model)]
        parameters = list(
            dict.fromkeys(parameter for module in modules for parameter in module.parameters(recurse=False))
        )
        buffers = {id(buffer): buffer for module in modules for buffer in module.buffers(recurse=False)}
        return cls(
            [parameter for parameter in parameters if parameter.requires_grad],
            [parameter for parameter in parameters if not parameter.requires_grad],
            list(buffers.values()),
        )

    @property
    def parameter_count(self) -> int:
        """How many numbers its parameters have."""
        return sum(parameter.numel() for parameter in (*self.trained, *self.frozen))

    def every(self) -> list[Tensor]:
        """Return all of them, without those of the guest."""
        return [*self.trained, *self.frozen, *self.buffers]

    def replaced(self, tensors: Mapping[int, Tensor]) -> HostTensors:
        """Return these tensors with others in the places of some, given by their identities."""
        trained, frozen, buffers = (
            [tensors.get(id(tensor), tensor) for tensor in part] for part in (self.trained, self.frozen, self.buffers)
        )
        return HostTensors(trained, frozen, buffers)

    def with_guest(self) -> tuple[HostTensors, ...]:
        """Return the tensors of the network, and those of its guest."""
        return (self,) if self.guest is None else (self, self.guest.tensors)


@dataclass(frozen=True, slots=True)
class Guest:
    """A seed that acts at a constant strength on one network of a pass.

    Attributes:
        kind: What guests that are computed at once have in common.
    """

    kind: Hashable
    slot: Slot
    seed: Seed
    strength: float
    tensors: HostTensors

    @classmethod
    def of(cls, slot: Slot, seed: Seed, strength: float) -> Guest:
        """Return a seed as a guest; NotFusedError if it has something that several cannot share."""
        return cls((slot.name, strength, signature_of(seed)), slot, seed, strength, HostTensors.of(seed))

    def replaced(self, tensors: Mapping[int, Tensor]) -> Guest:
        """Return the guest with other tensors in the places of some, given by their identities."""
        return replace(self, tensors=self.tensors.replaced(tensors))


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training pass computed for one network, which is not changed yet.

    Attributes:
        loss: The mean loss, detached.
        gradients: Of each trained parameter of the network, then of its guest; None: the loss does not depend on it.
        after: Each buffer of the network, then of its guest, after the pass.
    """

    loss: Tensor
    gradients: list[Tensor | None]
    after: list[Tensor]

    def hand_out(self, network: HostTensors, parameters: Sequence[Tensor] | None = None) -> None:
        """Give a network its gradients and its buffers; ``parameters`` stand in for those that it trains."""
        parts = network.with_guest()
        trained = [parameter for part in parts for parameter in part.trained] if parameters is None else parameters
        for parameter, gradient in zip(trained, self.gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, after in zip((buffer for part in parts for buffer in part.buffers), self.after, strict=True):
                buffer.copy_(after)


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
    stacks: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Copies of the tensors of several networks, stacked; those that are trained require gradients."""

    networks: Sequence[Tensor]
    runs: Sequence[Run]

    @classmethod
    def of(cls, networks: Sequence[HostTensors]) -> Stacks:
        """Stack networks; those with guests of one kind follow one another."""
        runs: list[Run] = []
        for _, group in groupby(networks, lambda network: None if network.guest is None else network.guest.kind):
            members, start = list(group), runs[-1].end if runs else 0
            guests = [member.guest.tensors for member in members if member.guest is not None]
            runs.append(Run(start, start + len(members), members[0].guest, stacked(guests) if guests else ()))
        return cls(stacked(networks), runs)


def stacked(networks: Sequence[HostTensors]) -> list[Tensor]:
    """Return the stacked tensors of several networks, without guests."""
    with torch.no_grad():
        stacks = [torch.stack(tensors) for tensors in zip(*(network.every() for network in networks), strict=True)]
    for stack in stacks[: len(networks[0].trained)]:
        stack.requires_grad_()
    return stacks


class Program:
    """Runs several networks of the structure of ``model``."""

    def __init__(self, model: nn.Module) -> None:
        self._stand_in = StandIn(model)
        self._guests: dict[Hashable, StandIn] = {}
        self._seats: dict[str, GuestSeats] = {}
        for slot in (module for module in self._stand_in.module.modules() if isinstance(module, Slot)):
            self._seats[slot.name] = GuestSeats()
            slot.seeds.append(self._seats[slot.name])

    def outputs(self, stacks: Stacks, inputs_EN: Tensor, *, training: bool = False) -> Tensor:
        """Return the outputs (E, N, …) of networks with these tensors.

        Raises:
            NotFusedError: The host calls what is not in the table, or returns no tensor of floats.
        """
        for seats in self._seats.values():
            seats.runs = []
        for run in stacks.runs:
            stand_in = None
            if run.guest is not None:
                stand_in = self._guests.get(run.guest.kind) or StandIn(run.guest.seed)
                self._guests[run.guest.kind] = stand_in
                stand_in.fill(run.stacks, training=training)
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
        return outputs.stacked

    def train(
        self, networks: Sequence[HostTensors], inputs_EN: Tensor, targets_EN: Tensor, losses: Losses
    ) -> list[Trained]:
        """Return losses and gradients of several networks, each on a batch of its own; none of them is changed.

        Raises:
            NotFusedError: As for ``outputs``, or the loss has no gradient.
        """
        stacks = Stacks.of(networks)
        outputs = self.outputs(stacks, inputs_EN, training=True)
        of_examples = losses(outputs.flatten(0, 1), targets_EN.flatten(0, 1))
        losses_E = of_examples.view(len(networks), -1).mean(1)
        # Each with the networks that it belongs to.
        learning = [(0, len(networks), stack) for stack in stacks.networks if stack.requires_grad]
        learning += [(run.start, run.end, stack) for run in stacks.runs for stack in run.stacks if stack.requires_grad]
        if not (learning and losses_E.requires_grad):
            refuse("its loss has no gradient")
        gradients = torch.autograd.grad(
            losses_E, [stack for *_, stack in learning], torch.ones_like(losses_E), allow_unused=True
        )
        results = [Trained(loss, [], []) for loss in losses_E.detach().unbind()]
        for (start, end, _), gradient in zip(learning, gradients, strict=True):
            # Fused optimizers walk through parameters and gradients as they lie in memory, and products transpose some.
            rows = [None] * (end - start) if gradient is None else gradient.contiguous().unbind()
            for result, row in zip(results[start:end], rows, strict=True):
                result.gradients.append(row)
        buffers = [(0, len(networks), stack) for stack in self._stand_in.buffers()]
        for run in stacks.runs:
            if run.guest is not None:
                buffers += [(run.start, run.end, stack) for stack in self._guests[run.guest.kind].buffers()]
        for start, end, stack in buffers:
            for result, row in zip(results[start:end], stack.unbind(), strict=True):
                result.after.append(row)
        return results


def why_different(
    model: nn.Module, program: Program, inputs: Tensor, targets: Tensor, losses: Losses, guest: Guest | None = None
) -> str | None:
    """Return in what a program differs from its networks, or why they cannot be compared; None: in nothing.

    Two copies with random weights are run both ways on one half each of the examples: in training and in evaluation;
    with ``guest``, a seed of the model that acts on them.
    """
    try:
        models = [bare_copy(model, keep=None if guest is None else guest.seed) for _ in range(2)]
        for number, copy in enumerate(models):
            fill_at_random(copy, number)
        half = len(inputs) // 2
        batches_E = [tensor[: 2 * half].unflatten(0, (2, half)) for tensor in (inputs, targets)]
        networks = [HostTensors.of(copy) if guest is None else acted_on(copy, guest) for copy in models]
        # First, since an engine knows whose code runs there.
        alone = [_train(models[row], networks[row], losses, *(batch[row] for batch in batches_E)) for row in (0, 1)]
        if guest is not None and any(gradient is None for result in alone for gradient in result.gradients):
            # Beside networks without this guest it would be 0, by which optimizers move a parameter, too.
            refuse("the loss does not depend on one of its parameters")
        passed = program.train(networks, batches_E[0], batches_E[1], losses)
        for part in ("loss", "gradients", "after"):
            pairs = zip(*(_listed(getattr(result, part)) for result in (*passed, *alone)), strict=True)
            for number, (first, second, *expected) in enumerate(pairs):
                if not _are_close([first, second], expected):
                    names = {"loss": "loss", "gradients": f"gradient {number}", "after": "buffer"}
                    return f"another {names[part]} than one after another"
        with torch.inference_mode():
            outputs_E = program.outputs(Stacks.of(networks), batches_E[0])
            rows = [copy.eval()(batch) for copy, batch in zip(models, batches_E[0], strict=True)]
            return None if _are_close(list(outputs_E), rows) else "other outputs than one after another"
    except Exception as error:  # whatever is wrong with a network is reported where it is trained
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, NotFusedError):
            cause = cause.__cause__  # what a seed raised is the cause of a SeedFault
        return str(cause) if isinstance(cause, NotFusedError) else f"it raised {type(cause).__name__} as one program"


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


def _train(model: nn.Module, network: HostTensors, losses: Losses, inputs: Tensor, targets: Tensor) -> Trained:
    """Return loss, gradients and buffers of a network that is trained on a batch by itself; its own are put back."""
    model.train()
    kept = KeptBuffers(model)
    parts = [model] if network.guest is None else [model, network.guest.seed]
    before = [signature_of(part) for part in parts]
    loss = losses(model(inputs), targets).mean()
    learning = [parameter for part in network.with_guest() for parameter in part.trained]
    gradients = torch.autograd.grad(loss, learning, allow_unused=True)
    if [signature_of(part) for part in parts] != before:
        refuse("a pass changes attributes of its modules")
    after = [buffer.clone() for part in parts for buffer in HostTensors.of(part).buffers]
    kept.put_back()
    return Trained(loss.detach(), list(gradients), after)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _are_close(rows: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    if any(row is None for row in (*rows, *expected)):
        return all(row is None for row in (*rows, *expected))
    stack, other = (torch.stack([row for row in of_way if row is not None]) for of_way in (rows, expected))
    scale = other.abs().max()
    # Negated comparisons would count NaN as close.
    return other.shape == stack.shape and bool((stack - other).abs().max() <= TOLERANCE * scale + 1e-6)
