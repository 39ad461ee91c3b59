"""How is a transition whole or not at all? What it may touch is written down before, and put back if it fails."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from esper_core.growth.faults import SeedFault
from esper_core.growth.probe import device_of
from esper_core.growth.randomness import TURN
from esper_core.growth.slot import key_of
from esper_core.growth.state_keys import HOME
from esper_core.leyline.errors import GrowthError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_core.growth.garden import Garden
    from esper_core.growth.incubation import Incubation
    from esper_core.growth.slot import Slot


@contextmanager
def whole_or_nothing(garden: Garden, incubations: dict[int, Incubation]) -> Iterator[None]:
    """A block after which slots, seeds, optimizers and shadows agree, or are what they were before it.

    So are torch's default random numbers and whether it keeps gradients: what ends the block may end it where these
    are lent, and not given back yet.

    GrowthError, and everything as before, where a trainable parameter would be left without exactly one optimizer;
    SeedFault where a seed is to blame for it, that lived before.
    """
    living = {slot.name: slot for slot in garden.slots.values() if slot.living is not None}
    slots = [_SlotState(slot) for slot in garden.slots.values()]
    put_keeper_back, incubating, born = garden.keeper.undo(), dict(incubations), garden.born
    put_torch_back = _torch_wide(device_of(garden.model))
    try:
        yield
        if astray := garden.keeper.astray(garden.model):
            if culprits := [name for name, slot in living.items() if any(map(_under(slot), astray))]:
                raise SeedFault(culprits, f"has parameters that it was not born with: {', '.join(astray[:5])}")
            raise GrowthError(Problem("E304", f"not owned by exactly one optimizer: {', '.join(astray[:5])}"))
    except BaseException:
        for state in slots:
            state.restore()
        put_keeper_back()
        incubations.clear()
        incubations.update(incubating)
        for incubation in incubating.values():
            incubation.reopen()
        garden.born = born
        put_torch_back()
        raise


def _under(slot: Slot) -> Callable[[str], bool]:
    """Whether a parameter of this name belongs to what lives in the slot."""
    prefix = f"{HOME}.{key_of(slot.name)}."
    return lambda name: name.startswith(prefix)


def _torch_wide(device: torch.device) -> Callable[[], None]:
    """What makes torch's default generators, the CPU's and that of ``device``, and its mode what they are now."""
    cpu, gradients, turns = torch.get_rng_state(), torch.is_grad_enabled(), TURN.taken()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back() -> None:
        TURN.give_back(turns)
        torch.set_grad_enabled(gradients)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)

    return put_back


class _SlotState:
    """All that a transition may change of one slot and its seeds."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._state, self._embargo = slot.state, slot.embargo
        self._seeds = [(seed, seed.stage, seed.kept, replace(seed.alpha), seed.presence) for seed in slot.stack]
        self._trained = [(parameter, parameter.requires_grad) for parameter in slot.parameters()]

    def restore(self) -> None:
        self._slot.state, self._slot.embargo = self._state, self._embargo
        for seed, stage, kept, alpha, presence in self._seeds:
            seed.stage, seed.kept, seed.alpha, seed.presence = stage, kept, alpha, presence
        for parameter, trained in self._trained:
            parameter.requires_grad_(trained)
        if [id(seed) for seed in self._slot.stack] != [id(seed) for seed, *_ in self._seeds]:
            while len(self._slot.seeds):
                del self._slot.seeds[-1]
            self._slot.seeds.extend(seed for seed, *_ in self._seeds)
