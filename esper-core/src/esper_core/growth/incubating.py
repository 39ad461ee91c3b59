"""Which way of incubating is meant by a name?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from esper_core.growth.branch import Branch
from esper_core.growth.incubation import Incubation, InHost, Shadow
from esper_core.growth.seed import Presence

if TYPE_CHECKING:
    from torch import nn

    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.randomness import RandomStream
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot

Way = Literal["shadow", "branch", "straight_through", "live"]


APART: Final[tuple[Way, ...]] = ("shadow", "branch")
"""The ways in which seeds of one slot know nothing of each other."""


def way_for(seed: Seed, slot: Slot, way: Way) -> Way:
    """How a seed incubates where ``way`` is asked for; one that lived already, in a network that was loaded, as it did.

    Of several in one slot none can act on the host: they go into the shadow.
    """
    if seed.presence is Presence.BRANCHED:
        return "branch"
    return way if way in APART or len(slot.nursery) == 1 else "shadow"


def begin(
    way: Way, model: nn.Module, slot: Slot, seed: Seed, keeper: OptimizerKeeper, stream: RandomStream
) -> Incubation:
    """The incubation of ``seed``, which lives in ``slot``, in one of the four ways."""
    if way == "shadow":
        return Shadow(model, slot, seed, keeper, stream)
    if way == "branch":
        return Branch(model, slot, seed, keeper, stream)
    return InHost(slot, seed, Presence.ACTING if way == "live" else Presence.WHISPERING)
