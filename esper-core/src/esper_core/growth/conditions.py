"""What stands in the way of an action, beside the tables? Numbers: alpha, bounds on growth, a branch that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.growth.seed import Presence
from esper_core.leyline.actions import ARGUMENTS, Blend, Curve, Op
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import SlotState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

    from esper_core.config import GrowthConfig
    from esper_core.growth.planting import Variety
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot
    from esper_core.leyline.actions import Action


def misfit(slot: Slot, variety: Variety) -> str | None:
    """Why the blueprint cannot grow in the slot as it is now; None where it can."""
    if slot.site is None or slot.site.kind not in variety.spec.kinds:
        seen = "nothing yet" if slot.site is None else f"a {slot.site.kind}"
        return f"the slot sees {seen}, and the blueprint takes {' or '.join(variety.spec.kinds)}"
    return None


def taken(slot: Slot, variety: Variety, settings: GrowthConfig) -> str | None:
    """Why the slot takes in no seed of the blueprint now; None where it does. Into a nursery many go, if all incubate.

    Each is of another blueprint, by whose name a policy says which of them it means.
    """
    if slot.state is SlotState.FREE:
        return None
    seeds = slot.nursery
    if settings.nursery == 1 or not seeds or not all(seed.incubating for seed in seeds):
        lives = f": {', '.join(seed.blueprint for seed in seeds)} lives there" if seeds else ""
        return f"the slot is {slot.state}{lives}"
    if any(seed.blueprint == variety.id for seed in seeds):
        return "a seed of it incubates in the slot already"
    if len(seeds) >= settings.nursery:
        return f"the nursery of the slot holds {len(seeds)} of {settings.nursery} seeds (growth.nursery)"
    return None


def crossing(slot: Slot, living: Iterable[tuple[Slot, Seed]]) -> str | None:
    """Why nothing can grow in the slot while a seed of another is on a branch; None where none is."""
    branched = [other.name for other, seed in living if seed.presence is Presence.BRANCHED]
    if any(name != slot.name for name in branched):
        return f"a branch of the host is open in slot {branched[0]}, and branches of two slots do not mix"
    return None


def beyond_bounds(slot: Slot, variety: Variety, slots: Iterable[Slot], settings: GrowthConfig) -> str | None:
    """Why there is no room for one more; None where there is. The slot fits the blueprint."""
    assert slot.site is not None
    seeds = [seed for other in slots for seed in other.stack]
    most, budget = settings.seeds, settings.parameters
    if most is not None and len(seeds) >= most:
        return f"the network holds {len(seeds)} of {most} seeds (growth.seeds)"
    added = sum(seed.parameter_count for seed in seeds)
    if budget is not None and added + (new := variety.most_parameters(slot.site)) > budget:
        return f"growth has added {added:,} of {budget:,} parameters (growth.parameters), and it takes {new:,}"
    return None


def obstacle(seed: Seed, op: Op) -> str | None:
    """What of a seed's alpha stands in the way of an op that its stage allows."""
    if op is Op.RETARGET and seed.alpha.moving:
        return f"alpha is on its way to {seed.alpha.target:g}"
    if op is Op.FOSSILISE and seed.alpha.value != FULL:
        return f"alpha is {seed.alpha.value:g}, and only at 1 can a seed be kept"
    return None


def refuse_unfit(action: Action) -> None:
    """GrowthError for numbers that the op reads and cannot have."""
    if not isinstance(action.op, Op):
        raise GrowthError(Problem("E307", "there is no such op", hint=f"{_choice(Op)} Received: {action.op!r}"))
    reads = ARGUMENTS[action.op]
    for name, kind in (("blend", Blend), ("curve", Curve)):
        if name in reads and not isinstance(getattr(action, name), kind):
            hint = f"{_choice(kind)} Received: {getattr(action, name)!r}"
            raise GrowthError(Problem("E307", f"there is no such {name}", hint=hint))
    if "target" in reads and not (_is_number(action.target) and 0.0 < action.target <= FULL):
        hint = f"To take a seed out, prune it. Received: {action.target!r}"
        raise GrowthError(Problem("E307", "a target lies above 0 and is 1 at most", hint=hint))
    if "speed" in reads and (type(action.speed) is not int or action.speed < 0):
        hint = f"0 is at once. Received: {action.speed!r}"
        raise GrowthError(Problem("E307", "a speed is a whole number of decision steps, 0 or more", hint=hint))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choice(kind: type[StrEnum]) -> str:
    return f"One of {kind.__name__}: {', '.join(kind)}."
