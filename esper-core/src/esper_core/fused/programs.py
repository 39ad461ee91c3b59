"""Programs: outputs, losses and gradients of several networks in one pass.

A ``Program`` is made once for a structure. It has a copy of the host, the stand-in, whose parameters and buffers are
only places: in a pass it has the tensors of several networks there, stacked. The networks keep tensors of their own,
which optimizers, snapshots, branches and checkpoints may exchange between any two batches. To copy those of small
networks together takes a few per cent of a batch, and one that joins or leaves a group costs nothing.

Equal classes and shapes do not mean equal functions, so ``why_different`` compares values before one is trusted.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.fused.rows import NotFusedError, Rows, refuse
from esper_core.fused.signatures import host_modules, signature_of
from esper_core.growth import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Losses = Callable[[Tensor, Tensor], Tensor]
    """Computes one number for each example, from outputs and targets."""

TOLERANCE: Final = 1e-3
"""Largest difference, as a share of the largest number. Another order of sums gives about 1e-6; another function, 1."""


@dataclass(frozen=True, slots=True)
class HostTensors:
    """The tensors of one network, without those of living seeds: each once, in the order of its modules."""

    trained: Sequence[nn.Parameter]
    frozen: Sequence[nn.Parameter]
    buffers: Sequence[Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> HostTensors:
        """Return the tensors of a network as they are registered now."""
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

    def every(self) -> list[Tensor]:
        """Return all of them."""
        return [*self.trained, *self.frozen, *self.buffers]


@dataclass(frozen=True, slots=True)
class Pass:
    """What a training pass computed for several networks, none of which is changed yet.

    Attributes:
        losses: The mean loss of each network, (E,), detached.
        gradients: Of each trained parameter, (E, …) and contiguous; None: the loss does not depend on it.
        buffers: Each buffer after the pass, (E, …).
    """

    losses: Tensor
    gradients: Sequence[Tensor | None]
    buffers: Sequence[Tensor]

    def hand_out(self, networks: Sequence[HostTensors]) -> None:
        """Give every network its gradients and its buffers."""
        for number, gradient in enumerate(self.gradients):
            rows = [None] * len(networks) if gradient is None else gradient.unbind()
            for network, row in zip(networks, rows, strict=True):
                network.trained[number].grad = row
        with torch.no_grad():
            for number, stack in enumerate(self.buffers):
                for network, row in zip(networks, stack.unbind(), strict=True):
                    network.buffers[number].copy_(row)


def bare_copy(model: nn.Module, tensors: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of a network without its living seeds; ``tensors`` replaces tensors, by their identities."""
    slots = [slot for slot in model.modules() if isinstance(slot, Slot)]
    living = {id(seed): None for slot in slots for seed in slot.nursery}
    copy = deepcopy(model, {**(tensors or {}), **living})
    for slot in (slot for slot in copy.modules() if isinstance(slot, Slot)):
        kept = [seed for seed in slot.seeds if seed is not None]
        del slot.seeds[:]
        slot.seeds.extend(kept)
    return copy


