"""Operations: the floating-point operations that one network has cost, discarded work included.

Forward passes of host and blocks are counted once, before the run. Training on a batch costs three times as much: the
forward pass, the gradients of activations, and those of parameters. In the shadow the host's parameters get none, so
there it costs twice as much. That counts the first layer's gradient of the inputs, which no pass computes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from esper_core.growth import Garden, Seed
    from esper_core.growth.slots import Slot
    from esper_core.leyline import Operations

THROUGH: Final = 2
"""Forward, and backward to what came in."""
TRAINING: Final = 3


class OperationCount:
    """Counts the operations of one episode.

    Args:
        operations: Those of a forward pass for one example; None: torch cannot count them, and nothing is added.
    """

    def __init__(self, operations: Operations | None) -> None:
        self._host, self._blocks = (0, Counter()) if operations is None else (operations.host, operations.blocks)
        self.total = 0

    def train(self, garden: Garden, examples: int) -> None:
        """Add the operations of training host, acting seeds and each incubating seed on so many examples."""
        acting = self._acting(garden)
        self.total += examples * TRAINING * acting
        for incubation in garden.incubating.values():
            host = TRAINING if incubation.lasting else THROUGH
            self.total += examples * (host * acting + TRAINING * self._sum(incubation.members))

    def evaluate(self, garden: Garden, examples: int) -> None:
        """Add the operations of an evaluation of the network as it acts now."""
        self.total += examples * self._acting(garden)

    def measure_seeds(self, garden: Garden, examples: int) -> None:
        """Add the operations of the evaluations that try each incubating seed."""
        for incubation in garden.incubating.values():
            self.total += examples * (self._acting(garden) + self._sum(incubation.members))

    def _acting(self, garden: Garden) -> int:
        """Return the operations of host, fossils and acting seeds."""
        if not self._blocks:
            return self._host
        blended, seeds = garden.blended, garden.all_seeds()
        acting = [place for place in seeds if place[1].stage is Stage.FOSSILISED or place[1].number in blended]
        return self._host + self._sum(acting)

    def _sum(self, seeds: Iterable[tuple[Slot, Seed]]) -> int:
        return sum(self._blocks[slot.name, seed.blueprint] for slot, seed in seeds)
