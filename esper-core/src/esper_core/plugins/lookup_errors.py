"""Lookup errors: explain a name that cannot be found, with a suggestion and the command that helps.

Three things can be unknown: the plugin in front of the slash, the name behind it, and the version of a package that a
configuration requires. Each has its own message, as have a name that is ambiguous and one whose plugin is not active.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from esper_core.leyline.errors import ConfigError, PluginError, Problem, nearest
from esper_core.plugins.discovery import FIRST_PARTY, pip_range
from esper_core.plugins.isolation import attempt, hook_callers, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pluggy

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.records import Component, PluginRecord

CODES: Final[Mapping[ComponentKind, str]] = {
    "blueprint": "E201",
    "host": "E202",
    "policy": "E203",
    "reward": "E204",
    "schedule": "E230",
    "sink": "E225",
    "task": "E205",
}
"""The error code of an unknown name, by kind."""

PLURALS: Final[Mapping[ComponentKind, str]] = {
    "blueprint": "blueprints",
    "host": "hosts",
    "policy": "policies",
    "reward": "rewards",
    "schedule": "schedules",
    "sink": "sinks",
    "task": "tasks",
}

USUAL_PACKAGE: Final[Mapping[ComponentKind, str]] = {
    "blueprint": "esper-blueprints",
    "host": "esper-tasks",
    "policy": "esper-policies",
    "reward": "esper-rewards",
    "schedule": "esper-policies",
    "sink": "esper-watch",
    "task": "esper-tasks",
}
"""The project's own package that provides components of a kind."""

_MAX_LISTED: Final = 12
"""Names that a message lists."""


class UnknownComponent(ConfigError):
    """A name, in the configuration or on the command line, that no active plugin provides."""


class UnusableComponent(PluginError):
    """A name whose plugin is installed, but broken or rejected."""


def unknown_component(
    kind: ComponentKind, name: str, context: str, components: Sequence[Component], records: Sequence[PluginRecord]
) -> UnknownComponent:
    """Return the error for a name that no component of a kind has.

    Args:
        kind: the kind that was looked up.
        name: the name, short or with its plugin.
        context: where the name is used, for the message: ``slot "early"``.
        components: every component there is.
        records: every plugin there is.
    """
    plugin, slash, short = name.rpartition("/")
    known = [component for component in components if component.kind == kind]
    own = [component for component in known if component.plugin == plugin]
    message = f'unknown {kind} "{name}"{_within(context)}'
    if slash and _is_unknown_plugin(plugin, records):
        message += f': there is no plugin "{plugin}"'
    elif slash:
        message += f': plugin "{plugin}" has no {kind} "{short}"'
    lines = [
        f'"{other.id}" is a {other.kind} ({other.source}).'
        for other in components
        if other.kind != kind and name in (other.id, other.short)
    ]
    if not known:
        lines.append(_none_installed(kind, records))
    elif close := _closest(name, known):
        lines.append(f'Did you mean "{close[0]}" ({close[1].source})?')
    elif slash and _is_unknown_plugin(plugin, records):
        lines.append(_unknown_plugin_hint(plugin, records))
    else:
        lines.append(f"Known: {_listed([component.short for component in own or known])}")
    return UnknownComponent(Problem(CODES[kind], message, hint=_hint(kind, lines, records)))


def unknown_of_any_kind(
    name: str,
    components: Sequence[Component],
    records: Sequence[PluginRecord],
    ask: Callable[[ComponentKind, str], str | None] = lambda kind, name: None,
) -> UnknownComponent | UnusableComponent:
    """Return the error for a name that no component of any kind has.

    ``ask`` returns what plugins know of the name as a component of one kind.
    """
    for record in records:
        if record.status != "active" and name.startswith(f"{record.id}/"):
            return unusable("component", name, "", record)
    lines = [f'Did you mean "{close[0]}" ({close[1].source})?'] if (close := _closest(name, components)) else []
    if (inactive := inactive_hint(records)) is not None:
        lines.append(inactive)
    hint = "\n".join([*lines, "All:  esper components list"])
    error = UnknownComponent(Problem("E200", f'unknown component "{name}"', hint=hint))
    answers = [line for kind in CODES if (line := ask(kind, name))]
    distinct = [
        line for line in dict.fromkeys(answers) if not any(line in other and line != other for other in answers)
    ]
    return with_hint_line(error, "\n".join(distinct))


def no_match(
    kind: ComponentKind, pattern: str, context: str, components: Sequence[Component], records: Sequence[PluginRecord]
) -> UnknownComponent:
    """Return the error for a pattern that matches no component; arguments as for ``unknown_component``."""
    plugin, slash, _ = pattern.rpartition("/")
    lines = []
    if all(component.kind != kind for component in components):
        lines = [_none_installed(kind, records)]
    elif slash and _is_unknown_plugin(plugin, records):
        lines = [_unknown_plugin_hint(plugin, records)]
    message = f'no {kind} matches "{pattern}"{_within(context)}'
    return UnknownComponent(Problem("E207", message, hint=_hint(kind, lines, records)))


def ambiguous(kind: ComponentKind, name: str, context: str, claims: Sequence[Component]) -> UnknownComponent:
    """Return the error for a short name that several plugins provide."""
    ids = [f'"{component.id}" ({component.source})' for component in claims]
    message = f'{len(claims)} {PLURALS[kind]} are called "{name}"{_within(context)}'
    return UnknownComponent(Problem("E206", message, hint=f"Write which one:  {' or '.join(ids)}"))


