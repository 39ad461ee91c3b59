"""How do numbers of any size become numbers of order one? By what was seen so far, and never in the middle of a round.

Both scales stand still while a round is played and while it is learnt from: what the gardener acted on is what it
learns from. They are told of the round afterwards.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from esper_core.leyline import CANDIDATE_COLUMNS, SLOT_COLUMNS
from esper_policies.ppo.encoding import WHOLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from esper_policies.ppo.encoding import Batch

LEAST = 0.05
"""Deviation below which a column is not spread any further."""

LEAST_RETURN = 1e-6
"""Size of returns below which they are not spread any further."""

BEYOND = 5.0
"""Deviations from the mean beyond which a column says no more."""

_AS_THEY_ARE = ("state_", "stage_", "may_", "kind_", "trait_", "identity", "is_new", "gate_opens")


class Columns:
    """Mean and deviation of the columns of one kind of rows. Flags, and what is one of several, stay as they are."""

    def __init__(self, names: Sequence[str]) -> None:
        flags = [name.endswith("?") or name.startswith(_AS_THEY_ARE) for name in names]
        self._spread = torch.tensor([not flag for flag in flags])
        self.count = 0.0
        self.mean = torch.zeros(len(names), dtype=torch.float64)
        self.squares = torch.zeros(len(names), dtype=torch.float64)
        self._on_device: tuple[Tensor, Tensor] | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """The rows, scaled."""
        if self.count < 2:
            return rows
        if self._on_device is None or self._on_device[0].device != rows.device:
            deviation = (self.squares / self.count).sqrt().clamp(min=LEAST)
            mean = torch.where(self._spread, self.mean, 0.0)
            self._on_device = (
                mean.float().to(rows.device),
                torch.where(self._spread, deviation, 1.0).float().to(rows.device),
            )
        mean, deviation = self._on_device
        return ((rows - mean) / deviation).clamp(-BEYOND, BEYOND)

    def learn(self, rows: Tensor) -> None:
        """Take in what was seen: rows, one behind the other."""
        if not len(rows):
            return
        rows = rows.detach().double().cpu()
        count, mean = len(rows), rows.mean(0)
        off, whole = mean - self.mean, self.count + count
        self.squares += ((rows - mean) ** 2).sum(0) + off**2 * (self.count * count / whole)
        self.mean += off * (count / whole)
        self.count, self._on_device = whole, None


class Scales:
    """Those of the three kinds of rows, and that of returns."""

    def __init__(self) -> None:
        self.whole, self.slots = Columns(WHOLE_COLUMNS), Columns(SLOT_COLUMNS)
        self.candidates = Columns(CANDIDATE_COLUMNS)
        self.returns = 1.0
        """Root of the mean square of returns."""
        self._seen, self._square = 0.0, 0.0

    def scaled(self, batch: Batch) -> Batch:
        """The batch as the network takes it."""
        return type(batch)(
            self.whole(batch.whole),
            self.slots(batch.slots),
            batch.slot_there,
            self.candidates(batch.candidates),
            batch.candidate_there,
            batch.names,
            batch.home,
            batch.legal,
        )

    def learn(self, batch: Batch) -> None:
        """Take in a round, after it was learnt from."""
        self.whole.learn(batch.whole)
        self.slots.learn(batch.slots[batch.slot_there])
        self.candidates.learn(batch.candidates[batch.candidate_there])

    def learn_returns(self, returns: Sequence[float]) -> float:
        """Take in what a round came to, before it is learnt from; by what factor the scale has grown."""
        before = self.returns if self._seen else None
        self._seen += len(returns)
        self._square += math.fsum(one * one for one in returns)
        if self._seen:
            self.returns = max(math.sqrt(self._square / self._seen), LEAST_RETURN)
        return 1.0 if before is None else self.returns / before

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All that it knows: plain, and tensors by name."""
        plain: dict[str, Any] = {"returns": self.returns, "seen": self._seen, "square": self._square}
        tensors: dict[str, Tensor] = {}
        for name in ("whole", "slots", "candidates"):
            own: Columns = getattr(self, name)
            plain[f"{name}_count"] = own.count
            tensors |= {f"{name}_mean": own.mean.clone(), f"{name}_squares": own.squares.clone()}
        return plain, tensors

    def load(self, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Know what others knew; ValueError where it is nothing that scales could know."""
        counts = ("whole_count", "slots_count", "candidates_count")
        numbers = [plain[name] for name in ("returns", "seen", "square", *counts)]
        if not all(type(one) in (int, float) and 0.0 <= one < math.inf for one in numbers) or not plain["returns"]:
            msg = f"scales that are no numbers from 0: {numbers}"
            raise ValueError(msg)
        self.returns, self._seen, self._square = plain["returns"], plain["seen"], plain["square"]
        for name in ("whole", "slots", "candidates"):
            own: Columns = getattr(self, name)
            own.count = plain[f"{name}_count"]
            mean, squares = (tensors[f"{name}_{what}"].double().clone() for what in ("mean", "squares"))
            if mean.shape != own.mean.shape or squares.shape != own.squares.shape:
                msg = f"scales of {tuple(mean.shape)} columns, not of {tuple(own.mean.shape)}"
                raise ValueError(msg)
            own.mean, own.squares = mean, squares
            own._on_device = None
