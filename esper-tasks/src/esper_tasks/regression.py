"""What is a regression task made of? Three splits, and the squared error to learn by and to be judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import DataShape, Metric, Split, SplitName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from esper_core.leyline import SiteKind


class Regression:
    """Examples that each have one or several numbers to be told, trained on their squared error and judged by it.

    Formula: losses = scores = mean over the numbers of (output − target)². Where targets are in units of their own
    spread, 1.0 is what guessing their mean comes to, and 0.3 leaves 30 % of their variance unexplained.

    >>> import torch
    >>> four = Split(torch.zeros(4, 3), torch.ones(4, 2))
    >>> task = Regression({"train": four, "validation": four, "test": four}, "vector")
    >>> task.shape.outputs, task.scores(torch.zeros(4, 2), four.targets).tolist()
    (2, [1.0, 1.0, 1.0, 1.0])

    splits: for each of train, validation and test the whole split; targets are (N, numbers), float32. kind: what an
    example is.
    """

    metric: Metric
    shape: DataShape

    def __init__(self, splits: Mapping[SplitName, Split], kind: SiteKind) -> None:
        train = splits["train"]
        self.metric = Metric("squared error", "down")
        self.shape = DataShape(kind, tuple(train.inputs.shape[1:]), train.targets.shape[1])
        self._splits = dict(splits)

    def split(self, name: SplitName) -> Split:
        """One split, whole. Every call gives the same tensors: read them, do not write to them."""
        return self._splits[name]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared error of each example, the mean over its numbers."""
        return (outputs - targets).square().mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same as the losses."""
        return self.losses(outputs, targets)
