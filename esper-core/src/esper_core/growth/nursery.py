"""Several seeds incubate side by side in one slot: which is meant, and what is possible for each?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline.actions import ARGUMENTS, Action, Op
from esper_core.leyline.errors import GrowthError, LifecycleError, Problem, suggestion
from esper_core.leyline.lifecycle import SeedEvent, SlotState, Stage, may

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from esper_core.growth.gating import Gates
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot

EVENT_OF_OP = {
    Op.ADVANCE: SeedEvent.ADVANCE,
    Op.RETARGET: SeedEvent.RETARGET,
    Op.PRUNE: SeedEvent.PRUNE,
    Op.FOSSILISE: SeedEvent.FOSSILISE,
}
"""What an op is to the seed that it means."""


def possible(slot: Slot, obstacle: Callable[[Seed, Op], str | None]) -> Mapping[str, frozenset[Op]]:
    """By blueprint what each seed of the slot would accept now."""
    return {
        seed.blueprint: frozenset(
            op for op, event in EVENT_OF_OP.items() if may(seed.stage, event) and obstacle(seed, op) is None
        )
        for seed in slot.nursery
    }


def meant(
    slot: Slot, action: Action, able: Mapping[str, frozenset[Op]], lead: Callable[[Seed], float]
) -> tuple[Seed, ...]:
    """The seeds that ``action``, which is not a germination, means: one; all where a PRUNE names none of several.

    able: as ``possible`` says. lead: what each gained; where an ADVANCE names none it means the best of those able.
    """
    seeds = slot.nursery
    if not seeds:
        legal = ["germinate"] if slot.state is SlotState.FREE else []
        raise LifecycleError(what="slot", state=slot.state.value, event=action.op.value, legal=legal, name=slot.name)
    named = action.blueprint if "blueprint" in ARGUMENTS[action.op] else None
    if named is None:
        willing = [seed for seed in seeds if action.op in able.get(seed.blueprint, ())]
        return (max(willing or seeds, key=lead),) if action.op is Op.ADVANCE else seeds
    if found := tuple(seed for seed in seeds if seed.blueprint == named):
        return found
    message = f'no seed of "{named}" lives in slot "{slot.name}"'
    raise GrowthError(Problem("E303", message, hint=suggestion(named, [seed.blueprint for seed in seeds])))


def ready(slot: Slot, gates: Gates) -> Seed | None:
    """The seed of the slot that may be blended in though nobody asks. Of several side by side a policy chooses."""
    seeds = slot.nursery
    alone = len(seeds) == 1 and seeds[0].stage is Stage.TRAINING
    return seeds[0] if alone and gates.ready(seeds[0]) else None