class Program:
    """Runs several networks of the structure of ``model``."""

    def __init__(self, model: nn.Module) -> None:
        tensors = HostTensors.of(model).every()
        numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        self._stand_in = bare_copy(model, dict.fromkeys(numbers))
        self._filled = range(len(tensors) - len(HostTensors.of(model).buffers), len(tensors))
        self._places: list[tuple[dict[str, Any], str, int]] = []
        for path, module in host_modules(model):
            copy = self._stand_in.get_submodule(path)
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                delattr(copy, name)
                # An ordinary attribute, since torch would refuse tensors that are no parameters.
                self._places.append((vars(copy), name, numbers[id(tensor)]))

    @staticmethod
    def stack(networks: Sequence[HostTensors]) -> list[Tensor]:
        """Return copies of the tensors of several networks, stacked; those that are trained require gradients."""
        with torch.no_grad():
            stacks = [torch.stack(tensors) for tensors in zip(*(network.every() for network in networks), strict=True)]
        for stack in stacks[: len(networks[0].trained)]:
            stack.requires_grad_()
        return stacks

    def outputs(self, stacks: Sequence[Tensor], inputs_EN: Tensor, *, training: bool = False) -> Tensor:
        """Return the outputs (E, N, …) of networks with these tensors.

        Raises:
            NotFusedError: The host calls what is not in the table, or returns no tensor of floats.
        """
        rows = [Rows.of(stack) for stack in stacks]
        for attributes, name, number in self._places:
            attributes[name] = rows[number]
        if self._stand_in.training is not training:
            self._stand_in.train(training)
        outputs = self._stand_in(Rows.of(inputs_EN))
        if not (
            isinstance(outputs, Rows) and outputs.is_floating_point() and outputs.shape[:1] == inputs_EN.shape[1:2]
        ):
            refuse("it returns something else than a tensor of floats")
        return outputs.stacked

    def train(self, networks: Sequence[HostTensors], inputs_EN: Tensor, targets_EN: Tensor, losses: Losses) -> Pass:
        """Return losses and gradients of several networks, each on a batch of its own; none of them is changed.

        Raises:
            NotFusedError: As for ``outputs``, or the loss has no gradient.
        """
        stacks = self.stack(networks)
        outputs = self.outputs(stacks, inputs_EN, training=True)
        of_examples = losses(outputs.flatten(0, 1), targets_EN.flatten(0, 1))
        losses_E = of_examples.view(len(networks), -1).mean(1)
        trained = stacks[: len(networks[0].trained)]
        if not (trained and losses_E.requires_grad):
            refuse("its loss has no gradient")
        gradients = torch.autograd.grad(losses_E, trained, torch.ones_like(losses_E), allow_unused=True)
        # Fused optimizers walk through parameters and gradients as they lie in memory, and products transpose some.
        in_order = [None if gradient is None else gradient.contiguous() for gradient in gradients]
        # A host may put another tensor in the place of a buffer, rather than fill it.
        after = {number: attributes[name] for attributes, name, number in self._places if number in self._filled}
        return Pass(losses_E.detach(), in_order, [after[number].stacked.detach() for number in self._filled])


def why_different(model: nn.Module, program: Program, inputs: Tensor, targets: Tensor, losses: Losses) -> str | None:
    """Return in what a program differs from its networks, or why they cannot be compared; None: in nothing.

    Two networks, the model and one with other weights, are run both ways on one half each of the examples: in training
    and in evaluation. The model itself is not run.
    """
    try:
        models = [bare_copy(model), bare_copy(model)]
        with torch.no_grad():
            for parameter in models[1].parameters():
                parameter.mul_(1.25)
        half = len(inputs) // 2
        batches_E = [tensor[: 2 * half].unflatten(0, (2, half)) for tensor in (inputs, targets)]
        networks = [HostTensors.of(copy) for copy in models]
        passed = program.train(networks, batches_E[0], batches_E[1], losses)
        fused = [passed.losses, *passed.gradients, *passed.buffers]
        alone = [_train(models[row], networks[row], losses, *(batch[row] for batch in batches_E)) for row in (0, 1)]
        names = ["loss", *(f"gradient {n}" for n in range(len(passed.gradients)))]
        for number, (stack, *rows) in enumerate(zip(fused, *alone, strict=True)):
            if not _are_close(stack, rows):
                return f"another {names[number] if number < len(names) else 'buffer'} than one after another"
        with torch.inference_mode():
            outputs_E = program.outputs(Program.stack(networks), batches_E[0])
            rows = [copy.eval()(batch) for copy, batch in zip(models, batches_E[0], strict=True)]
            return None if _are_close(outputs_E, rows) else "other outputs than one after another"
    except Exception as error:  # whatever is wrong with a network is reported where it is trained
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, NotFusedError):
            cause = cause.__cause__  # what a seed raised is the cause of a SeedFault
        return str(cause) if isinstance(cause, NotFusedError) else f"it raised {type(cause).__name__} as one program"


def _train(
    model: nn.Module, network: HostTensors, losses: Losses, inputs: Tensor, targets: Tensor
) -> list[Tensor | None]:
    """Return loss, gradients and buffers of a network that is trained on a batch by itself."""
    model.train()
    before = signature_of(model)
    loss = losses(model(inputs), targets).mean()
    gradients = torch.autograd.grad(loss, network.trained, allow_unused=True)
    if signature_of(model) != before:
        refuse("a pass changes attributes of its modules")
    return [loss.detach(), *gradients, *HostTensors.of(model).buffers]


def _are_close(stack: Tensor | None, rows: list[Tensor | None]) -> bool:
    if stack is None or any(row is None for row in rows):
        return stack is None and all(row is None for row in rows)
    expected = torch.stack([row for row in rows if row is not None])
    scale = expected.abs().max()
    # Negated comparisons would count NaN as close.
    return expected.shape == stack.shape and bool((stack - expected).abs().max() <= TOLERANCE * scale + 1e-6)
