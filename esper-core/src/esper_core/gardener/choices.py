"""What may grow in a Gardener's slots, and who decides: blueprints and policies by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from esper_core.growth import Variety, audition, matches
from esper_core.leyline.errors import GrowthError, PluginError, Problem, suggestion
from esper_core.plugins.isolation import attributed_to
from esper_core.trainer.study import Arm

if TYPE_CHECKING:
    import torch

    from esper_core.growth import Slot
    from esper_core.leyline import ActionSpace, BlueprintSpec, Policy
    from esper_core.plugins import Registry

log = logging.getLogger("esper")

Blueprints = str | Variety | Sequence[str | Variety]
"""Blueprints by name or glob, or as varieties; "auto": all that fit."""


def blueprints_of(
    given: Blueprints | Mapping[str, Blueprints], slots: Sequence[Slot], registry: Registry, device: torch.device
) -> dict[str, tuple[Variety, ...]]:
    """Return what may grow in each slot, each tried there once.

    Raises:
        ConfigError: There is no such blueprint.
        GrowthError: There is no such slot, or a blueprint that was named for it does not fit it.
        PluginError: A blueprint that was named is not what its spec says. With "auto" it is left out.
    """
    if not isinstance(given, Mapping):
        given = {slot.name: given for slot in slots}
    found: dict[str, dict[str, Variety]] = {slot.name: {} for slot in slots}
    for pattern, names in given.items():
        own = [slot for slot in slots if slot.name == pattern or matches(slot.name, pattern)]
        if not own:
            hint = suggestion(pattern, found)
            raise GrowthError(Problem("E302", f'there is no slot "{pattern}"', hint=hint))
        named = [names] if isinstance(names, str | Variety) else names
        auto = list(named) == ["auto"]
        chosen = _varieties(["*"] if auto else named, registry, pattern)
        for slot in own:
            found[slot.name] |= {one.id: one for one in chosen if _accepts(one, slot, device, auto=auto)}
    return {name: tuple(varieties.values()) for name, varieties in found.items()}


def _varieties(named: Sequence[str | Variety], registry: Registry, slot: str) -> list[Variety]:
    chosen: list[Variety] = []
    for one in named:
        if isinstance(one, Variety):
            chosen.append(one)
            continue
        found = registry.match("blueprint", one, context=f'slot "{slot}"')
        chosen += [Variety(own.id, cast("BlueprintSpec", own.spec), own.load()) for own in found]
    return chosen


def _accepts(variety: Variety, slot: Slot, device: torch.device, *, auto: bool) -> bool:
    """Return whether a blueprint works in a slot; raise what is wrong unless it was chosen automatically."""
    assert slot.site is not None
    if (why := variety.spec.misfit(slot.site)) is not None:
        if auto:
            return False
        raise GrowthError(Problem("E303", f'"{variety.id}" cannot grow in slot "{slot.name}": {why}'))
    fault = audition(variety, slot.site, device)
    if fault is not None and not auto:
        raise PluginError(Problem(fault.code, f'"{variety.id}" {fault.message}', hint=fault.hint))
    return fault is None


def policy_of(given: str | Policy, space: ActionSpace, registry: Registry, steps: int) -> Arm:
    """Return the arm of a policy: one by name, built for ``space``, or the user's own object.

    A warning is logged if ``steps`` are too few for what the policy plans.
    """
    if isinstance(given, str):
        component = registry.find("policy", given)
        with attributed_to(component.title, "while it was built"):
            arm = Arm(component.short, component.load()(space), component.title)
    else:
        arm = Arm(type(given).__name__.lower(), given, f"the policy {type(given).__name__}")
    for plan in arm.impossible(steps):
        log.warning("policy %s: %d steps are too few for %s", arm.name, steps, plan)
    return arm
