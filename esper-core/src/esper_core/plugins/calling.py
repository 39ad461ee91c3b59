"""How is a hook called so that each plugin answers for itself? One plugin at a time, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.plugins.faults import attempt, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pluggy

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.records import PluginRecord


def callers(manager: pluggy.PluginManager, hook: str) -> dict[str, Callable[..., Any]]:
    """For each plugin that implements ``hook`` what calls it there alone, in the order in which they were loaded.

    What a caller gives is pluggy's: a list, empty or of one value; of a ``firstresult`` hook the value or None.
    """
    names = [one.plugin_name for one in getattr(manager.hook, hook).get_hookimpls()]
    plugins = manager.list_name_plugin()
    return {
        name: manager.subset_hook_caller(hook, remove_plugins=[plugin for other, plugin in plugins if other != name])
        for name, _ in plugins
        if name in names
    }


def missing_component(
    manager: pluggy.PluginManager, records: Sequence[PluginRecord], kind: ComponentKind, name: str
) -> str | None:
    """What the first plugin that knows of it says of a component that is not there, in one line; None: nobody does.

    What a plugin raises is said, too, and the others are asked all the same.
    """
    titles = {record.id: f'plugin "{record.id}" ({record.source})' for record in records}
    faults: list[str] = []
    for plugin, call in callers(manager, "esper_component_missing").items():
        tried = attempt(lambda call=call: call(kind=kind, name=name))  # type: ignore[misc]
        if tried.error is not None:
            faults.append(f"({titles[plugin]} failed in esper_component_missing: {summary_of(tried.error)})")
        elif isinstance(tried.value, str) and tried.value.strip():
            return "  ".join([" ".join(tried.value.split()), *faults])
    return "  ".join(faults) or None
