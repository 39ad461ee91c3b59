"""Is a task fit to be trained on and judged by? Splits without overlap, targets that fit, losses for each example.

Each check takes a workshop, which builds the task once for all checks; AssertionError where a promise is broken.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor

from esper_core.leyline import DataShape, Metric, SplitName
from esper_core.leyline.specs import SITE_KINDS
from esper_testing.sites import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_core.leyline import Split, Task

SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation", "test")
DIMENSIONS: Final = {"image": (3,), "sequence": (2,), "vector": (1,), "tokens": (1, 2)}
"""How many dimensions an example may have. Tokens that are symbols by their number have one."""
SOME: Final = 64
"""Examples on which losses and scores are tried."""


class Workshop:
    """Builds the task twice, each when it is first asked for, under different global random numbers."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    @cached_property
    def task(self) -> Task:
        """The task."""
        return self._built(1)

    @cached_property
    def second(self) -> Task:
        """The task, built once more."""
        return self._built(2)

    def _built(self, seed: int) -> Task:
        with seeded(seed, elsewhere=seed):
            return cast("Task", self._factory())

    def splits(self) -> Iterator[tuple[SplitName, Split]]:
        """Each split with its name."""
        for name in SPLITS:
            yield name, self.task.split(name)


def splits_are_disjoint(workshop: Workshop) -> None:
    """No example of one split stands in another: not one input, to the last bit."""
    rows = {name: set(_rows(split.inputs)) for name, split in workshop.splits()}
    for name, own in rows.items():
        _demand(bool(own), f'the split "{name}" is empty')
        for other in SPLITS[SPLITS.index(name) + 1 :]:
            shared = len(own & rows[other])
            _demand(not shared, f'{shared} inputs of "{name}" stand in "{other}" too')


def is_seeded(workshop: Workshop) -> None:
    """Built twice, and asked twice, it has the same data, whatever the global generators say."""
    for name in SPLITS:
        first = workshop.task.split(name)
        for when, other in (("built", workshop.second.split(name)), ("asked", workshop.task.split(name))):
            for part in ("inputs", "targets"):
                one, two = getattr(first, part), getattr(other, part)
                same = one.shape == two.shape and torch.equal(one.nan_to_num(), two.nan_to_num())
                _demand(same, f'the {part} of "{name}" are others when it is {when} twice')


def inputs_are_finite(workshop: Workshop) -> None:
    """Inputs are torch.float32, which hosts compute in, and finite; tokens may be symbols, whole numbers from 0 on."""
    shape = workshop.task.shape
    symbols = shape.kind == "tokens" and len(shape.example) == 1
    for name, split in workshop.splits():
        if symbols:
            _demand(split.inputs.dtype is torch.int64, f'symbols of "{name}" are {split.inputs.dtype}, not torch.int64')
            _demand(int(split.inputs.min()) >= 0, f'symbols of "{name}" go below 0')
            continue
        _demand(split.inputs.dtype is torch.float32, f'inputs of "{name}" are {split.inputs.dtype}, not torch.float32')
        bad = int((~split.inputs.isfinite()).sum())
        _demand(bad == 0, f'{bad} numbers among the inputs of "{name}" are not finite')


def targets_fit(workshop: Workshop) -> None:
    """There is a target for each input: one of the classes, or finite numbers, one or as many as there are outputs."""
    outputs = workshop.task.shape.outputs
    for name, split in workshop.splits():
        inputs, targets = split.inputs, split.targets
        _demand(len(inputs) == len(targets), f'"{name}" has {len(inputs)} inputs and {len(targets)} targets')
        if targets.is_floating_point():
            fits = targets.ndim == 1 or targets.shape[1:] == (outputs,)
            _demand(fits, f'targets of "{name}" have the shape {tuple(targets.shape)} for {outputs} outputs')
            _demand(bool(targets.isfinite().all()), f'targets of "{name}" are not finite')
        else:
            low, high = int(targets.min()), int(targets.max())
            _demand(low >= 0 and high < outputs, f'classes of "{name}" go from {low} to {high}, for {outputs} outputs')


