"""Losses of a user's examples: one for each, the same examples in every pass, and nothing left behind.

Gates compare the losses of the same held-out examples without and with a seed. So each example needs a loss of its own,
and every pass over the validation data must bring the same examples in the same order. A loader that shuffles draws the
same order each time, because every pass begins with the same random numbers.

A loss function may return the mean loss of a batch instead. Where ``losses`` cannot find what it is the mean of, each
batch counts as one example: its mean is one observation, and gates are wider because there are fewer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from esper_core.growth import Example, Host, Presence, RandomStream
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.errors import EsperError, GrowthError, Problem
from esper_core.leyline.signals import Metric
from esper_grow.gardener.losses import are_of_examples, each_example
from esper_grow.gardener.traces import same_random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from torch import nn

    from esper_grow.gardener.counterfactuals import Counterfactuals

    Autocast = Callable[[], AbstractContextManager[Any]]
    """Returns a context in which the model computes, as ``HostAutocast`` does."""

    Loss = Callable[[nn.Module, Any], Tensor]
    """Runs a model on a batch and returns one loss for each example."""

log = logging.getLogger("esper")

METRIC = Metric("loss", "down")
"""The metric of a Gardener: the loss."""


def each_loss(losses: Any) -> Tensor:
    """Return one loss for each example; those of its parts, such as tokens or pixels, are averaged.

    The single loss of a whole batch counts as that of one example.

    Raises:
        GrowthError: It is not a tensor, or has no losses (E342).
    """
    if isinstance(losses, Tensor) and losses.numel():
        return losses.reshape(1) if losses.ndim == 0 else losses if losses.ndim == 1 else losses.flatten(1).mean(1)
    received = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    message = "the loss function must return a loss for each example, which gates compare"
    hint = f'Return unreduced losses, for example  cross_entropy(model(x), y, reduction="none"). Received: {received}'
    raise GrowthError(Problem("E342", message, hint=hint))


REPEATABLE = "Pass a DataLoader or a list, which can be iterated repeatedly."
"""What to do about data that cannot be used."""

_HELD_OUT = "Pass held-out batches, such as  [(inputs, targets)], or a DataLoader; with drop_last it may have none."
"""What to do about data without examples."""


class Validation:
    """The held-out examples of a Gardener.

    Args:
        batches: Yields the batches each time it is iterated: a DataLoader, or a list.
        loss: Runs the model on a batch.
        seed: Of the random numbers in a pass.
        gates: How strict the gates are, which can judge by enough examples only.
    """

    def __init__(self, batches: Iterable[Any], loss: Loss, seed: int, gates: str = "off") -> None:
        refuse_no_batches(batches, "validation")
        self._gates, self._few, self._trained = gates, False, False
        self._batches, self._is_data_set = batches, isinstance(batches, Dataset)
        self._loss = loss
        self._seed = RandomStream.derive_seed(seed, "validation")
        self._seen: Tensor | None = None
        """A number for each batch of the latest evaluation without a trial, by which the batches are known again."""
        self._losses_seen = 0
        self.order = 0
        """A number that tells the order of the latest evaluation's batches, and how many losses it had, from others."""
        self._of_frozen: Tensor | None = None
        """The losses of a host in which nothing trains, of which one batch tells whether they are still the same."""

    def evaluate(self, model: nn.Module, autocast: Autocast, *, trial: bool = False) -> Tensor:
        """Return the loss of each example. In a ``trial`` the batches must be those of the evaluation before.

        Where nothing trains in the model, all are computed anew only if those of the first batch have changed.

        Raises:
            GrowthError: There are no examples, or others than before (E344).
        """
        host = Host(model)
        device, expected = host.device, self._of_frozen
        self._of_frozen = expected if trial else None
        losses: list[Tensor] = []
        seen: list[Tensor] = []
        is_whole = False
        with (
            torch.no_grad(),
            host.evaluating(),
            RandomStream(self._seed, device),
            same_order(self._batches),
            autocast(),
        ):
            for batch in self._batches:
                moved = self._moved(batch, device)
                seen.append(fingerprint(moved, device))
                with noted(partial(self._describe, moved, len(seen))):
                    losses.append(self.losses_of(model, moved))
                is_whole = is_whole or len(losses[-1]) == 1 < Example.of(moved).size
                if not trial and expected is not None and torch.equal(losses[0], expected[: len(losses[0])]):
                    self._of_frozen = expected
                    return expected
        by_example = self._loss if isinstance(self._loss, partial) and self._loss.func is each_example else None
        if is_whole and sum(map(len, losses)) > len(losses) and by_example is not None:
            # As of tokens that a mask selects: an example would count as much as a whole batch beside it.
            self._loss = by_example.args[0]
            warn_of_reduction()
            return self.evaluate(model, autocast, trial=trial)
        if not losses:
            empty, read_once = ("has no examples", _HELD_OUT), ("can be read only once", REPEATABLE)
            defect, hint = empty if self._seen is None else read_once
            raise GrowthError(Problem("E344", f"the validation data {defect}", hint=hint))
        numbers = torch.stack(seen)
        if trial and (self._seen is None or not torch.equal(numbers, self._seen)):
            message = "the validation data yielded other examples than in the previous pass"
            hint = "Gains are measured example by example: use a DataLoader without augmentation, or a list of batches."
            raise GrowthError(Problem("E344", message, hint=hint))
        example_losses = torch.cat(losses)
        if trial and self._losses_seen not in (0, len(example_losses)):
            counts = f"{len(example_losses)} losses with a seed, {self._losses_seen} without"
            message = f"the loss function returned {counts}"
            hint = "Their number may not depend on the model: give examples that do not count a loss of 0."
            raise GrowthError(Problem("E342", message, hint=hint))
        self._seen, self._losses_seen = numbers, len(example_losses)
        self.order = hash((*numbers.tolist(), len(example_losses)))
        if not trial and not any(True for _ in _trained(host)):
            self._of_frozen = example_losses
        self._warn_of_few(len(example_losses), len(losses))
        return example_losses

    def leave_out(self, counterfactuals: Counterfactuals, autocast: Autocast) -> dict[int | None, Tensor]:
        """Return the loss of each example without each acting seed, by its number, and under None with all of them.

        What runs before a seed is not run again for it, if the model allows that.
        """
        host = Host(counterfactuals.model)
        with host.evaluating(), RandomStream(self._seed, host.device), same_order(self._batches), autocast():
            batches = ((self._moved(batch, host.device), None) for batch in self._batches)
            return counterfactuals.measure(batches, lambda losses, _: losses)

    def losses_of(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of each example of a batch, which is on the model's device."""
        return each_loss(self._loss(model, batch)).detach().float()

    @staticmethod
    def _moved(batch: Any, device: torch.device) -> Any:
        return batch if device.type == "cpu" else Example.of(batch).to(device)

    def beginning(self, batches: int) -> Validation:
        """Return the first batches of the latest evaluation, for a look that has little time."""
        first = Validation([], self._loss, 0)
        # In the order of every other pass, so that the batches are known again.
        with RandomStream(self._seed, torch.device("cpu")), same_order(self._batches):
            first._batches = list(islice(self._batches, batches))
        first._seen = None if self._seen is None else self._seen[:batches]
        return first

    @property
    def batches(self) -> int:
        """How many batches the latest evaluation had; 0 before the first one."""
        return 0 if self._seen is None else len(self._seen)

    def _describe(self, batch: Any, number: int) -> str:
        hint = " A data set yields single examples: pass a DataLoader." if self._is_data_set else ""
        return f"The loss function got batch {number} of the validation data: {kind_of(batch)}.{hint}"

    def _warn_of_few(self, examples: int, batches: int) -> None:
        """Log a warning, once, if the gates cannot judge by so few examples."""
        if not self._few and self._gates != "off" and examples < MIN_EXAMPLES_FOR_EVIDENCE:
            self._few = True
            message = f"the validation data has {examples} losses, and gates need {MIN_EXAMPLES_FOR_EVIDENCE} to judge"
            unreduced = "return one loss for each example, or validate in smaller batches"
            advice = unreduced if examples == batches else 'add validation data, or write growth={"gates": "off"}'
            log.warning("%s", Problem("E361", message, hint=f"No seed can be kept: {advice}."))

    def _warn_of_trained(self, batch: Any) -> None:
        """Log a warning, once, if a batch of the loop is one of the validation data (E372)."""
        seen = self._seen
        if seen is not None and not self._trained and bool((seen == fingerprint(batch, seen.device)).any()):
            self._trained = True
            message = "a batch of the validation data was passed to step(), as one that the loop trains on"
            hint = "Gains would be measured on data that seeds have learned. Hold out other examples."
            log.warning("%s", Problem("E372", message, hint=hint))

    def mean_loss(self, model: nn.Module, batch: Any, autocast: Autocast) -> Tensor:
        """Return the mean loss on a batch of the loop, in evaluation mode; a warning is logged if it is held out."""
        self._warn_of_trained(batch)
        with torch.no_grad(), Host(model).evaluating(), autocast():
            return each_loss(self._loss(model, batch)).detach().float().mean()


def _trained(host: Host) -> Iterator[nn.Parameter]:
    """Yield what trains in the network's own pass: nothing of seeds on branches, and of adapters that are off."""
    yield from (parameter for parameter in host.parameters().values() if parameter.requires_grad)
    for slot in host.slots if host.is_grafted else ():
        for seed in slot.seeds:
            if seed.acts and seed.presence is Presence.ACTING:
                yield from (parameter for parameter in seed.parameters() if parameter.requires_grad)


class LoaderGenerators:
    """The generators from which a DataLoader draws its order, and their states when this was made."""

    def __init__(self, batches: Iterable[Any]) -> None:
        of_batches = getattr(batches, "batch_sampler", None)
        holders = (batches, getattr(batches, "sampler", None), of_batches, getattr(of_batches, "sampler", None))
        generators = [getattr(holder, "generator", None) for holder in holders]
        self._states = [
            (generator, generator.get_state()) for generator in generators if isinstance(generator, torch.Generator)
        ]

    def rewind(self) -> None:
        """Put the states back, so that the next pass has the same order."""
        for generator, state in self._states:
            generator.set_state(state)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the states back after the ``with`` block."""
        try:
            yield
        finally:
            self.rewind()


@contextmanager
def same_order(batches: Iterable[Any]) -> Iterator[None]:
    """Put back all generators from which data draw, after the ``with`` block."""
    with LoaderGenerators(batches).kept(), same_random_numbers():
        yield


@contextmanager
def noted(describe: Callable[[], str]) -> Iterator[None]:
    """Add the note that ``describe`` returns, unless it is empty, to an error of the user's code, which is raised."""
    try:
        yield
    except Exception as error:
        if note := describe():
            error.add_note(note)
        raise


def kind_of(batch: Any) -> str:
    """Describe a batch for a message: ``tuple with tensors of shape (8, 3), (8,)``."""
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in Example.tensors_in(batch))
    return f"{type(batch).__name__} with tensors of shape {shapes}" if shapes else type(batch).__name__


