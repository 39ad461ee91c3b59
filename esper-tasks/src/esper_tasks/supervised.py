"""Tasks with one target per example, and how their data are split into train, validation and test."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from esper_core.leyline import DataShape, Metric, Split, SplitName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from esper_core.leyline import SiteKind

    Integers = NDArray[np.int64]


class Supervised:
    """The splits of a task, with its metric and the shape of its data."""

    def __init__(self, splits: Mapping[SplitName, Split], metric: Metric, shape: DataShape) -> None:
        self.metric, self.shape = metric, shape
        self._splits = dict(splits)

    def split(self, name: SplitName) -> Split:
        """Return one whole split. Every call returns the same tensors: do not write to them."""
        return self._splits[name]


class Classification(Supervised):
    """Examples that each belong to one of ``classes`` classes, trained on cross-entropy and judged by accuracy.

    Formula: losses = −log softmax(outputs)[target] in nats; scores = 1.0 where the largest output is the target's.

    >>> four = Split(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> Classification({"train": four, "validation": four, "test": four}, "vector", classes=2).shape
    DataShape(kind='vector', example=(3,), outputs=2)

    splits: the splits train, validation and test. kind: kind of the inputs.
    """

    def __init__(self, splits: Mapping[SplitName, Split], kind: SiteKind, *, classes: int) -> None:
        shape = DataShape(kind, tuple(splits["train"].inputs.shape[1:]), classes)
        super().__init__(splits, Metric("accuracy", "up", "%"), shape)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each example, in nats."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1.0 for each example that is classified correctly, else 0.0; a NaN output is never correct."""
        right = outputs.argmax(dim=-1) == targets
        return (right & ~outputs.isnan().any(dim=-1)).to(torch.float32)


def as_split(inputs: NDArray[np.float64], targets: NDArray[np.int64]) -> Split:
    """Build a split of float32 inputs and int64 targets from arrays, which are copied."""
    return Split(torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.int64))


class Regression(Supervised):
    """Examples with one or several numbers to predict, trained and measured by their squared error.

    Formula: losses = scores = mean over the numbers of (output − target)². Where targets are in units of their own
    spread, 1.0 is the score of guessing their mean, and 0.3 leaves 30 % of their variance unexplained.

    >>> import torch
    >>> four = Split(torch.zeros(4, 3), torch.ones(4, 2))
    >>> task = Regression({"train": four, "validation": four, "test": four}, "vector")
    >>> task.shape.outputs, task.scores(torch.zeros(4, 2), four.targets).tolist()
    (2, [1.0, 1.0, 1.0, 1.0])

    splits: the splits train, validation and test; targets are (N, numbers), float32. kind: kind of the inputs.
    """

    def __init__(self, splits: Mapping[SplitName, Split], kind: SiteKind) -> None:
        train = splits["train"]
        shape = DataShape(kind, tuple(train.inputs.shape[1:]), train.targets.shape[1])
        super().__init__(splits, Metric("squared error", "down"), shape)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of each example, averaged over its numbers."""
        return (outputs - targets).square().mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses, which are also the metric."""
        return self.losses(outputs, targets)


def parted(
    inputs: NDArray[np.float64], targets: NDArray[np.int64], validation: int | None = None, test: int | None = None
) -> dict[SplitName, Split]:
    """Split into training, validation and test examples, in this order; by default two thirds, a sixth and a sixth.

    >>> import numpy as np
    >>> {name: len(split) for name, split in parted(np.zeros((60, 2)), np.zeros(60, dtype=np.int64)).items()}
    {'train': 40, 'validation': 10, 'test': 10}
    """
    sixth = len(targets) // 6
    test_from = len(targets) - (sixth if test is None else test)
    validation_from = test_from - (sixth if validation is None else validation)
    return {
        "train": as_split(inputs[:validation_from], targets[:validation_from]),
        "validation": as_split(inputs[validation_from:test_from], targets[validation_from:test_from]),
        "test": as_split(inputs[test_from:], targets[test_from:]),
    }


def drawn_parts(inputs: NDArray[Any], *, validation: int, test: int, seed: int) -> dict[SplitName, Integers]:
    """Return the rows of each split, in random order; bit-identical inputs are always in the same split.

    Equal inputs on the border between two splits all go to the held-out one.

    >>> parts = drawn_parts(np.arange(10)[:, None] // 2, validation=1, test=2, seed=0)
    >>> {name: len(rows) for name, rows in parts.items()}
    {'train': 6, 'validation': 2, 'test': 2}

    inputs: examples along the first dimension. validation, test: least numbers of examples. seed: RNG seed of the draw.
    """
    group = _groups(inputs)
    lot = np.random.RandomState(seed).permutation(int(group.max(initial=-1)) + 1)
    order = np.argsort(lot[group], kind="stable")
    test_until = _end_of_group(group[order], test)
    validation_until = _end_of_group(group[order], test_until + validation)
    return {
        "train": order[validation_until:],
        "validation": order[test_until:validation_until],
        "test": order[:test_until],
    }


def _groups(inputs: NDArray[Any]) -> Integers:
    """Return a number for each example, the same for equal ones."""
    numbers: dict[bytes, int] = {}
    rows = (blake2b(row.tobytes(), digest_size=16).digest() for row in inputs)
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)


def _end_of_group(group: Integers, end: int) -> int:
    """Return the first index from ``end`` on at which another group begins."""
    while 0 < end < len(group) and group[end] == group[end - 1]:
        end += 1
    return end
