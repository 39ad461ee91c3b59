"""Which examples come next? An endless sequence of shuffled passes over the training data, drawn from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from esper_core.growth import heard, told

if TYPE_CHECKING:
    from esper_core.leyline.resuming import State


class BatchOrder:
    """Hands out indices of ``batch_size`` examples; each example comes once in a pass, and no batch is short."""

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._rest = torch.empty(0, dtype=torch.int64)

    def next(self) -> torch.Tensor:
        """The indices of the next batch, on the CPU."""
        batch = self.peek()
        self._rest = self._rest[self._batch_size :]
        return batch

    def peek(self) -> torch.Tensor:
        """The same, and it is still to be handed out: whoever goes on from the state as it is now gets it, too."""
        while len(self._rest) < self._batch_size:
            self._rest = torch.cat([self._rest, torch.randperm(self._examples, generator=self._generator)])
        return self._rest[: self._batch_size]

    def state(self) -> State:
        """What is left of the pass, and where the generator stands."""
        return told({"rest": self._rest, "generator": self._generator.get_state()})

    def load(self, state: State) -> None:
        """Hand out what another order would have, of as many examples and as large batches."""
        known = heard(state)
        self._rest = known["rest"]
        self._generator.set_state(known["generator"])
