"""How is a transition whole or not at all? What it may touch is written down before, and put back if it fails."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from esper_core.leyline.errors import GrowthError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.growth.garden import Garden
    from esper_core.growth.incubation import Shadow
    from esper_core.growth.slot import Slot


@contextmanager
def whole_or_nothing(garden: Garden, shadows: dict[str, Shadow]) -> Iterator[None]:
    """A block after which slots, seeds, optimizers and shadows agree, or are what they were before it.

    GrowthError, and everything as before, where a trainable parameter would be left without exactly one optimizer.
    """
    slots = [_SlotState(slot) for slot in garden.slots.values()]
    keeper, incubating = garden.keeper, dict(shadows)
    seeds, fossils = dict(keeper.seeds), dict(keeper.fossils)
    try:
        yield
        if astray := keeper.astray(garden.model):
            raise GrowthError(Problem("E304", f"not owned by exactly one optimizer: {', '.join(astray[:5])}"))
    except BaseException:
        for state in slots:
            state.restore()
        for owned, before in ((keeper.seeds, seeds), (keeper.fossils, fossils)):
            owned.clear()
            owned.update(before)
        shadows.clear()
        shadows.update(incubating)
        raise


class _SlotState:
    """All that a transition may change of one slot and its seeds."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._state, self._embargo = slot.state, slot.embargo
        self._seeds = [(seed, seed.stage, seed.kept, replace(seed.alpha)) for seed in slot.stack]
        self._trained = [(parameter, parameter.requires_grad) for parameter in slot.parameters()]

    def restore(self) -> None:
        self._slot.state, self._slot.embargo = self._state, self._embargo
        for seed, stage, kept, alpha in self._seeds:
            seed.stage, seed.kept, seed.alpha = stage, kept, alpha
        for parameter, trained in self._trained:
            parameter.requires_grad_(trained)
        if [id(seed) for seed in self._slot.stack] != [id(seed) for seed, *_ in self._seeds]:
            while len(self._slot.seeds):
                del self._slot.seeds[-1]
            self._slot.seeds.extend(seed for seed, *_ in self._seeds)
