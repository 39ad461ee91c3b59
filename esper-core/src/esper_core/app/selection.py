"""What may grow in each slot of this host? What the file chooses, as far as it fits the place and keeps its word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.growth import Variety, audition, slots_of
from esper_core.leyline.errors import ConfigError, PluginError
from esper_core.leyline.specs import BlueprintSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from esper_core.app.resolution import Resolution
    from esper_core.config.paths import KeyPath
    from esper_core.growth import Slot
    from esper_core.leyline.errors import Problem
    from esper_core.leyline.specs import Site
    from esper_core.plugins import Component


def select_varieties(resolution: Resolution, host: nn.Module, device: torch.device) -> dict[str, tuple[Variety, ...]]:
    """For each slot what may grow in it. A pattern in the file may stand for several slots of the host.

    ConfigError where nothing that was chosen fits a slot, or something that was named does not; PluginError where a
    blueprint is not what it says it is.
    """
    misfits: list[Problem] = []
    lies: dict[tuple[str, Site], Problem] = {}
    varieties: dict[str, tuple[Variety, ...]] = {}
    for slot in slots_of(host).each():
        assert slot.site is not None
        fitting, problems = _fitting(resolution, slot, slot.site)
        misfits += problems
        varieties[slot.name] = tuple(map(_variety, fitting))
        for component, variety in zip(fitting, varieties[slot.name], strict=True):
            lie = None if (variety.id, slot.site) in lies else audition(variety, slot.site, device)
            if lie is not None:
                path = _spoken(resolution, slot, variety.id)
                message = f"{component.title} {lie.message}"
                lies[variety.id, slot.site] = resolution.loaded.problem(lie.code, path, message, lie.hint)
    if misfits:
        raise ConfigError(misfits)
    if lies:
        raise PluginError(list(lies.values()))
    return varieties


def _fitting(resolution: Resolution, slot: Slot, site: Site) -> tuple[list[Component], list[Problem]]:
    chosen = resolution.blueprints[_own(slot)]
    refused = {component.id: why for component in chosen if (why := _misfit(component, site.kind))}
    fitting = [component for component in chosen if component.id not in refused]
    problems = []
    for id_, why in refused.items():
        path = _spoken(resolution, slot, id_)
        if isinstance(path[-1], int) or not fitting:
            message = f'blueprint "{id_}" cannot grow in slot "{slot.name}": {why}'
            problems.append(resolution.loaded.problem("E305", path, message, "See: esper components list blueprint"))
    return fitting, problems


def _own(slot: Slot) -> str:
    """The name that the file has for the slot."""
    return slot.name.partition(":")[0]


def _spoken(resolution: Resolution, slot: Slot, id_: str) -> KeyPath:
    """Where the file names the blueprint; the whole list where a glob chose it."""
    named = resolution.loaded.config.slots[_own(slot)].blueprints
    spoken = [index for index, name in enumerate(named) if name in (id_, id_.rpartition("/")[2])]
    return ("slots", _own(slot), "blueprints", *spoken[:1])


def _variety(component: Component) -> Variety:
    assert isinstance(component.spec, BlueprintSpec)
    return Variety(component.id, component.spec, component.load())


def _misfit(component: Component, kind: str) -> str | None:
    assert isinstance(component.spec, BlueprintSpec)
    if kind not in component.spec.kinds:
        return f"the slot is a {kind}, the blueprint takes {' or '.join(component.spec.kinds)}"
    return None
