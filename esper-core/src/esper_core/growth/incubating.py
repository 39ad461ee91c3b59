"""Start the incubation of a seed in the way that the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from esper_core.growth.branch import Branch
from esper_core.growth.incubation import Incubation, Shadow
from esper_core.growth.seed import Presence

if TYPE_CHECKING:
    from torch import nn

    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.randomness import RandomStream
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot


def begin(
    way: Literal["shadow", "branch"],
    model: nn.Module,
    slot: Slot,
    seed: Seed,
    keeper: OptimizerKeeper,
    stream: RandomStream,
) -> Incubation:
    """Incubate ``seed``, which lives in ``slot``; a seed of a loaded network that was on a branch gets a new one."""
    on_branch = way == "branch" or seed.presence is Presence.BRANCHED
    return (Branch if on_branch else Shadow)(model, slot, seed, keeper, stream)
