"""How does the network see an environment? As three tables of numbers, and what is possible with each of their rows.

Everything here is counted from observation and mask alone, and from the decision before: so it can be counted again
when the gardener learns, to the same bits, and nothing has to be kept beside the rollout.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from esper_core.leyline import CANDIDATE_COLUMNS, GLOBAL_COLUMNS, SLOT_COLUMNS, Action, Op, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from esper_core.leyline import ActionMask, ActionSpace, Observation, Rows

OPS: Final = (Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.RETARGET, Op.PRUNE, Op.FOSSILISE)
"""The order of the ops in every table."""

TRENDS: Final = ("train_loss", "validation_loss", "metric", "metric_over_twin")
"""Columns of the whole of which it is seen, too, by how much they changed since the decision before."""

TREND_COLUMNS: Final = (*(f"trend_{name}" for name in TRENDS), "trend?")
WHOLE_COLUMNS: Final = (*GLOBAL_COLUMNS, *TREND_COLUMNS)

_AT: Final = tuple(GLOBAL_COLUMNS.index(name) for name in TRENDS)
_MAY: Final = tuple(CANDIDATE_COLUMNS.index(f"may_{op.value}") for op in OPS[1:])


@dataclass(frozen=True, slots=True)
class Seen:
    """One environment at one decision: the whole with its trends, and the rows."""

    whole: tuple[float, ...]
    rows: Rows

    @property
    def levels(self) -> tuple[float, ...]:
        """What the next decision's trends are counted from."""
        return tuple(self.rows.whole[at] for at in _AT)

    @property
    def candidates(self) -> tuple[tuple[str, str], ...]:
        """Slot and blueprint of each row."""
        return self.rows.candidate_names

    def action(self, op: Op, candidate: int) -> Action:
        """What an op does to a candidate, its details left as they are by default."""
        if op is Op.WAIT:
            return Action()
        slot, blueprint = self.candidates[candidate]
        return Action(op, slot, blueprint if op in (Op.GERMINATE, Op.ADVANCE, Op.PRUNE) else None)

    def find(self, action: Action) -> int:
        """The row that an action is about: of several seeds the first that can be meant; -1: none, or to wait."""
        if action.op is Op.WAIT:
            return -1
        may = _MAY[OPS.index(action.op) - 1]
        for place, (slot, blueprint) in enumerate(self.candidates):
            meant = slot == action.slot and action.blueprint in (None, blueprint)
            if meant and self.rows.candidates[place][may] == 1.0:
                return place
        return -1


def see(space: ActionSpace, observation: Observation, mask: ActionMask, levels: Sequence[float] | None) -> Seen:
    """What there is to see. levels: of what was seen at the decision before in the same episode; None at the first."""
    rows = rows_of(space, observation, mask)
    if levels is None:
        return Seen((*rows.whole, *(0.0 for _ in _AT), 1.0), rows)
    trends = (rows.whole[at] - before for at, before in zip(_AT, levels, strict=True))
    return Seen((*rows.whole, *trends, 0.0), rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Several environments side by side, padded: B environments, S slots, C candidates.

    names: number of each candidate's blueprint among those that the gardener knows by name; 0: not by name.
    home: the slot of each candidate. legal: (B, ops, C), without WAIT, which always is. Padding is legal for nothing.
    """

    whole: Tensor
    slots: Tensor
    slot_there: Tensor
    candidates: Tensor
    candidate_there: Tensor
    names: Tensor
    home: Tensor
    legal: Tensor

    def __len__(self) -> int:
        return len(self.whole)

    def to(self, device: torch.device) -> Batch:
        """The same there."""
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))

    def at(self, index: Tensor) -> Batch:
        """Some of the environments."""
        return Batch(*(getattr(self, name)[index] for name in self.__slots__))

    def with_names(self, names: Tensor) -> Batch:
        """The same with other names."""
        return replace(self, names=names)


def batch_of(seen: Sequence[Seen], numbers: Sequence[Sequence[int]], least: tuple[int, int] = (1, 1)) -> Batch:
    """The tables of several environments. numbers: of each candidate's name. least: slots and candidates, at least."""
    slots = max(least[0], *(len(one.rows.slots) for one in seen))
    wide = max(least[1], *(len(one.candidates) for one in seen))
    homes = [[one.rows.slot_names.index(slot) for slot, _ in one.candidates] for one in seen]
    candidates = _table([one.rows.candidates for one in seen], wide, len(CANDIDATE_COLUMNS))
    return Batch(
        whole=torch.tensor([one.whole for one in seen]),
        slots=_table([one.rows.slots for one in seen], slots, len(SLOT_COLUMNS)),
        slot_there=_there([len(one.rows.slots) for one in seen], slots),
        candidates=candidates,
        candidate_there=_there([len(one.candidates) for one in seen], wide),
        names=torch.tensor([[*own, *[0] * (wide - len(own))] for own in numbers]),
        home=torch.tensor([[*own, *[0] * (wide - len(own))] for own in homes]),
        legal=(candidates[:, :, list(_MAY)] == 1.0).transpose(1, 2).contiguous(),
    )


def _table(rows: Sequence[Sequence[Sequence[float]]], high: int, wide: int) -> Tensor:
    """The rows of several environments, padded with rows of zeros."""
    numbers = array("f")
    for own in rows:
        for row in own:
            numbers.extend(row)
        numbers.extend([0.0] * (wide * (high - len(own))))
    return torch.frombuffer(numbers, dtype=torch.float32).view(len(rows), high, wide).clone()


def _there(counts: Sequence[int], high: int) -> Tensor:
    return torch.arange(high)[None] < torch.tensor(counts)[:, None]
