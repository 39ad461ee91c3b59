"""What does the network look like? It sees each row by itself, all of them together, and scores each row again.

It has as many inputs as a row has columns, whatever the number of slots and blueprints. A blueprint that it knows is
known by its description and, beside that, by name; the name is left out now and then as it learns, so that the
description has to do for one that it never saw. About 100,000 weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from esper_core.leyline import CANDIDATE_COLUMNS, SLOT_COLUMNS
from esper_policies.ppo.choosing import Scores
from esper_policies.ppo.encoding import OPS, WHOLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_policies.ppo.encoding import Batch

SMALL: Final = 0.1
"""How large the first weights are that names and decisions begin with."""


class Gardener(nn.Module):
    """Scores and values for batches of environments.

    width: of its layers. pointer: of what scores candidates. names: blueprints that can be told by name. memory:
    whether it remembers earlier decisions of the episode, in a GRU. heads: for each further head how many options.
    """

    def __init__(
        self, *, width: int = 64, pointer: int = 48, names: int = 64, memory: bool = True, heads: Mapping[str, int]
    ) -> None:
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
        self.heads = nn.ModuleDict({head: nn.Linear(width, options) for head, options in heads.items()})
        with torch.no_grad():
            self.names.weight.normal_(0.0, SMALL)[0].zero_()
            for last in (self.ops, self.asks, self.alone, *self.heads.values()):
                for parameter, share in zip(last.parameters(), (SMALL, 0.0), strict=True):
                    parameter.mul_(share)

    def forward(
        self, batch: Batch, before: Tensor | None, lengths: tuple[int, int] | None = None
    ) -> tuple[Scores, Tensor]:
        """Scores, and what is remembered. before: (1, N, width), None at the beginning of episodes.

        lengths: (N, T), where the batch is N episodes of T decisions, one episode after the other; None: T is 1.
        """
        whole = self.whole(batch.whole)
        slots = self.slots(batch.slots)
        home = batch.home[:, :, None].expand(-1, -1, self.width)
        known = torch.cat([batch.candidates, self.names(batch.names), slots.gather(1, home)], 2)
        rows = self.candidates(known)
        parts = [whole, *_pooled(slots, batch.slot_there), *_pooled(rows, batch.candidate_there)]
        state = self.together(torch.cat(parts, 1))
        memory = torch.zeros(1, len(state), self.width) if before is None else before
        if self.memory is not None:
            count, steps = lengths or (len(state), 1)
            start = torch.zeros(1, count, self.width, device=state.device) if before is None else before
            out, memory = self.memory(state.view(count, steps, -1), start)
            state = state + out.reshape(len(state), -1)
        asks = self.asks(state).view(len(state), len(OPS) - 1, -1)
        answers = self.answers(torch.cat([rows, state[:, None].expand_as(rows)], 2))
        candidates = asks @ answers.transpose(1, 2) / asks.shape[-1] ** 0.5 + self.alone(rows).transpose(1, 2)
        details = {head: layer(state) for head, layer in self.heads.items()}
        return Scores(self.ops(state), candidates, details, self.value(state)[:, 0]), memory


def _layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(_linear(inputs, width), nn.Tanh(), _linear(width, width), nn.Tanh())


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer that lets what differs through at its size: as torch begins them each would leave a third of it or less.

    Behind four of them nothing would be left of a column that tells one episode from another, and nothing be learnt.
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, nn.init.calculate_gain("tanh"))
    nn.init.zeros_(layer.bias)
    return layer


def _pooled(rows: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and greatest of the rows that are there; 0 where none is."""
    some = there[:, :, None]
    count = some.sum(1).clamp(min=1)
    mean = rows.masked_fill(~some, 0.0).sum(1) / count
    greatest = rows.masked_fill(~some, -1.0).amax(1) if rows.shape[1] else mean
    return mean, torch.where(some.any(1), greatest, 0.0)
