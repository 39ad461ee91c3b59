"""What is a classification task made of? Three splits, cross-entropy, accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from esper_core.leyline import DataShape, Metric, Split, SplitName

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from esper_core.leyline import SiteKind


class Classification:
    """Examples that each belong to one of ``classes`` classes, trained on cross-entropy and judged by accuracy.

    Formula: losses = −log softmax(outputs)[target] in nats; scores = 1.0 where the largest output is the target's.

    >>> four = Split(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> Classification({"train": four, "validation": four, "test": four}, "vector", classes=2).shape
    DataShape(kind='vector', example=(3,), outputs=2)

    splits: for each of train, validation and test the whole split. kind: what an example is.
    """

    metric: Metric
    shape: DataShape

    def __init__(self, splits: Mapping[SplitName, Split], kind: SiteKind, *, classes: int) -> None:
        self.metric = Metric("accuracy", "up", "%")
        self.shape = DataShape(kind, tuple(splits["train"].inputs.shape[1:]), classes)
        self._splits = dict(splits)

    def split(self, name: SplitName) -> Split:
        """One split, whole. Every call gives the same tensors: read them, do not write to them."""
        return self._splits[name]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each example, in nats."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1.0 for each example that was told right, else 0.0. An output with a NaN in it is never right."""
        right = outputs.argmax(dim=-1) == targets
        return (right & ~outputs.isnan().any(dim=-1)).to(torch.float32)


def as_split(inputs: NDArray[np.float64], targets: NDArray[np.int64]) -> Split:
    """A split of float32 inputs and int64 targets out of arrays, which are copied."""
    return Split(torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.int64))
