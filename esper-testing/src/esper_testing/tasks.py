"""Checks of tasks and of schedules.

A check of a task takes a ``TaskBuilds``, which builds the task twice for all checks together; a check of a schedule
takes its factory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor

from esper_core.leyline import DataShape, Metric, SplitName
from esper_core.leyline.specs import SITE_KINDS
from esper_core.plugins import Component
from esper_testing.checks import demand
from esper_testing.sites import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline import Schedule, Split, Task


SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation", "test")
DIMENSIONS: Final = {"image": (3,), "sequence": (2,), "vector": (1,), "tokens": (1, 2)}
"""Numbers of dimensions that an example may have; tokens that are integer symbols have one."""
SOME: Final = 64
"""Number of examples on which losses and scores are tried."""


class TaskBuilds:
    """Two builds of a task, made when they are first used, with different global RNG seeds."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    @cached_property
    def task(self) -> Task:
        """The first build."""
        return self._built(1)

    @cached_property
    def second(self) -> Task:
        """The second build."""
        return self._built(2)

    def splits(self) -> Iterator[tuple[SplitName, Split]]:
        """Yield each split of the first build with its name."""
        for name in SPLITS:
            yield name, self.task.split(name)

    def _built(self, seed: int) -> Task:
        with seeded(seed, elsewhere=seed):
            return cast("Task", self._factory())

    @property
    def as_in_a_run(self) -> Task:
        """The first build, with the checks that a run makes of what it returns."""
        return cast("Task", Component.attributed("task", self.task, "the task"))


def splits_are_disjoint(builds: TaskBuilds) -> None:
    """Check that no two splits have exactly equal inputs in common."""
    inputs = {name: split.inputs.detach().cpu().contiguous().flatten(1).numpy() for name, split in builds.splits()}
    rows = {name: {row.tobytes() for row in array} for name, array in inputs.items()}
    for name, split_rows in rows.items():
        demand(bool(split_rows), f'the split "{name}" is empty')
        for other in SPLITS[SPLITS.index(name) + 1 :]:
            shared = len(split_rows & rows[other])
            demand(not shared, f'{shared} inputs of "{name}" are also in "{other}"')


def is_seeded(builds: TaskBuilds) -> None:
    """Check that the data are the same when built or read twice, under any global RNG seed."""
    for name in SPLITS:
        first = builds.task.split(name)
        for when, other in (("built", builds.second.split(name)), ("asked", builds.task.split(name))):
            for part in ("inputs", "targets"):
                original, repeated = getattr(first, part), getattr(other, part)
                same = original.shape == repeated.shape and torch.equal(original.nan_to_num(), repeated.nan_to_num())
                demand(same, f'the {part} of "{name}" differ when it is {when} twice')


def inputs_are_finite(builds: TaskBuilds) -> None:
    """Check that inputs are finite float32; tokens may also be symbols, integers from 0 on."""
    shape = builds.task.shape
    symbols = shape.kind == "tokens" and len(shape.example) == 1
    for name, split in builds.splits():
        if symbols:
            demand(split.inputs.dtype is torch.int64, f'symbols of "{name}" are {split.inputs.dtype}, not torch.int64')
            demand(int(split.inputs.min()) >= 0, f'symbols of "{name}" go below 0')
            continue
        demand(split.inputs.dtype is torch.float32, f'inputs of "{name}" are {split.inputs.dtype}, not torch.float32')
        bad = int((~split.inputs.isfinite()).sum())
        demand(bad == 0, f'{bad} values in the inputs of "{name}" are not finite')


def targets_fit(builds: TaskBuilds) -> None:
    """Check that each input has a target: a class, or as many finite numbers as there are outputs, or one."""
    outputs = builds.task.shape.outputs
    for name, split in builds.splits():
        inputs, targets = split.inputs, split.targets
        demand(len(inputs) == len(targets), f'"{name}" has {len(inputs)} inputs and {len(targets)} targets')
        if targets.is_floating_point():
            fits = targets.ndim == 1 or targets.shape[1:] == (outputs,)
            demand(fits, f'targets of "{name}" have the shape {tuple(targets.shape)} for {outputs} outputs')
            demand(bool(targets.isfinite().all()), f'targets of "{name}" are not finite')
        else:
            low, high = int(targets.min()), int(targets.max())
            demand(low >= 0 and high < outputs, f'classes of "{name}" are {low} to {high}, for {outputs} outputs')


def losses_are_per_example(builds: TaskBuilds) -> None:
    """Check that there is one finite loss for each example, with a gradient."""
    outputs, targets = _tried(builds)
    losses = builds.as_in_a_run.losses(outputs.requires_grad_(), targets)
    demand(bool(losses.isfinite().all()), "losses of ordinary outputs are not finite")
    losses.mean().backward()
    learns = outputs.grad is not None and bool(outputs.grad.isfinite().all()) and bool(outputs.grad.any())
    demand(learns, "the losses have no finite gradient with respect to the outputs")


