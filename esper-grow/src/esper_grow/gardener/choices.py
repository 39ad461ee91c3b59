"""Resolve the names of blueprints and policies that a Gardener is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from esper_core.growth import Variety
from esper_core.leyline.errors import GraftError, GrowthError, PluginError, Problem, suggestion
from esper_core.plugins import attributed_to
from esper_core.trainer import Arm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.growth import Host
    from esper_core.leyline import ActionSpace, BlueprintSpec, Policy, Site
    from esper_core.plugins import Plugins


@dataclass(frozen=True, slots=True)
class PlannedBlueprint:
    """A blueprint of a plan, by its name, and how many features each layer got and returned in the plan's model."""

    name: str
    features: Mapping[str, tuple[int, int]]

    def refuse_other_model(self, host: Host) -> None:
        """Raise GrowthError (E334) if a layer with a slot has other features."""
        for layer, slot in host.slots.by_module.items():
            site, planned = slot.site, self.features.get(layer)
            # Without inputs it is no place for an adapter, which is said where blueprints are tried.
            if planned and site and site.inputs and planned != (site.inputs, site.channels):
                shapes = f"maps {site.inputs} to {site.channels} features, and {planned[0]} to {planned[1]} in the plan"
                message = f"the plan does not fit this {type(host.model).__name__}: {layer} {shapes}"
                hint = "Make a plan of this model with place_adapters, or name layers with adapters(model, …)."
                raise GrowthError(Problem("E334", message, hint=hint))


Blueprint = str | Variety | PlannedBlueprint

Blueprints = Blueprint | Sequence[Blueprint]
"""Blueprints by name or glob, as varieties, or of a plan; "auto": all that fit."""


def blueprints_of(
    blueprints: Blueprints | Mapping[str, Blueprints], host: Host, plugins: Plugins
) -> dict[str, tuple[Variety, ...]]:
    """Return the blueprints that may grow in each slot of a host, after a trial of each one there.

    A name given for several slots must fit at least one of them, and a glob must have one blueprint that does.

    Raises:
        ConfigError: There is no such blueprint.
        GraftError: A blueprint does not fit any slot for which it was named (E305).
        GrowthError: There is no such slot, or no blueprint fits any (E351), or a plan is of another model (E334).
        PluginError: A blueprint that was named is not what its spec says. With "auto" it is left out.
    """
    sites = {slot.name: slot.site for slot in host.slots if slot.site is not None}
    by_slot: dict[str, dict[str, Variety]] = {slot.name: {} for slot in host.slots}
    for matching, names in _by_slots(blueprints, host):
        named = [names] if isinstance(names, Blueprint) else names
        auto = list(named) == ["auto"]
        for blueprint in ["*"] if auto else named:
            if isinstance(blueprint, PlannedBlueprint):
                blueprint.refuse_other_model(host)
            chosen = _varieties(blueprint, plugins, matching[0])
            pairs = [(slot, variety) for variety in chosen for slot in matching]
            fitting = [(slot, variety) for slot, variety in pairs if variety.spec.misfit(sites[slot]) is None]
            if not fitting and not auto:
                raise _misfit(chosen[0], matching[0], sites[matching[0]], plugins)
            for slot, variety in fitting:
                fault = host.audition(variety, sites[slot])
                if fault is None:
                    by_slot[slot][variety.id] = variety
                elif not auto:
                    raise PluginError(Problem(fault.code, f'"{variety.id}" {fault.message}', hint=fault.hint))
    if not any(by_slot.values()):
        described = [f"{name}: {site.kind} {site.example_shape}" for name, site in sites.items()]
        message = f"no blueprint fits in the slots: {', '.join(described)}"
        raise GrowthError(Problem("E351", message, hint="All blueprints:  esper components list blueprint"))
    return {name: tuple(varieties.values()) for name, varieties in by_slot.items()}


def _by_slots(blueprints: Blueprints | Mapping[str, Blueprints], host: Host) -> Iterator[tuple[list[str], Blueprints]]:
    """Yield names of slots with what was given for them; GrowthError for a slot that there is not."""
    names = [slot.name for slot in host.slots]
    if not isinstance(blueprints, Mapping):
        yield names, blueprints
        return
    for pattern, requested in blueprints.items():
        matching = [slot.name for slot in host.slots.matching(pattern)]
        if not matching:
            raise GrowthError(Problem("E302", f'there is no slot "{pattern}"', hint=suggestion(pattern, names)))
        yield matching, requested


def _varieties(named: Blueprint, plugins: Plugins, slot: str) -> list[Variety]:
    """Return the blueprint of a name, or all that match a glob."""
    if isinstance(named, Variety):
        return [named]
    name = named.name if isinstance(named, PlannedBlueprint) else named
    components = plugins.registry.match("blueprint", name, context=f'slot "{slot}"')
    return [
        Variety(component.id, cast("BlueprintSpec", component.spec), component.load(), component.title)
        for component in components
    ]


def _misfit(variety: Variety, slot: str, site: Site, plugins: Plugins) -> GraftError:
    """Return the error for a blueprint that does not fit a slot, with those that do."""
    message = f'"{variety.id}" cannot grow in slot "{slot}": {variety.spec.misfit(site)}'
    every = plugins.registry.match("blueprint", "*", context=f'slot "{slot}"')
    fitting = [component.short for component in every if cast("BlueprintSpec", component.spec).misfit(site) is None]
    return GraftError(Problem("E305", message, hint=f"These can: {', '.join(fitting) or 'none that is installed'}"))


def policy_of(policy: str | Policy, space: ActionSpace, plugins: Plugins, steps: int) -> Arm:
    """Return the arm of a policy: one by name, built for ``space`` and the loop, or the user's own object."""
    if isinstance(policy, str):
        component = plugins.registry.find("policy", policy)
        with attributed_to(component.title, "while it was built"):
            built = component.load()(space)
            if (fit := getattr(built, "for_loop", None)) is not None:
                built = fit(steps)
            return Arm(component.short, built, component.title)
    if isinstance(policy, type) or not callable(getattr(policy, "act", None)):
        received = policy.__name__ if isinstance(policy, type) else type(policy).__name__
        hint = f"Pass the name of a policy, or an object, not a class, with its methods. Received: {received}"
        raise GrowthError(Problem("E347", "a policy needs the method act", hint=hint))
    return Arm(type(policy).__name__.lower(), policy, f"the policy {type(policy).__name__}")
