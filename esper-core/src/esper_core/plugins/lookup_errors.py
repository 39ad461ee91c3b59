"""What is said about a name that nothing answers to? What was probably meant, where it may be, and how to get it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from esper_core.leyline.errors import ConfigError, PluginError, Problem, nearest
from esper_core.plugins.discovery import FIRST_PARTY, compact
from esper_core.plugins.isolation import attempt, callers, summary_of

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
"""The code of an unknown name, by kind."""

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
"""The project's own package that brings components of a kind, where there is one."""

_MOST_SHOWN: Final = 12


class UnknownComponent(ConfigError):
    """A name in the configuration, or on the command line, that no active plugin answers to."""


class UnusableComponent(PluginError):
    """A name whose plugin is installed, but broken or rejected."""


def unknown(
    kind: ComponentKind, name: str, context: str, components: Sequence[Component], records: Sequence[PluginRecord]
) -> UnknownComponent:
    """The error that no ``kind`` is called so."""
    known = [component for component in components if component.kind == kind]
    lines = [
        f'"{other.id}" is a {other.kind} ({other.source}).'
        for other in components
        if other.kind != kind and name in (other.id, other.short)
    ]
    if not known:
        lines.append(_none_there(kind, records))
    elif close := _close(name, known):
        lines.append(f'Did you mean "{close[0]}" ({close[1].source})?')
    elif missing := _missing_plugin(name, records):
        lines.append(missing)
    else:
        names = [component.short for component in known]
        lines.append(f"Known: {', '.join(names[:_MOST_SHOWN])}" + (", …" if len(names) > _MOST_SHOWN else ""))
    message = f'unknown {kind} "{name}"{_within(context)}'
    return UnknownComponent(Problem(CODES[kind], message, hint=_hint(kind, lines, records)))


def unknown_of_any_kind(
    name: str,
    known: Sequence[Component],
    records: Sequence[PluginRecord],
    missing: Callable[[ComponentKind, str], str | None] = lambda kind, name: None,
) -> UnknownComponent | UnusableComponent:
    """The error that no component of whatever kind is called so.

    ``missing`` is asked about the name as a component of each kind, as where a configuration names one.
    """
    for record in records:
        if record.status != "active" and name.startswith(f"{record.id}/"):
            return unusable("component", name, "", record)
    lines = [f'Did you mean "{close[0]}" ({close[1].source})?'] if (close := _close(name, known)) else []
    if (inactive := inactive_hint(records)) is not None:
        lines.append(inactive)
    hint = "\n".join([*lines, "All:  esper components list"])
    error = UnknownComponent(Problem("E200", f'unknown component "{name}"', hint=hint))
    said = [line for kind in CODES if (line := missing(kind, name))]
    once = [line for line in dict.fromkeys(said) if not any(line in other and line != other for other in said)]
    return with_line(error, "\n".join(once))


def nothing_matches(
    kind: ComponentKind, pattern: str, context: str, components: Sequence[Component], records: Sequence[PluginRecord]
) -> UnknownComponent:
    """The error that a pattern stands for nothing."""
    missing = _missing_plugin(pattern, records)
    lines = [missing] if missing else []
    if all(component.kind != kind for component in components):
        lines = [_none_there(kind, records)]
    message = f'no {kind} matches "{pattern}"{_within(context)}'
    return UnknownComponent(Problem("E207", message, hint=_hint(kind, lines, records)))


def ambiguous(kind: ComponentKind, name: str, context: str, claims: Sequence[Component]) -> UnknownComponent:
    """The error that several plugins bring a component of this name."""
    ids = [f'"{component.id}" ({component.source})' for component in claims]
    message = f'{len(claims)} {PLURALS[kind]} are called "{name}"{_within(context)}'
    return UnknownComponent(Problem("E206", message, hint=f"Write which one:  {' or '.join(ids)}"))


def unusable(
    kind: ComponentKind | Literal["component"], name: str, context: str, record: PluginRecord
) -> UnknownComponent | UnusableComponent:
    """The error that a name belongs to a plugin that is installed and not active."""
    message = f'{kind} "{name}"{_within(context)} belongs to plugin "{record.id}" ({record.source}), which is '
    if record.status == "disabled":
        hint = f'Take "{record.id}" out of plugins.disable.'
        return UnknownComponent(Problem("E209", message + "disabled", hint=hint))
    if record.status == "not-listed":
        return UnknownComponent(Problem("E209", message + "left out in safe mode", hint="Unset ESPER_SAFE_MODE."))
    causes = [line for problem in record.problems for line in str(problem).splitlines()]
    hint = "\n".join([*causes, f"More:  esper plugins show {record.id}"])
    return UnusableComponent(Problem("E209", message + record.status, hint=hint))


