"""Lookup errors: explain a name that cannot be found, with a suggestion and the command that helps.

The plugin before the slash can be unknown, the name after it, or a plugin that the configuration disables.
Names that are ambiguous, and names whose plugin is not active, have messages of their own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import ConfigError, PluginError, Problem, nearest
from esper_core.plugins.discovery import FIRST_PARTY
from esper_core.plugins.plugin_records import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.plugin_records import Component, PluginRecord

_MAX_LISTED: Final = 12
"""Names that a message lists."""


def unknown_component(
    kind: ComponentKind | None,
    name: str,
    context: str,
    components: Sequence[Component],
    records: Sequence[PluginRecord],
    *,
    is_pattern: bool,
) -> ConfigError:
    """Return the error for a name, or a pattern, that fits no component.

    Args:
        kind: the kind that was looked up; None for all kinds.
        name: the name or pattern, short or with its plugin.
        context: where the name is used, for the message: ``slot "early"``.
        components: those of all active plugins.
        records: all plugins.
        is_pattern: whether it is a pattern.
    """
    plugin, slash, short = name.rpartition("/")
    candidates = [component for component in components if kind in (None, component.kind)]
    is_unknown_plugin = bool(slash) and all(record.id != plugin for record in records)
    code, message = KINDS[kind].code if kind else "E200", f'unknown {kind or "component"} "{name}"{_within(context)}'
    if is_pattern:
        code, message = "E207", f'no {kind} matches "{name}"{_within(context)}'
    elif slash and kind:
        message += f': there is no plugin "{plugin}"' if is_unknown_plugin else f': "{plugin}" has no {kind} "{short}"'
    of_other_kinds = [
        component for component in components if component not in candidates and name in (component.id, component.short)
    ]
    lines = [f'"{component.id}" is a {component.kind} ({component.source}).' for component in of_other_kinds]
    if kind and not candidates:
        if all(record.package != KINDS[kind].package for record in records):
            lines.append(f"No {kind} is installed. Install some:  pip install {KINDS[kind].package}")
    elif suggested := _did_you_mean(name, candidates):
        lines.append(suggested)
    elif is_unknown_plugin:
        lines += _plugin_lines(plugin, records) or ["Install the package that provides it."]
    elif kind:
        of_plugin = [component for component in candidates if component.plugin == plugin]
        lines.append(f"Known: {_listed(list(_by_name(of_plugin or candidates)))}")
    command = f"List them:  esper components list {kind or ''}".rstrip()
    hint = "\n".join(line for line in (*lines, inactive_hint(records), command) if line)
    return ConfigError(Problem(code, message, hint=hint))


def ambiguous(kind: ComponentKind, name: str, context: str, claims: Sequence[Component]) -> ConfigError:
    """Return the error for a short name that several plugins provide."""
    ids = [f'"{component.id}" ({component.source})' for component in claims]
    message = f'several plugins have a {kind} "{name}"{_within(context)}'
    return ConfigError(Problem("E206", message, hint=f"Write one of:  {' or '.join(ids)}"))


def unusable(kind: ComponentKind | None, name: str, context: str, record: PluginRecord) -> ConfigError | PluginError:
    """Return the error for a name whose plugin is installed and not active, with the reason."""
    message = f'{kind or "component"} "{name}"{_within(context)} belongs to {record.title}, which is '
    if record.status == "disabled":
        hint = f'Take "{record.id}" out of plugins.disable.'
        return ConfigError(Problem("E209", message + "disabled", hint=hint))
    if record.status == "not-listed":
        return ConfigError(Problem("E209", message + "left out in safe mode", hint="Unset ESPER_SAFE_MODE."))
    hint = "\n".join([*map(str, record.problems), f"More:  esper plugins show {record.id}"])
    return PluginError(Problem("E209", message + record.status, hint=hint))


def unknown_plugin(name: str, records: Sequence[PluginRecord]) -> Problem:
    """Describe a plugin id that no plugin has."""
    hint = "\n".join([*_plugin_lines(name, records), "List them:  esper plugins list"])
    return Problem("E208", f'unknown plugin "{name}"', hint=hint)


def inactive_hint(records: Sequence[PluginRecord]) -> str | None:
    """List the plugins that are not active and so were not searched; None if all are."""
    inactive = [f"{record.id} ({record.source}, {record.status})" for record in records if record.status != "active"]
    return f"Not searched: {_listed(inactive)}" if inactive else None


def _did_you_mean(name: str, candidates: Sequence[Component]) -> str | None:
    """Suggest the nearest name that ``find`` would accept: of the same plugin, if it is known."""
    plugin, slash, short = name.rpartition("/")
    if of_plugin := {component.short: component for component in candidates if slash and component.plugin == plugin}:
        close = nearest(short, of_plugin)
        return f'Did you mean "{of_plugin[close].id}" ({of_plugin[close].source})?' if close else None
    names = {component.id: component for component in candidates} if slash else _by_name(candidates)
    # A wrong plugin before the slash makes the whole dissimilar, though the name after it may be nearly right.
    close = nearest(name, names) or nearest(short, names)
    return f'Did you mean "{close}" ({names[close].source})?' if close else None


def _by_name(components: Sequence[Component]) -> dict[str, Component]:
    """Return components by short name, or by full id where several have the same short name."""
    shorts = Counter(component.short for component in components)
    return {component.short if shorts[component.short] == 1 else component.id: component for component in components}


def _plugin_lines(name: str, records: Sequence[PluginRecord]) -> list[str]:
    """Suggest the first-party package of a plugin, the plugin of the package of this name, or the nearest id."""
    if name in FIRST_PARTY:
        return [f"Install it:  pip install {FIRST_PARTY[name]}"]
    close = nearest(name, [record.id for record in records])
    matching = [record for record in records if name == record.package or close == record.id]
    return [f'Did you mean "{record.id}" ({record.source})?' for record in matching[:1]]


def _within(context: str) -> str:
    return f" in {context}" if context else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")
