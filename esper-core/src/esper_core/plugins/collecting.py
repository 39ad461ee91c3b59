"""What does each plugin bring? Its registration hooks are called, one plugin at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import PluginError, Problem
from esper_core.plugins.faults import attempt, place_of
from esper_core.plugins.loading import raised
from esper_core.plugins.registrar import Registrar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pluggy

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.component import Component
    from esper_core.plugins.records import Candidate

REGISTRATION_HOOKS: Final[Mapping[str, ComponentKind]] = {
    "esper_register_blueprints": "blueprint",
    "esper_register_hosts": "host",
    "esper_register_policies": "policy",
    "esper_register_rewards": "reward",
    "esper_register_schedules": "schedule",
    "esper_register_sinks": "sink",
    "esper_register_tasks": "task",
}
"""The hooks that add components, each with the kind that it adds."""


def collect_components(manager: pluggy.PluginManager, candidate: Candidate) -> Candidate:
    """The candidate with its components.

    A fault in one of its hooks makes it fall, with every fault of the others too, and pluggy forgets it. What it could
    add is kept with it, so that a run which names one of these components can be told why it is not there.
    """
    if not candidate.is_active:
        return candidate
    components: list[Component] = []
    problems: list[Problem] = []
    for hook, kind in REGISTRATION_HOOKS.items():
        if hook in candidate.hooks:
            found, faults = _called(manager, candidate, hook, kind)
            components.extend(found)
            problems.extend(faults)
    candidate = replace(candidate, components=tuple(components))
    if not problems:
        return candidate
    manager.unregister(name=candidate.id)
    return candidate.fallen("broken", *problems)


def _called(
    manager: pluggy.PluginManager, candidate: Candidate, hook: str, kind: ComponentKind
) -> tuple[tuple[Component, ...], list[Problem]]:
    registrar: Registrar[Any] = Registrar(candidate, kind)
    others = [plugin for name, plugin in manager.list_name_plugin() if name != candidate.id]
    call = manager.subset_hook_caller(hook, remove_plugins=others)
    tried = attempt(lambda: call(registry=registrar))
    registrar.close()
    problems = list(registrar.problems)
    if tried.error is not None:
        refused = isinstance(tried.error, PluginError) and any(one in problems for one in tried.error.problems)
        if not refused:
            problems.append(raised("E221", candidate, f"failed in {hook}", tried.error))
    elif tried.value:
        file, line = place_of(candidate.hooks[hook])
        received = type(tried.value[0]).__name__
        message = f"{candidate.title} returns {received} from {hook}, which returns nothing"
        problems.append(Problem("E221", message, file=file, line=line, hint="Add to the registry, and return nothing."))
    return registrar.components, problems