def inactive_hint(records: Sequence[PluginRecord]) -> str | None:
    """Which plugins were not looked into; None where all were."""
    inactive = [f"{record.id} ({record.source}, {record.status})" for record in records if record.status != "active"]
    if not inactive:
        return None
    shown = ", ".join(inactive[:_MOST_SHOWN]) + (", …" if len(inactive) > _MOST_SHOWN else "")
    return f"Not looked into: {shown}"


def unknown_plugin(name: str, records: Sequence[PluginRecord]) -> Problem:
    """The problem that no plugin has this id."""
    by_package = [record for record in records if record.package == name]
    close = by_package[0].id if by_package else nearest(name, [record.id for record in records])
    meant = [record for record in records if record.id == close]
    lines = [f'Did you mean "{close}" ({meant[0].source})?'] if meant else []
    if not meant and name in FIRST_PARTY:
        lines.append(f"Install it:  pip install {FIRST_PARTY[name]}")
    return Problem("E208", f'unknown plugin "{name}"', hint="\n".join([*lines, "All plugins:  esper plugins list"]))


def required_missing(name: str, pin: str, records: Sequence[PluginRecord]) -> Problem:
    """The problem that a plugin which the file requires is not installed."""
    by_package = [record for record in records if record.package == name]
    close = by_package[0].id if by_package else nearest(name, [record.id for record in records])
    hint = f'Did you mean "{close}"?\n' if close else ""
    if name in FIRST_PARTY:
        hint += f'Install it:  pip install "{FIRST_PARTY[name]}{compact(pin)}"'
    else:
        hint += f'Install the package that brings it:  pip install "PACKAGE{compact(pin)}"'
    message = f'plugin "{name}" is required in {pin}, and not installed'
    return Problem("E226", message, path=f"plugins.require.{name}", hint=hint)


def with_line(error: UnknownComponent, line: str | None) -> UnknownComponent:
    """The error with a line more in its hint, before the command that lists what there is."""
    if not line:
        return error
    (problem,) = error.problems
    *first, last = (problem.hint or "").splitlines()
    return UnknownComponent(replace(problem, hint="\n".join([*first, line, last])))


def _none_there(kind: ComponentKind, records: Sequence[PluginRecord]) -> str:
    package = USUAL_PACKAGE.get(kind)
    for record in records:
        if record.package == package and record.status == "disabled":
            return f'No {kind} is there: "{record.id}" ({record.source}) is disabled. Take it out of plugins.disable.'
        if record.package == package and record.status != "active":
            return f'No {kind} is there: "{record.id}" ({record.source}) is {record.status}.'
    return f"No {kind} is installed." + (f" Install some:  pip install {package}" if package else "")


def _close(name: str, known: Sequence[Component]) -> tuple[str, Component] | None:
    shorts = [component.short for component in known]
    names = {component.id: component for component in known}
    if "/" not in name:
        names = {
            component.short if shorts.count(component.short) == 1 else component.id: component for component in known
        }
    found = nearest(name, names) or nearest(name.rpartition("/")[2], names)
    return None if found is None else (found, names[found])


def _within(context: str) -> str:
    return f" in {context}" if context else ""


def _missing_plugin(name: str, records: Sequence[PluginRecord]) -> str | None:
    """What to say of a full id whose plugin is not installed."""
    plugin, slash, _ = name.rpartition("/")
    if not slash or plugin in [record.id for record in records]:
        return None
    package = FIRST_PARTY.get(plugin)
    return f'No plugin "{plugin}" is installed' + (f":  pip install {package}" if package else ".")


def _hint(kind: ComponentKind, lines: Sequence[str], records: Sequence[PluginRecord]) -> str:
    inactive = inactive_hint(records)
    further = [] if inactive is None else [inactive]
    return "\n".join([*lines, *further, f"All {PLURALS[kind]}:  esper components list {kind}"])


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
