"""Whose fault is it when a task, or a schedule, fails in training? Its own: it is wrapped, and its package named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from esper_core.leyline.errors import PluginError, Problem
from esper_core.trainer.answerable import answerable, busily_answerable

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core.leyline.protocols import Schedule, Split, SplitName, Task


class AnswerableSchedule:
    """A schedule that answers for what it raises, and for a factor that is none. ``label`` says whose it is."""

    def __init__(self, schedule: Schedule, label: str) -> None:
        self._schedule = schedule
        self._label = label

    def factor(self, step: int, steps: int | None) -> float:
        """The schedule's own factor."""
        with busily_answerable(self._label, f"in step {step} of {steps}"):
            factor = float(self._schedule.factor(step, steps))
        if not math.isfinite(factor) or factor < 0.0:
            message = f"{self._label} gave the factor {factor} for step {step} of {steps}"
            raise PluginError(Problem("E231", message, hint="A factor on the learning rate is a number, 0 or more."))
        return factor


class AnswerableTask:
    """A task that answers for what it raises. ``label`` says whose it is."""

    def __init__(self, task: Task, label: str) -> None:
        self._task = task
        self._label = label
        with answerable(label, "when asked for its metric and shape"):
            self.metric = task.metric
            self.shape = task.shape

    def split(self, name: SplitName) -> Split:
        """The task's own split."""
        with answerable(self._label, f'when asked for its split "{name}"'):
            return self._task.split(name)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's own losses."""
        with busily_answerable(self._label, "when it computed losses"):
            return self._task.losses(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's own scores."""
        with busily_answerable(self._label, "when it computed scores"):
            return self._task.scores(outputs, targets)
