"""The network, and the distribution over decisions that its scores define.

The network encodes each row separately, pools all rows, and scores each row with the pooled features. It has as many
inputs as a row has columns, whatever the number of slots and blueprints. A known blueprint is described by its columns
and by a name embedding; the name is dropped at random in training, so that the columns suffice for a blueprint absent
from training. It has about 100,000 weights.

A decision is an op, then a slot, then a blueprint, each given the choices before. The probability of an op includes the
soft maximum of its candidates, so it does not grow with their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from esper_policies.observations import CANDIDATE_COLUMNS, SLOT_COLUMNS
from esper_policies.ppo.encoding import OPS, WHOLE_COLUMNS

if TYPE_CHECKING:
    from esper_policies.ppo.encoding import Batch


NEVER = -1e9
"""Logit of an illegal choice: finite, so that 0 times it stays 0."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The network's outputs for B environments: scores of ops and of candidates, and values.

    ops: (B, ops). candidates: (B, ops without WAIT, C). value: (B,).
    """

    ops: Tensor
    candidates: Tensor
    value: Tensor


@dataclass(frozen=True, slots=True)
class Chosen:
    """Decisions as indices: op (B,), and candidate (B,) or 0 if there is none."""

    op: Tensor
    candidate: Tensor

    def at(self, index: Tensor) -> Chosen:
        """Return some of the decisions."""
        return Chosen(self.op[index], self.candidate[index])


class Chances:
    """The distribution over decisions: op, then slot, then blueprint.

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
        has_legal = within.any(-1).float()
        self.ops = torch.cat([scores.ops[:, :1], scores.ops[:, 1:] + _soft_best(by_slot, has_legal)], 1)
        possible = torch.cat([torch.ones_like(legal[:, :1, 0]), legal.any(-1)], 1)
        self.ops = torch.log_softmax(self.ops.masked_fill(~possible, NEVER), 1)
        of_slot = torch.log_softmax(by_slot.masked_fill(has_legal == 0.0, NEVER), 2)
        whose = home[:, None].expand_as(legal)
        self.slots = of_slot.gather(2, whose)
        normaliser = torch.logsumexp(masked[:, :, None].masked_fill(within == 0.0, NEVER), 3)
        self.blueprints = (masked - normaliser.gather(2, whose)).masked_fill(~legal, NEVER)

    @property
    def joint(self) -> Tensor:
        """Log-probabilities (B, 1 + (ops − 1)·C): WAIT, then each op with each candidate; NEVER if illegal."""
        of_blueprint = (self.ops[:, 1:, None] + self.slots + self.blueprints).masked_fill(~self.legal, NEVER)
        return torch.cat([self.ops[:, :1], of_blueprint.flatten(1)], 1)

    def log_chance(self, chosen: Chosen) -> Tensor:
        """Return the log-probability of each decision."""
        index = (chosen.op - 1).clamp(min=0) * self.legal.shape[2] + chosen.candidate + 1
        index = torch.where(chosen.op == 0, 0, index)
        return self.joint.gather(1, index[:, None])[:, 0]

    def entropies(self) -> dict[str, Tensor]:
        """Return the expected entropy of each head in nats; they add up to the entropy of the whole decision."""
        ops = self.ops.exp()
        of_candidate = torch.where(self.legal, (self.slots + self.blueprints).exp(), 0.0)
        slots = -(of_candidate * torch.where(self.legal, self.slots, 0.0)).sum(2)
        blueprints = -(of_candidate * torch.where(self.legal, self.blueprints, 0.0)).sum(2)
        return {
            "op": -(ops * self.ops.clamp(min=NEVER)).sum(1),
            "slot": (ops[:, 1:] * slots).sum(1),
            "blueprint": (ops[:, 1:] * blueprints).sum(1),
        }

    def drawn(self, luck: Tensor) -> Chosen:
        """Draw a decision for each environment from ``luck``, (B,) numbers in [0, 1)."""
        return self._parted(_quantile(self.joint, luck))

    def best(self) -> Chosen:
        """Return the likeliest decision of each environment."""
        return self._parted(self.joint.argmax(1))

    def _parted(self, joint: Tensor) -> Chosen:
        wide = max(1, self.legal.shape[2])
        op = torch.where(joint == 0, 0, (joint - 1).div(wide, rounding_mode="floor") + 1)
        candidate = torch.where(joint == 0, 0, (joint - 1) % wide)
        return Chosen(op, candidate)