def losses_are_per_example(workshop: Workshop) -> None:
    """There is one finite loss for each example, and it can be learned from."""
    outputs, targets = _tried(workshop)
    losses = workshop.task.losses(outputs.requires_grad_(), targets)
    _demand_per_example(losses, len(targets), "losses")
    losses.mean().backward()
    learns = outputs.grad is not None and bool(outputs.grad.isfinite().all()) and bool(outputs.grad.any())
    _demand(learns, "losses give no finite gradient to the outputs")


def scores_are_per_example(workshop: Workshop) -> None:
    """There is one finite score for each example."""
    outputs, targets = _tried(workshop)
    _demand_per_example(workshop.task.scores(outputs, targets), len(targets), "scores")


def metric_says_what_is_better(workshop: Workshop) -> None:
    """The metric has a name and a direction, and outputs that are fitted to the targets are better by it."""
    metric = workshop.task.metric
    _demand(isinstance(metric, Metric) and bool(metric.name), f"a metric is a named Metric. Received: {metric!r}")
    _demand(metric.direction in ("up", "down"), f"a direction is up or down. Received: {metric.direction}")
    outputs, targets = _tried(workshop)
    at_first = float(workshop.task.scores(outputs, targets).double().mean())
    fitted = _fitted(workshop.task, outputs, targets)
    at_last = float(workshop.task.scores(fitted, targets).double().mean())
    better = metric.gain(at_last, at_first) > 0
    told = f"{metric.name} goes from {at_first:g} to {at_last:g} as the loss falls, and {metric.direction} is better"
    _demand(better, told)


def shape_agrees_with_data(workshop: Workshop) -> None:
    """What the task says of an example's kind and shape holds for the data."""
    shape = workshop.task.shape
    _demand(isinstance(shape, DataShape), f"a shape is a DataShape. Received: {shape!r}")
    _demand(shape.kind in SITE_KINDS, f"a kind is one of {', '.join(SITE_KINDS)}. Received: {shape.kind}")
    allowed = DIMENSIONS[shape.kind]
    told = f"an example of kind {shape.kind} has {' or '.join(map(str, allowed))} dimensions. Received: {shape.example}"
    _demand(len(shape.example) in allowed, told)
    _demand(shape.outputs >= 1, f"there is at least one output. Received: {shape.outputs}")
    for name, split in workshop.splits():
        found = tuple(split.inputs.shape[1:])
        _demand(found == tuple(shape.example), f'an example is told to be {shape.example}; in "{name}" it is {found}')


PROMISES: Final[tuple[Callable[[Workshop], None], ...]] = (
    splits_are_disjoint,
    is_seeded,
    inputs_are_finite,
    targets_fit,
    losses_are_per_example,
    scores_are_per_example,
    metric_says_what_is_better,
    shape_agrees_with_data,
)


def _demand(kept: bool, broken: str) -> None:
    if not kept:
        raise AssertionError(broken)


def _rows(inputs: Tensor) -> list[bytes]:
    return [row.tobytes() for row in inputs.detach().cpu().contiguous().flatten(1).numpy()]


def _tried(workshop: Workshop) -> tuple[Tensor, Tensor]:
    """Random outputs for some examples, and their targets; where a target is none of the classes, it is left out."""
    targets, outputs = workshop.task.split("train").targets, workshop.task.shape.outputs
    if targets.is_floating_point():
        shape: tuple[int, ...] = (outputs,)
    else:
        targets = targets[((targets >= 0) & (targets < outputs)).reshape(len(targets), -1).all(dim=1)]
        shape = (*targets.shape[1:], outputs)  # a class for each example, or for each token of it
    targets = targets[:SOME]
    with seeded(0):
        return torch.randn(len(targets), *shape), targets


def _demand_per_example(values: Tensor, examples: int, what: str) -> None:
    found = tuple(values.shape)
    _demand(found == (examples,), f"{what} have the shape {found}, not ({examples},)")
    _demand(bool(values.isfinite().all()), f"{what} of ordinary outputs are not finite")


def _fitted(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs, moved until their loss is small."""
    free = outputs.clone().requires_grad_()
    optimizer = torch.optim.Adam([free], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        task.losses(free, targets).mean().backward()
        optimizer.step()
    return free.detach()
