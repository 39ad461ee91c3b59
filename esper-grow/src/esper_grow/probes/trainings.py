"""Trainings of a probe: copies of a model with its optimizer, alone or with a seed in one slot.

A probe works on copies alone, which share what is frozen with the model. One copy of the host is trained first; from
its state the host goes on without a seed, and with each candidate, one after the other, so that no more than two copies
live beside the model.
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from esper_core.growth import Host, RandomStream, SeedFault
from esper_core.leyline.errors import EsperError, GrowthError, Problem
from esper_grow.gardener.borrowed_optimizers import BorrowedOptimizers, bare_copy, optimizers_of
from esper_grow.gardener.validation import each_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from esper_core.growth import RunningAverage, Variety
    from esper_grow.gardener.validation import Loss, Validation


@dataclass(slots=True)
class Training:
    """A model in training.

    Attributes:
        model: Grafted; a copy that belongs to this training.
        optimizer: Over its parameters.
        loss: Runs the model on a batch and returns one loss for each example, or one for the batch.
        clip_norm: Largest global norm of the gradients; None: no clipping.
        stream: Random numbers of the model, such as those of dropout.
        now: A clock, in seconds.
        seconds: What each step took.
        average: That of the weights, by which it is evaluated; None: by those of the last step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    clip_norm: float | None
    stream: RandomStream
    now: Callable[[], float] = perf_counter
    seconds: list[float] = field(default_factory=list)
    average: RunningAverage | None = None

    def copy(self, seed: int, half_life: float) -> Training:
        """Return a copy that goes on from here, with random numbers of its own ``seed``.

        It is evaluated with a running average of its weights over so many batches; 0: with those of its last step.
        """
        memo = frozen_of(self.model)
        model = deepcopy(self.model, memo)
        stream = RandomStream(seed, Host(model).device)
        optimizer = copy_optimizer(self.optimizer, memo)
        average = Host(model).running_average(half_life) if half_life else None
        return replace(self, model=model, optimizer=optimizer, stream=stream, seconds=[], average=average)

    def judged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights by which it is evaluated."""
        return nullcontext() if self.average is None else self.average.applied()

    def plant(self, slot: str, variety: Variety, seed: int, batch: Any) -> int:
        """Let a newborn seed act in a slot and train with the host; return how many parameters it adds.

        Raises:
            SeedFault: It cannot be built.
        """
        newborn = Host(self.model).plant(slot, variety, seed, lambda model: self.loss(model, batch).mean())
        keeper = BorrowedOptimizers(self.model, [self.optimizer])
        keeper.adopt(newborn)
        keeper.settle(newborn, freeze=False)
        return newborn.parameter_count

    def step(self, batch: Any) -> None:
        """Train on one batch.

        Raises:
            GrowthError: No gradient reaches the model (E352).
        """
        began = self.now()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer.zero_grad()
        with self.stream:
            mean = self.loss(self.model, batch).mean()
            if trained:
                _backward(mean, trained)
        if self.clip_norm is not None:
            clip_grad_norm_(trained, self.clip_norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.seconds.append(self.now() - began)

    def evaluate(self, validation: Validation, *, again: bool = True) -> Tensor:
        """Return the loss of each validation example; with ``again`` they must be those of the evaluation before."""
        with self.judged():
            return validation.evaluate(self.model, nullcontext, trial=again)

    def release(self) -> None:
        """Free the memory of the copy. Its modules refer to each other, and Python may keep them for a while."""
        self.optimizer.state.clear()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for tensor in (*trained, *self.model.buffers()):
            tensor.grad = None
            tensor.data = tensor.new_empty(0)

    @property
    def seconds_of_step(self) -> float:
        """The duration of a step when nothing else slows it down: what one in ten steps does not exceed."""
        return sorted(self.seconds)[len(self.seconds) // 10] if self.seconds else 0.0


def frozen_of(model: nn.Module) -> dict[int, Any]:
    """Return a memo of ``deepcopy`` by which copies share the frozen parameters, which no training changes."""
    return {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}


def _backward(mean: Tensor, trained: list[nn.Parameter]) -> None:
    """Set the gradients of ``trained``. Others, as of the loss function, get some beside reentrant checkpoints only."""
    if not mean.requires_grad:
        message = "the model cannot be trained: its loss does not depend on any parameter"
        hint = "Let the loss function run the model with gradients: without no_grad, detach or item."
        raise GrowthError(Problem("E352", message, hint=hint))
    try:
        # Of reentrant checkpoints torch sees no parameters within, and would leave out their gradients.
        mean.backward(inputs=None if _is_reentrant(mean) else trained)
    except RuntimeError as error:
        message = f"the model cannot be trained: the backward pass {SeedFault.describe_error(error)}"
        raise GrowthError(Problem("E352", message, hint="Make  loss(model, batch).mean().backward()  work.")) from error


def _is_reentrant(mean: Tensor) -> bool:
    """Return whether layers are checkpointed with ``use_reentrant=True`` in the pass that gave a loss."""
    seen, waiting = set(), [mean.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


def guarded(loss: Loss) -> Loss:
    """Return a loss function whose errors are raised as GrowthError (E352), with the line of the user's code."""

    def guarded_loss(model: nn.Module, batch: Any) -> Tensor:
        try:
            losses = loss(model, batch)
            return losses if isinstance(losses, Tensor) and not losses.ndim else each_loss(losses)
        except EsperError:
            raise
        except Exception as error:
            message = f"the loss function {SeedFault.describe_error(error, loss)}"
            hint = "It is called as loss(model, batch) with the batches of the training and validation data."
            raise GrowthError(Problem("E352", message, hint=hint)) from error

    return guarded_loss