def refuse_no_batches(batches: Any, split: str) -> None:
    """Raise GrowthError (E344) if data cannot be iterated, or only once, as a generator or a zip, or are one batch."""
    if isinstance(batches, Iterator) and type(batches).__module__ in ("builtins", "itertools"):
        message = f"the {split} data can be read only once. Received: {type(batches).__name__}"
        raise GrowthError(Problem("E344", message, hint=REPEATABLE))
    tensors = batches if isinstance(batches, tuple) and all(isinstance(part, Tensor) for part in batches) else ()
    if isinstance(batches, Mapping) or len({(part.shape, part.dtype) for part in tensors}) > 1:
        message = f"the {split} data is one batch, and must yield batches. Received: {kind_of(batches)}"
        raise GrowthError(Problem("E344", message, hint=f"Pass it in a list:  {split}=[batch]"))
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        message = f"the {split} data must yield batches. Received: {type(batches).__name__}"
        raise GrowthError(Problem("E344", message, hint=REPEATABLE))


def first_batch(batches: Iterable[Any]) -> Any:
    """Return the first batch. The pass is completed, since some loaders need that; random numbers are put back."""
    with torch.random.fork_rng(), same_order(batches):
        iterator = iter(batches)
        first = next(iterator, None)
        deque(iterator, maxlen=0)
        return first


