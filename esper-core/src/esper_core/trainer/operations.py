"""Operations: the floating-point operations that one network has cost, discarded work included.

Forward passes of host and blocks are counted once, before the run. Training on a batch costs three times as much: the
forward pass, the gradients of activations, and those of parameters. In the shadow the host's parameters get none, so
there it costs twice as much. That counts the first layer's gradient of the inputs, which no pass computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from esper_core.growth import Garden, Seed
    from esper_core.growth.slots import Slot
    from esper_core.leyline import Operations

FORWARD: Final = 1
THROUGH: Final = 2
"""Forward, and backward to what came in."""
TRAINING: Final = 3


class OperationCount:
    """Counts the operations of one episode.

    Args:
        operations: Those of a forward pass for one example; None: torch cannot count them, and nothing is added.
    """

    def __init__(self, operations: Operations | None) -> None:
        self._operations = operations
        self.total = 0

    def train(self, garden: Garden, examples: int) -> None:
        """Add the operations of training host, acting seeds and each incubating seed on so many examples."""
        if self._operations is None:
            return
        per_example = TRAINING * self._acting(garden)
        for incubation in garden.incubating.values():
            host = TRAINING if incubation.lasting else THROUGH
            blocks = sum(self._block(*member) for member in incubation.members)
            per_example += host * self._acting(garden) + TRAINING * blocks
        self.total += examples * per_example

    def evaluate(self, garden: Garden, examples: int) -> None:
        """Add the operations of an evaluation of the network as it acts now."""
        if self._operations is not None:
            self.total += examples * FORWARD * self._acting(garden)

    def measure_seeds(self, garden: Garden, examples: int) -> None:
        """Add the operations of the evaluations that try each incubating seed."""
        if self._operations is not None:
            incubations = garden.incubating.values()
            blocks = sum(self._block(*member) for incubation in incubations for member in incubation.members)
            self.total += examples * FORWARD * (len(incubations) * self._acting(garden) + blocks)

    def _acting(self, garden: Garden) -> int:
        """Return the operations of host, fossils and acting seeds."""
        assert self._operations is not None
        return self._operations.host + sum(
            self._block(slot, seed)
            for slot, seed in garden.all_seeds()
            if seed.stage is Stage.FOSSILISED or seed.number in garden.blended
        )

    def _block(self, slot: Slot, seed: Seed) -> int:
        assert self._operations is not None
        return self._operations.blocks[slot.name, seed.blueprint]
