"""How much does a network lean on each of the seeds that act in it? Its losses with each left out, by prefix replay.

That is dependence, and not what a seed is good for: a network leans on whatever it was trained with. No gate minds it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from esper_core.growth import Counterfactuals, device_of, each_left_out, heard, paired, told
from esper_core.leyline.resuming import State
from esper_core.trainer.evaluation import as_written
from esper_core.trainer.feeding import chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from esper_core.growth import Garden
    from esper_core.leyline.protocols import Split, Task

log = logging.getLogger("esper")


class Leaning:
    """What was found in the last step: ``dependences`` holds what ``growth.paired`` tells, by the seeds' numbers.

    seed: of the random numbers that the network may draw, the same with and without a seed. quiet: it draws none.
    run: how a pass is computed.
    """

    def __init__(
        self,
        garden: Garden,
        seed: int,
        *,
        quiet: bool = False,
        run: Callable[[nn.Module, Tensor], Tensor] = as_written,
    ) -> None:
        self._garden = garden
        self._counterfactuals = Counterfactuals(garden.model, seed=seed, quiet=quiet, run=run)
        self.dependences: dict[int, Tensor] = {}

    def measure(self, task: Task, split: Split) -> None:
        """Measure each acting seed on ``split``. The model is left in training mode."""
        self.dependences = {}
        main = self._counterfactuals.main()
        if not main:
            return
        model = self._garden.model
        model.eval()
        try:
            batches = chunks(split, device_of(model))
            measured = self._counterfactuals.measure(each_left_out(main), batches, task.losses)
        finally:
            model.train()
        if measured.news:
            log.info("each configuration of %s takes a pass of its own: %s", type(model).__name__, measured.news)
        for name in main:
            seed = self._garden.slots[name].living
            assert seed is not None
            self.dependences[seed.number] = paired(measured.rows[main - {name}], measured.rows[main])

    def state(self) -> State:
        """What was found, and what is known of the way to find it."""
        return State.of({"found": told(self.dependences), "way": self._counterfactuals.state()})

    def load(self, state: State) -> None:
        """Know what another one knew, of a garden that has grown as this one has."""
        self.dependences = heard(state.part("found"), device_of(self._garden.model))
        self._counterfactuals.load(state.part("way"))