def example_of(validation: Iterable[Any]) -> Any:
    """Return the first batch of the validation data.

    Raises:
        GrowthError: There is none (E344).
    """
    refuse_no_batches(validation, "validation")
    first = first_batch(validation)
    if first is None:
        raise GrowthError(Problem("E344", "the validation data has no examples", hint=_HELD_OUT))
    return first


def fingerprint(batch: Any, device: torch.device) -> Tensor:
    """Return a number that tells batches apart: the sum of a batch's first values, weighted by position."""
    first = next((tensor for tensor in Example.tensors_in(batch) if tensor.numel()), torch.zeros(1))
    flat = first.detach().reshape(-1)[:4096].double()
    return (flat * torch.arange(1, len(flat) + 1, device=flat.device, dtype=torch.float64)).nansum().to(device)


def counted_example(model: nn.Module, batch: Any, loss: Loss) -> tuple[Example, Loss, Tensor]:
    """Return a batch with the number of its examples, ``loss`` by example, and the losses, after a pass in evaluation.

    The single loss of a whole batch counts as one, and the rows of the batch as its examples.
    """
    with Host(model).evaluating():
        losses, by_example = loss(model, batch), loss
        example_losses, size = each_loss(losses), Example.of(batch).size
        if not losses.ndim:
            by_example = partial(each_example, loss)
            example_losses = each_loss(by_example(model, batch))
            if not are_of_examples(example_losses, loss, model, batch):
                by_example, example_losses = loss, each_loss(losses)
    if len(example_losses) > 1 or size < 1:
        size = len(example_losses)
    return Example(batch, size, loss), by_example, example_losses