def unusable(
    kind: ComponentKind | Literal["component"], name: str, context: str, record: PluginRecord
) -> UnknownComponent | UnusableComponent:
    """Return the error for a name whose plugin is installed and not active, with the reason."""
    message = f'{kind} "{name}"{_within(context)} belongs to {record.title}, which is '
    if record.status == "disabled":
        hint = f'Take "{record.id}" out of plugins.disable.'
        return UnknownComponent(Problem("E209", message + "disabled", hint=hint))
    if record.status == "not-listed":
        return UnknownComponent(Problem("E209", message + "left out in safe mode", hint="Unset ESPER_SAFE_MODE."))
    causes = [line for problem in record.problems for line in str(problem).splitlines()]
    hint = "\n".join([*causes, f"More:  esper plugins show {record.id}"])
    return UnusableComponent(Problem("E209", message + record.status, hint=hint))


def unknown_plugin(name: str, records: Sequence[PluginRecord]) -> Problem:
    """Describe a plugin id that no plugin has."""
    close = _closest_plugin(name, records)
    lines = [f'Did you mean "{close.id}" ({close.source})?'] if close else []
    if close is None and name in FIRST_PARTY:
        lines.append(f"Install it:  pip install {FIRST_PARTY[name]}")
    return Problem("E208", f'unknown plugin "{name}"', hint="\n".join([*lines, "All plugins:  esper plugins list"]))


def missing_requirement(name: str, pin: str, records: Sequence[PluginRecord]) -> Problem:
    """Describe a plugin that ``plugins.require`` names and that is not installed."""
    close = _closest_plugin(name, records)
    lines = [f'Did you mean "{close.id}"?'] if close else []
    subject = "it" if name in FIRST_PARTY else "the package that brings it"
    lines.append(f'Install {subject}:  pip install "{FIRST_PARTY.get(name, "PACKAGE")}{pip_range(pin)}"')
    message = f'plugin "{name}" is required in {pin}, and not installed'
    return Problem("E226", message, path=f"plugins.require.{name}", hint="\n".join(lines))


def inactive_hint(records: Sequence[PluginRecord]) -> str | None:
    """List the plugins that are not active and so were not searched; None if all are."""
    inactive = [f"{record.id} ({record.source}, {record.status})" for record in records if record.status != "active"]
    return f"Not searched: {_listed(inactive)}" if inactive else None


def ask_plugins(
    manager: pluggy.PluginManager, records: Sequence[PluginRecord], kind: ComponentKind, name: str
) -> str | None:
    """Return what the first plugin that knows of a missing component says, in one line; None if none does.

    The line also names each plugin that raised.
    """
    titles = {record.id: record.title for record in records}
    faults: list[str] = []
    for plugin, call in hook_callers(manager, "esper_component_missing").items():
        asked = attempt(lambda call=call: call(kind=kind, name=name))  # type: ignore[misc]
        if asked.error is not None:
            faults.append(f"({titles[plugin]} failed in esper_component_missing: {summarise(asked.error)})")
        elif isinstance(asked.value, str) and asked.value.strip():
            return "  ".join([" ".join(asked.value.split()), *faults])
    return "  ".join(faults) or None


def with_hint_line(error: UnknownComponent, line: str | None) -> UnknownComponent:
    """Return the error with a further line in its hint, before the command that lists what there is."""
    if not line:
        return error
    (problem,) = error.problems
    *first, last = (problem.hint or "").splitlines()
    return UnknownComponent(replace(problem, hint="\n".join([*first, line, last])))


def _none_installed(kind: ComponentKind, records: Sequence[PluginRecord]) -> str:
    """Say that no component of a kind is there, and which package or setting would change that."""
    package = USUAL_PACKAGE[kind]
    for record in records:
        if record.package == package and record.status != "active":
            remedy = ". Take it out of plugins.disable." if record.status == "disabled" else "."
            return f'There is no {kind}: "{record.id}" ({record.source}) is {record.status}{remedy}'
    return f"No {kind} is installed. Install some:  pip install {package}"


def _closest(name: str, known: Sequence[Component]) -> tuple[str, Component] | None:
    """Return the nearest name that ``find`` would accept, with its component."""
    plugin, slash, short = name.rpartition("/")
    shorts = [component.short for component in known]
    own = {component.short: component for component in known if slash and component.plugin == plugin}
    if own:
        close = nearest(short, own)
        return (own[close].id, own[close]) if close else None
    names = {
        component.id if slash or shorts.count(component.short) > 1 else component.short: component
        for component in known
    }
    close = nearest(name, names) or nearest(short, names)
    return (close, names[close]) if close else None


def _closest_plugin(name: str, records: Sequence[PluginRecord]) -> PluginRecord | None:
    """Return the plugin of the package of this name, or else the one with the nearest id."""
    for record in records:
        if record.package == name:
            return record
    close = nearest(name, [record.id for record in records])
    return next((record for record in records if record.id == close), None)


def _is_unknown_plugin(plugin: str, records: Sequence[PluginRecord]) -> bool:
    return all(record.id != plugin for record in records)


def _unknown_plugin_hint(plugin: str, records: Sequence[PluginRecord]) -> str:
    """Suggest a plugin's package, the nearest id, or the installed plugins."""
    if plugin in FIRST_PARTY:
        return f"Install it:  pip install {FIRST_PARTY[plugin]}"
    close = nearest(plugin, [record.id for record in records])
    return f'Did you mean plugin "{close}"?' if close else f"Plugins: {_listed([record.id for record in records])}"


def _within(context: str) -> str:
    return f" in {context}" if context else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")


def _hint(kind: ComponentKind, lines: Sequence[str], records: Sequence[PluginRecord]) -> str:
    inactive = inactive_hint(records)
    further = [] if inactive is None else [inactive]
    return "\n".join([*lines, *further, f"All {PLURALS[kind]}:  esper components list {kind}"])