def _soft_best(scores: Tensor, present: Tensor) -> Tensor:
    """Return the log of the mean exponentiated score over valid entries, a soft maximum; NEVER if there are none."""
    count = present.sum(-1)
    total = torch.logsumexp(scores.masked_fill(present == 0.0, NEVER), -1)
    return torch.where(count > 0, total - count.clamp(min=1).log(), NEVER)


def _quantile(chances: Tensor, luck: Tensor) -> Tensor:
    """Return the index whose share of the cumulative probability contains ``luck``; never one of probability 0."""
    weights = chances.double().exp()
    sums = weights.cumsum(1)
    index = (sums <= (luck.double() * sums[:, -1])[:, None]).sum(1)
    last = (weights > 0.0).long().cumsum(1).argmax(1)
    return torch.minimum(index, last)


SMALL: Final = 0.1
"""Scale of the initial weights of names and of output layers."""


class PolicyNetwork(nn.Module):
    """A network that scores candidates and values states for batches of environments.

    width: width of its layers. pointer: width of the layer that scores candidates. names: most blueprints known by
    name. memory: whether a GRU remembers earlier decisions of the episode.
    """

    def __init__(self, *, width: int = 64, pointer: int = 48, names: int = 64, memory: bool = True) -> None:
        super().__init__()
        self.width = width
        self.whole = _layers(len(WHOLE_COLUMNS), width)
        self.slots = _layers(len(SLOT_COLUMNS), width)
        self.names = nn.Embedding(names + 1, 16, padding_idx=0)
        self.candidates = _layers(len(CANDIDATE_COLUMNS) + 16 + width, width)
        self.together = _layers(5 * width, width)
        self.memory = nn.GRU(width, width, batch_first=True) if memory else None
        self.ops = nn.Linear(width, len(OPS))
        self.asks = nn.Linear(width, pointer * (len(OPS) - 1))
        self.answers = nn.Sequential(_linear(2 * width, width), nn.Tanh(), _linear(width, pointer))
        self.alone = nn.Linear(width, len(OPS) - 1)
        self.value = nn.Sequential(_linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        with torch.no_grad():
            self.names.weight.normal_(0.0, SMALL)[0].zero_()
            for last in (self.ops, self.asks, self.alone):
                for parameter, share in zip(last.parameters(), (SMALL, 0.0), strict=True):
                    parameter.mul_(share)

    def forward(
        self, batch: Batch, before: Tensor | None, lengths: tuple[int, int] | None = None
    ) -> tuple[Scores, Tensor]:
        """Return scores and the new memory. before: (1, N, width), None at the start of episodes.

        lengths: (N, T), where the batch is N episodes of T decisions, one episode after the other; None: T is 1.
        """
        whole = self.whole(batch.whole)
        slots = self.slots(batch.slots)
        home = batch.home[:, :, None].expand(-1, -1, self.width)
        features = torch.cat([batch.candidates, self.names(batch.names), slots.gather(1, home)], 2)
        rows = self.candidates(features)
        parts = [whole, *_pooled(slots, batch.slot_there), *_pooled(rows, batch.candidate_there)]
        state = self.together(torch.cat(parts, 1))
        count, steps = lengths or (len(state), 1)
        memory = torch.zeros(1, count, self.width) if before is None else before
        if self.memory is not None:
            out, memory = self.memory(state.view(count, steps, -1), memory)
            state = state + out.reshape(len(state), -1)
        asks = self.asks(state).view(len(state), len(OPS) - 1, -1)
        answers = self.answers(torch.cat([rows, state[:, None].expand_as(rows)], 2))
        candidates = asks @ answers.transpose(1, 2) / asks.shape[-1] ** 0.5 + self.alone(rows).transpose(1, 2)
        return Scores(self.ops(state), candidates, self.value(state)[:, 0]), memory


def _layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(_linear(inputs, width), nn.Tanh(), _linear(width, width), nn.Tanh())


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Return an orthogonal layer that keeps the variance of its input before a tanh.

    Each layer with torch's default initialisation keeps a third of it or less, and four of them hide the differences
    between episodes.
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, nn.init.calculate_gain("tanh"))
    nn.init.zeros_(layer.bias)
    return layer


def _pooled(rows: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and maximum over the valid rows; 0 if there are none."""
    mask = present[:, :, None]
    count = mask.sum(1).clamp(min=1)
    mean = rows.masked_fill(~mask, 0.0).sum(1) / count
    greatest = rows.masked_fill(~mask, -1.0).amax(1) if rows.shape[1] else mean
    return mean, torch.where(mask.any(1), greatest, 0.0)
