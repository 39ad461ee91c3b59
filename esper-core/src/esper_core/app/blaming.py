"""Whose fault is it when a task fails in the middle of training? Its own: it is wrapped, and its package named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.trainer.answerable import answerable

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core.leyline.protocols import Split, SplitName, Task


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
        with answerable(self._label, "when it computed losses"):
            return self._task.losses(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's own scores."""
        with answerable(self._label, "when it computed scores"):
            return self._task.scores(outputs, targets)
