"""What the networks of the experiment have in common: a model, and batches whose last tensor has the classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

Batch = tuple[Tensor, ...]
"""Inputs, and the classes."""


@dataclass(frozen=True)
class World:
    """The network and the data of one RNG seed, in the order of a training; ``rate`` is that of adapters and head."""

    model: nn.Module
    train: list[Batch]
    validation: list[Batch]
    test: list[Batch]
    rate: float = 3e-3


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of each example."""
    *inputs, classes = batch
    return nn.functional.cross_entropy(model(*inputs), classes, reduction="none")


def batches_of(columns: Batch, rows: Tensor, size: int) -> list[Batch]:
    """Return these rows as batches."""
    return [tuple(column[chosen] for column in columns) for chosen in rows.split(size)]
