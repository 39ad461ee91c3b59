"""Returned values: check what components return where they return it, and name who returned it.

A wrong value would otherwise fail, or give wrong results, in code that belongs to somebody else. The checks take
microseconds and read nothing from a GPU. ``refuse`` raises E231 with the component, its package and the line of its
method.
"""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

from esper_core.leyline.errors import PluginError, Problem, one_line
from esper_core.plugins.isolation import attributed_to, definition_of
from esper_core.plugins.process_state import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from esper_core.leyline.protocols import Schedule, Split, SplitName, Task


MOST_OF_A_SHARE: Final = 1.001
"""Above the largest mean of shares, and what is rounded of it."""


def refuse(component: str, method: Callable[..., Any], returned: str, hint: str) -> NoReturn:
    """Raise PluginError for what a method of a component returned, at the place of the method."""
    raise PluginError(Problem("E231", f"{component} returned {returned}", *definition_of(method), hint=hint))


def describe_value(value: Any) -> str:
    """Describe a value in a few words: type and shape of a tensor, and what others print."""
    is_array = hasattr(value, "dtype")
    return f"{value.dtype} of shape {tuple(value.shape)}" if is_array else one_line(reprlib.repr(value))


def finite(value: object) -> float | None:
    """Return a number as a float; None if the value is no number, not finite, or larger than a float can be."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class AttributedSchedule:
    """A schedule whose errors, and factors that are not numbers of 0 or more, are attributed to its package."""

    def __init__(self, schedule: Schedule, label: str) -> None:
        self._component, self._label = schedule, label

    def factor(self, step: int, steps: int | None) -> float:
        """Return the schedule's factor on the learning rate."""
        with attributed_to(self._label, f"in step {step} of {steps}", Scope.SETTINGS):
            returned = self._component.factor(step, steps)
        if (factor := finite(returned)) is None or factor < 0.0:
            what = f"the factor {describe_value(returned)} for step {step} of {steps}"
            refuse(self._label, self._component.factor, what, "A factor on the learning rate is a number, 0 or more.")
        return factor


class AttributedTask:
    """A task whose errors, and losses and scores that are not one number for each example, are attributed to it."""

    def __init__(self, task: Task, label: str) -> None:
        self._component, self._label = task, label
        self.metric = task.metric
        self.shape = task.shape

    def split(self, name: SplitName) -> Split:
        """Return a split of the task."""
        with attributed_to(self._label, f'when it returned its split "{name}"'):
            return self._component.split(name)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example."""
        losses = self._per_example("losses", outputs, targets)
        if outputs.requires_grad and not losses.requires_grad:
            hint = "Compute them from the outputs by operations of torch, and detach nothing."
            refuse(self._label, self._component.losses, "losses without a gradient", hint)
        return losses

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each example."""
        return self._per_example("scores", outputs, targets)

    def require_sound(self, scores: Tensor, losses: Tensor) -> None:
        """Refuse scores of a whole split that are not finite, unless its losses are not, which the governor sees.

        Those of a share may not be percentages. On a GPU nothing is checked, since reading the answer would stop
        everything until the device is done.
        """
        if scores.device.type != "cpu":
            return
        if not scores.isfinite().all() and losses.isfinite().all():
            hint = "The metric would be unknown. Return a finite number for each example."
            refuse(self._label, self._component.scores, "scores that are not finite, where its losses are", hint)
        if self.metric.is_share and (mean := scores.mean()) > MOST_OF_A_SHARE:
            hint = 'With the unit "%" they are shares, shown in percent, and prices are hundredths: return 0.0 to 1.0.'
            refuse(self._label, self._component.scores, f"scores whose mean is {mean:.4g}", hint)

    def _per_example(self, name: str, outputs: Tensor, targets: Tensor) -> Tensor:
        import torch  # imported late: commands that only look at plugins do without it

        method = getattr(self._component, name)
        arguments = [tensor for tensor in (outputs, targets) if not tensor.is_inference()]  # those have no versions
        versions = [tensor._version for tensor in arguments]
        with attributed_to(self._label, f"when it computed {name}", Scope.SETTINGS):
            values = method(outputs, targets)
        if versions != [tensor._version for tensor in arguments]:
            # Targets are views of the data, which all networks share.
            hint = "Change copies of them, such as  targets.clone()"
            refuse(self._label, method, f"{name} after it changed the outputs or the targets that it got", hint)
        # A mean over a wrong number of values is a wrong result without an error, and integers have no mean.
        if isinstance(values, torch.Tensor) and values.is_floating_point() and values.shape == targets.shape[:1]:
            return values
        what = f"{describe_value(values)} as {name} of {len(targets)} examples"
        refuse(self._label, method, what, f"Task.{name} returns a tensor with one floating-point number for each.")