_EXAMPLE_OF_A_LOSS = """It gets the model and a batch, and runs the model itself:
  def loss(model, batch):
      inputs, targets = batch
      return cross_entropy(model(inputs), targets, reduction="none")"""


def _runs_the_model(loss: Loss, model: nn.Module, batch: Any) -> bool:
    """Return whether a loss function that fails runs any part of the model before.

    It is called once more for that: hooks on every call would let compiled models be compiled again.
    """
    runs: list[bool] = []
    handles = [part.register_forward_pre_hook(lambda *_: runs.append(True)) for part in model.modules()]
    with suppress(Exception), torch.no_grad():
        loss(model, batch)
    for handle in handles:
        handle.remove()
    return bool(runs)


def checked_example(model: nn.Module, batch: Any, loss: Loss) -> tuple[Example, Loss]:
    """Return the example of a Gardener with the number of its rows, and ``loss`` by example, after a pass.

    Raises:
        GrowthError: The losses are no losses, not finite, or not computed from the model's parameters (E342).
    """
    note = f"The loss function got the example: {kind_of(batch)}."
    try:
        with noted(lambda: note):
            example, by_example, example_losses = counted_example(model, batch, loss)
    except EsperError:
        raise
    except Exception as error:
        if _runs_the_model(loss, model, batch):
            raise
        message = f"the loss function raised {type(error).__name__} before it ran the model: {error}"
        raise GrowthError(Problem("E342", message, hint=f"{_EXAMPLE_OF_A_LOSS}\n{note}")) from error
    trained = list(_trained(Host(model)))
    if any(parameter.grad is not None for parameter in trained):
        message, hint = "the loss function calls backward()", "Return the losses; the loop and the Gardener call it."
        raise GrowthError(Problem("E342", message, hint=hint))
    if trained and not example_losses.requires_grad:
        message = "the losses have no gradient, so that seeds cannot be trained by them"
        received = f"{example_losses.dtype}, shape {(*example_losses.shape,)}"
        hint = f"Compute them without no_grad, detach, item or argmax. Received: {received}"
        raise GrowthError(Problem("E342", message, hint=hint))
    if wrong := int((~example_losses.isfinite()).sum()):
        message = f"{wrong} of {len(example_losses)} losses of the example are not finite"
        hint = "Check inputs and loss; a mean over no labels is nan: divide by their number, 1 at least."
        raise GrowthError(Problem("E342", message, hint=hint))
    if len(example_losses) == 1 < example.size:
        warn_of_reduction()
    return example, by_example


def warn_of_reduction() -> None:
    """Log a warning that a loss function reduces the losses of a batch to one."""
    message = "the loss function returns one loss for a whole batch, which counts as a single observation"
    hint = 'Gates need longer. Return losses unreduced, as  cross_entropy(model(x), y, reduction="none")  does.'
    log.warning("%s", Problem("E360", message, hint=hint))
