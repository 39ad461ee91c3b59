"""Resolve the names of blueprints and policies that a Gardener is given."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from esper_core.growth import Variety, audition, matches
from esper_core.leyline.errors import GrowthError, PluginError, Problem, suggestion
from esper_core.plugins.isolation import attributed_to
from esper_core.trainer.study import Arm

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from esper_core.growth import Slot
    from esper_core.leyline import ActionSpace, BlueprintSpec, Policy
    from esper_core.plugins import Registry

log = logging.getLogger("esper")

Blueprints = str | Variety | Sequence[str | Variety]
"""Blueprints by name or glob, or as varieties; "auto": all that fit."""


def blueprints_of(
    blueprints: Blueprints | Mapping[str, Blueprints], slots: Sequence[Slot], registry: Registry, device: torch.device
) -> dict[str, tuple[Variety, ...]]:
    """Return the blueprints that may grow in each slot, after a trial of each one there.

    A name given for several slots must fit at least one of them, and a glob must have one blueprint that does.

    Raises:
        ConfigError: There is no such blueprint.
        GrowthError: There is no such slot, a blueprint that was named for it does not fit it, or none fits any (E351).
        PluginError: A blueprint that was named is not what its spec says. With "auto" it is left out.
    """
    by_slot: dict[str, dict[str, Variety]] = {slot.name: {} for slot in slots}
    for matching, names in _by_slots(blueprints, slots):
        named = [names] if isinstance(names, str | Variety) else names
        auto = list(named) == ["auto"]
        for blueprint in ["*"] if auto else named:
            chosen = _varieties(blueprint, registry, matching)
            fitting = [(slot, variety) for variety in chosen for slot in matching if _misfit(variety, slot) is None]
            if not fitting and not auto:
                slot, variety = matching[0], chosen[0]
                message = f'"{variety.id}" cannot grow in slot "{slot.name}": {_misfit(variety, slot)}'
                raise GrowthError(Problem("E303", message))
            for slot, variety in fitting:
                if _works(variety, slot, device, auto=auto):
                    by_slot[slot.name][variety.id] = variety
    if not any(by_slot.values()):
        sites = [f"{slot.name}: {slot.site.kind} {slot.site.example_shape}" for slot in slots if slot.site is not None]
        message = f"no blueprint fits in the slots: {', '.join(sites)}"
        raise GrowthError(Problem("E351", message, hint="All blueprints:  esper components list blueprint"))
    return {name: tuple(varieties.values()) for name, varieties in by_slot.items()}


def _by_slots(
    blueprints: Blueprints | Mapping[str, Blueprints], slots: Sequence[Slot]
) -> Iterator[tuple[list[Slot], Blueprints]]:
    """Yield slots with what was given for them; GrowthError for a slot that there is not."""
    if not isinstance(blueprints, Mapping):
        yield list(slots), blueprints
        return
    for pattern, names in blueprints.items():
        matching = [slot for slot in slots if slot.name == pattern or matches(slot.name, pattern)]
        if not matching:
            hint = suggestion(pattern, [slot.name for slot in slots])
            raise GrowthError(Problem("E302", f'there is no slot "{pattern}"', hint=hint))
        yield matching, names


def _varieties(named: str | Variety, registry: Registry, slots: Sequence[Slot]) -> list[Variety]:
    """Return the blueprint of a name, or all that match a glob."""
    if isinstance(named, Variety):
        return [named]
    components = registry.match("blueprint", named, context=f'slot "{slots[0].name}"')
    return [
        Variety(component.id, cast("BlueprintSpec", component.spec), component.load(), component.title)
        for component in components
    ]


def _misfit(variety: Variety, slot: Slot) -> str | None:
    assert slot.site is not None
    return variety.spec.misfit(slot.site)


def _works(variety: Variety, slot: Slot, device: torch.device, *, auto: bool) -> bool:
    """Return whether a blueprint is what its spec says; raise what is wrong unless it was chosen automatically."""
    assert slot.site is not None
    fault = audition(variety, slot.site, device)
    if fault is not None and not auto:
        raise PluginError(Problem(fault.code, f'"{variety.id}" {fault.message}', hint=fault.hint))
    return fault is None


def policy_of(policy: str | Policy, space: ActionSpace, registry: Registry, steps: int) -> Arm:
    """Return the arm of a policy: one by name, built for ``space``, or the user's own object.

    A warning is logged if ``steps`` are too few for what the policy plans.
    """
    if isinstance(policy, str):
        component = registry.find("policy", policy)
        with attributed_to(component.title, "while it was built"):
            arm = Arm(component.short, component.load()(space), component.title)
    else:
        if isinstance(policy, type) or not callable(getattr(policy, "act", None)):
            received = policy.__name__ if isinstance(policy, type) else type(policy).__name__
            hint = f"Pass the name of a policy, or an object, not a class, with its methods. Received: {received}"
            raise GrowthError(Problem("E347", "a policy needs the method act", hint=hint))
        arm = Arm(type(policy).__name__.lower(), policy, f"the policy {type(policy).__name__}")
    for plan in arm.impossible(steps):
        log.warning("policy %s: %d steps are too few for %s", arm.name, steps, plan)
    return arm
