"""What if a network had been from the start what it grew into? The same blocks in the same places, before any training.

That is the control by static capacity: it has all that growth brought but the growing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.growth.grafting import slots_of
from esper_core.growth.planting import Soil
from esper_core.leyline.actions import Action, Op
from esper_core.leyline.constants import FULL
from esper_core.leyline.lifecycle import SlotState, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.growth.journal import Growth
    from esper_core.growth.planting import Variety


def implant(
    model: nn.Module,
    grown: Sequence[Growth],
    varieties: Mapping[str, Sequence[Variety]],
    *,
    seed: int,
    probe: Callable[[nn.Module], Tensor] | None = None,
) -> None:
    """Put newborn blocks into the empty slots of ``model`` as if they had been kept there: for a garden to take in.

    grown: which, in the order in which they act. seed, probe: as a garden has them; a block is born as it was there.
    """
    soil = Soil(model, seed, probe)
    for growth in grown:
        slot = slots_of(model).named(growth.slot)
        variety = next(one for one in varieties[growth.slot] if one.id == growth.blueprint)
        asked = Action(Op.GERMINATE, growth.slot, growth.blueprint, blend=growth.blend)
        block = soil.plant(variety, slot, asked, growth.number, step=0)
        block.stage, block.kept = Stage.FOSSILIZED, 0
        block.alpha.aim(FULL, 0)
        slot.seeds.append(block)
        slot.state = SlotState.CLOSED if len(slot.fossils) >= slot.limit else SlotState.FREE