def new_training(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    loss: Loss,
    clip_norm: float | None,
    seed: int,
    now: Callable[[], float] = perf_counter,
) -> Training:
    """Return a training of a copy of ``model``.

    A model in evaluation mode is set to training mode as a whole; otherwise parts in evaluation mode stay so.

    Raises:
        GrowthError: The model is no module, has no values, or cannot be copied (E350), or the optimizer is another one
            (E340, E341).
    """
    if not isinstance(model, nn.Module):
        message = f"a probe needs a torch.nn.Module. Received: {type(model).__name__}"
        hint = "Pass the model itself, with its loss as a function beside it."
        raise GrowthError(Problem("E350", message, hint=hint))
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        hint = "Give it values first:  model.to_empty(device=…), and load_state_dict."
        raise GrowthError(Problem("E350", "the model is on the device meta, where tensors have no values", hint=hint))
    memo = frozen_of(model)
    try:
        copy = deepcopy(getattr(model, "_orig_mod", model), memo)
    except Exception as error:
        message = f"the model cannot be copied: {type(error).__name__}: {error}"
        hint = "A probe trains copies, so copy.deepcopy has to work on the model."
        raise GrowthError(Problem("E350", message, hint=hint)) from error
    if shared := _shared(model, copy):
        message = f"the model cannot be copied: its copy shares {shared}"
        hint = "A probe trains copies, which would change the model. Check its __deepcopy__."
        raise GrowthError(Problem("E350", message, hint=hint))
    if not copy.training:
        copy.train()
    trained = [parameter for parameter in copy.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = None
    copied = copy_optimizer(optimizer, memo) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    owner, *_ = optimizers_of(copied, trained)
    stream = RandomStream(RandomStream.derive_seed(seed, "host"), Host(copy).device)
    return Training(copy, owner, loss, clip_norm, stream, now)


def _shared(model: nn.Module, copy: nn.Module) -> str | None:
    """Return the name of a tensor that is not frozen and shared by the copy and the model; None if there is none."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    addresses = {_address(tensor) for tensor in (*trained, *model.buffers()) if tensor.numel()}
    tensors = (*copy.named_parameters(), *copy.named_buffers())
    return next((name for name, own_copy in tensors if _address(own_copy) in addresses), None)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a quantised tensor of torchao is an object around other tensors
        return id(tensor)


def copy_optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """Return a copy over the parameters that ``memo`` maps those of ``optimizer`` to, without hooks and schedules."""
    copied = bare_copy(optimizer)
    copied.param_groups = [dict(_copied_group(group, memo)) for group in optimizer.param_groups]
    copied.state = type(optimizer.state)(optimizer.state.default_factory)
    for parameter, state in optimizer.state.items():
        if id(parameter) in memo:
            copied.state[memo[id(parameter)]] = {key: deepcopy(value, memo) for key, value in state.items()}
    return copied


def _copied_group(group: dict[str, Any], memo: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    mapped = [id(parameter) in memo for parameter in group["params"]]
    for key, value in group.items():
        if key in ("params", "param_names"):
            members = [member for member, is_mapped in zip(value, mapped, strict=True) if is_mapped]
            yield key, [memo[id(member)] for member in members] if key == "params" else members
        else:
            yield key, deepcopy(value, memo)


def refuse_not_finite(losses: Mapping[str, Tensor]) -> None:
    """Raise GrowthError (E352) if validation losses after a training are not finite."""
    for training, examples in losses.items():
        if wrong := int((~examples.isfinite()).sum()):
            message = f"{wrong} of {len(examples)} losses of the validation data are not finite"
            hint = "Lower the learning rate, set clip_norm, or check the loss: a mean over no labels is nan."
            raise GrowthError(Problem("E352", f"{message} after training {training}", hint=hint))
