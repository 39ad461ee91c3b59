"""How do scores become a decision? Op, then slot, then blueprint, then how: each by what was chosen before it.

The chance of an op counts what it could be done to: as good as the best of its candidates, however many there are. A
head that an op does not read takes no part: neither in how likely a decision was nor in how undecided it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esper_core.leyline import ARGUMENTS, Op
from esper_policies.ppo.encoding import OPS

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADVANCE = OPS.index(Op.ADVANCE)

NEVER = -1e9
"""The logarithm of a chance that there is none of: finite, so that nothing times nothing stays nothing."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the network says of B environments: of each op by itself, and with each candidate; of each way to do it.

    ops: (B, ops). candidates: (B, ops without WAIT, C). details: for each head (B, options). value: (B,).
    """

    ops: Tensor
    candidates: Tensor
    details: Mapping[str, Tensor]
    value: Tensor


@dataclass(frozen=True, slots=True)
class Chosen:
    """Decisions by their numbers: op (B,), candidate (B,) where there is one, else 0, and of each head its option."""

    op: Tensor
    candidate: Tensor
    details: Mapping[str, Tensor]

    def at(self, index: Tensor) -> Chosen:
        """Some of them."""
        return Chosen(self.op[index], self.candidate[index], {head: one[index] for head, one in self.details.items()})


class Chances:
    """How likely each decision is.

    scores: of the network. legal: (B, ops without WAIT, C). home: (B, C) the slot of each candidate.
    ``ops`` (B, ops), ``slots`` (B, ops − 1, C) and ``blueprints`` (B, ops − 1, C) are logarithms: of the op, of the
    candidate's slot for the op, and of the candidate within its slot.
    """

    def __init__(self, scores: Scores, legal: Tensor, home: Tensor) -> None:
        self.legal = legal
        masked = scores.candidates.masked_fill(~legal, NEVER)
        slots = int(home.max()) + 1 if home.numel() else 1
        inside = torch.nn.functional.one_hot(home, slots).bool().transpose(1, 2)  # (B, S, C)
        within = (inside[:, None] & legal[:, :, None]).float()  # (B, ops, S, C)
        by_slot = _soft_best(masked[:, :, None].expand_as(within), within)  # (B, ops, S)
        there = within.any(-1).float()
        self.ops = torch.cat([scores.ops[:, :1], scores.ops[:, 1:] + _soft_best(by_slot, there)], 1)
        possible = torch.cat([torch.ones_like(legal[:, :1, 0]), legal.any(-1)], 1)
        self.ops = torch.log_softmax(self.ops.masked_fill(~possible, NEVER), 1)
        of_slot = torch.log_softmax(by_slot.masked_fill(there == 0.0, NEVER), 2)
        whose = home[:, None].expand_as(legal)
        self.slots = of_slot.gather(2, whose)
        whole = torch.logsumexp(masked[:, :, None].masked_fill(within == 0.0, NEVER), 3)
        self.blueprints = (masked - whole.gather(2, whose)).masked_fill(~legal, NEVER)
        self.details = {head: torch.log_softmax(one, 1) for head, one in scores.details.items()}

    @property
    def joint(self) -> Tensor:
        """(B, 1 + (ops − 1)·C): WAIT, then each op with each candidate; what is not possible has next to no chance."""
        both = (self.ops[:, 1:, None] + self.slots + self.blueprints).masked_fill(~self.legal, NEVER)
        return torch.cat([self.ops[:, :1], both.flatten(1)], 1)

    def log_chance(self, chosen: Chosen) -> Tensor:
        """Of each decision, over all heads that it reads."""
        place = (chosen.op - 1).clamp(min=0) * self.legal.shape[2] + chosen.candidate + 1
        place = torch.where(chosen.op == 0, 0, place)
        total = self.joint.gather(1, place[:, None])[:, 0]
        for head, chances in self.details.items():
            own = chances.gather(1, chosen.details[head][:, None])[:, 0]
            total = total + torch.where(reads(head, chosen.op), own, 0.0)
        return total

    def entropies(self) -> dict[str, Tensor]:
        """By head, in nats, in expectation over what comes before it: they add up to that of the whole decision."""
        ops = self.ops.exp()
        of_candidate = torch.where(self.legal, (self.slots + self.blueprints).exp(), 0.0)
        slots = -(of_candidate * torch.where(self.legal, self.slots, 0.0)).sum(2)
        blueprints = -(of_candidate * torch.where(self.legal, self.blueprints, 0.0)).sum(2)
        found = {
            "op": -(ops * self.ops.clamp(min=NEVER)).sum(1),
            "slot": (ops[:, 1:] * slots).sum(1),
            "blueprint": (ops[:, 1:] * blueprints).sum(1),
        }
        for head, chances in self.details.items():
            read = torch.tensor([head in ARGUMENTS[op] for op in OPS], device=ops.device)
            found[head] = (ops * read).sum(1) * -(chances.exp() * chances).sum(1)
        return found

    def drawn(self, luck: Tensor) -> Chosen:
        """A decision for each environment; luck: (B, 1 + heads) numbers in [0, 1), one for each thing to choose."""
        return self._parted(_quantile(self.joint, luck[:, 0]), lambda chances, n: _quantile(chances, luck[:, 1 + n]))

    def best(self, sure: float = 0.0) -> Chosen:
        """The likeliest decision of each environment; blending in only where that is as likely as ``sure``."""
        joint, wide = self.joint, self.legal.shape[2]
        blends = (torch.arange(joint.shape[1], device=joint.device) - 1).div(
            max(1, wide), rounding_mode="floor"
        ) + 1 == _ADVANCE
        unsure = self.ops[:, _ADVANCE].exp() < sure
        joint = joint.masked_fill(unsure[:, None] & blends, NEVER)
        return self._parted(joint.argmax(1), lambda chances, n: chances.argmax(1))

    def _parted(self, joint: Tensor, choose: _Choose) -> Chosen:
        wide = max(1, self.legal.shape[2])
        op = torch.where(joint == 0, 0, (joint - 1).div(wide, rounding_mode="floor") + 1)
        candidate = torch.where(joint == 0, 0, (joint - 1) % wide)
        details = {head: choose(chances, n) for n, (head, chances) in enumerate(self.details.items())}
        return Chosen(op, candidate, details)


if TYPE_CHECKING:
    from collections.abc import Callable

    _Choose = Callable[[Tensor, int], Tensor]


def reads(head: str, op: Tensor) -> Tensor:
    """Whether each op reads what the head says."""
    return torch.tensor([head in ARGUMENTS[one] for one in OPS], device=op.device)[op]


def _soft_best(scores: Tensor, there: Tensor) -> Tensor:
    """The mean of the scores in the exponent, over those that are there: the best of them, softly. NEVER: none is."""
    count = there.sum(-1)
    total = torch.logsumexp(scores.masked_fill(there == 0.0, NEVER), -1)
    return torch.where(count > 0, total - count.clamp(min=1).log(), NEVER)


def _quantile(chances: Tensor, luck: Tensor) -> Tensor:
    """Where ``luck`` falls when the chances are laid side by side; never on one that is next to none."""
    weights = chances.double().exp()
    sums = weights.cumsum(1)
    place = (sums <= (luck.double() * sums[:, -1])[:, None]).sum(1)
    last = (weights > 0.0).long().cumsum(1).argmax(1)
    return torch.minimum(place, last)