def scores_are_per_example(builds: TaskBuilds) -> None:
    """Check that there is one finite score for each example, which does not depend on the others of its batch."""
    outputs, targets = _tried(builds)
    scores = builds.as_in_a_run.scores(outputs, targets)
    demand(bool(scores.isfinite().all()), "scores of ordinary outputs are not finite")
    half = (len(targets) + 1) // 2
    alone = builds.as_in_a_run.scores(outputs[:half], targets[:half])
    demand(torch.allclose(alone, scores[:half]), f"{half} examples have other scores in a batch of {len(targets)}")


def metric_says_what_is_better(builds: TaskBuilds) -> None:
    """Check that the metric has a name and a direction, and improves when outputs are fitted to the targets."""
    metric = builds.task.metric
    demand(isinstance(metric, Metric) and bool(metric.name), f"metric must be a named Metric. Received: {metric!r}")
    demand(metric.direction in ("up", "down"), f"direction must be up or down. Received: {metric.direction}")
    outputs, targets = _tried(builds)
    fitted = outputs.clone().requires_grad_()
    optimizer = torch.optim.Adam([fitted], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        builds.task.losses(fitted, targets).mean().backward()
        optimizer.step()
    before_and_after = (outputs, fitted.detach())
    first, last = (float(builds.task.scores(predictions, targets).double().mean()) for predictions in before_and_after)
    course = f"{metric.name} goes from {first:g} to {last:g} as the loss falls, but {metric.direction} is better"
    demand(metric.gain(last, first) > 0, course)


def shape_agrees_with_data(builds: TaskBuilds) -> None:
    """Check that the declared kind and shape agree with the data."""
    shape = builds.task.shape
    demand(isinstance(shape, DataShape), f"shape must be a DataShape. Received: {shape!r}")
    demand(shape.kind in SITE_KINDS, f"kind must be one of {', '.join(SITE_KINDS)}. Received: {shape.kind}")
    allowed = DIMENSIONS[shape.kind]
    dimensions = f"{' or '.join(map(str, allowed))} dimensions"
    demand(len(shape.example) in allowed, f"examples of kind {shape.kind} have {dimensions}. Received: {shape.example}")
    demand(shape.outputs >= 1, f"there must be at least one output. Received: {shape.outputs}")
    for name, split in builds.splits():
        actual = tuple(split.inputs.shape[1:])
        demand(actual == tuple(shape.example), f'the declared shape is {shape.example}, but "{name}" has {actual}')


TASK_CHECKS: Final = (
    splits_are_disjoint,
    is_seeded,
    inputs_are_finite,
    targets_fit,
    losses_are_per_example,
    scores_are_per_example,
    metric_says_what_is_better,
    shape_agrees_with_data,
)


def _tried(builds: TaskBuilds) -> tuple[Tensor, Tensor]:
    """Return random outputs for some examples, and their targets; invalid classes are left out."""
    targets, outputs = builds.task.split("train").targets, builds.task.shape.outputs
    if targets.is_floating_point():
        shape: tuple[int, ...] = (outputs,)
    else:
        targets = targets[((targets >= 0) & (targets < outputs)).reshape(len(targets), -1).all(dim=1)]
        shape = (*targets.shape[1:], outputs)  # a class for each example, or for each token of it
    targets = targets[:SOME]
    with seeded(0):
        return torch.randn(len(targets), *shape), targets


Maker = Callable[[], Any]

CLOCKS: Final[tuple[tuple[int, int | None], ...]] = tuple(
    (step, steps) for steps in (1, 2, 7, 40, None) for step in (*range(min(steps or 40, 40)), 39)
)
"""Pairs of step and number of steps, some of them past the end."""


def gives_a_factor_for_every_step(make: Maker) -> None:
    """Check that the factor is finite and not negative, for short, long and open-ended episodes."""
    schedule = cast("Schedule", Component.attributed("schedule", make(), "the schedule"))
    for step, steps in CLOCKS:
        schedule.factor(step, steps)


def is_pure(make: Maker) -> None:
    """Check that the factor depends on the step only: not on the order of calls, nor on the instance."""
    first, second = make(), make()
    forward = [first.factor(*clock) for clock in CLOCKS]
    backward = [first.factor(*clock) for clock in reversed(CLOCKS)][::-1]
    afresh = [second.factor(*clock) for clock in CLOCKS]
    for (step, steps), *factors in zip(CLOCKS, forward, backward, afresh, strict=True):
        same = factors[0] == factors[1] == factors[2]
        demand(same, "a schedule returns {!r}, {!r} and {!r} for step {} of {}".format(*factors, step, steps))


def lets_something_be_learnt(make: Maker) -> None:
    """Check that the factor is above 0 in some step of an episode of 40 steps."""
    schedule: Schedule = make()
    demand(any(schedule.factor(step, 40) > 0 for step in range(40)), "a schedule returns 0 for every step")


SCHEDULE_CHECKS: Final = (gives_a_factor_for_every_step, is_pure, lets_something_be_learnt)
