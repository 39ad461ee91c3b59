"""What is said about a name that nothing answers to? What was probably meant, where it may be, and how to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from esper_core.leyline.errors import ConfigError, PluginError, Problem
from esper_core.leyline.nearest import nearest
from esper_core.plugins.gate import FIRST_PARTY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.component import Component
    from esper_core.plugins.records import PluginRecord

CODES: Final[Mapping[ComponentKind, str]] = {
    "blueprint": "E201",
    "host": "E202",
    "policy": "E203",
    "reward": "E204",
    "sink": "E225",
    "task": "E205",
}
"""The code of an unknown name, by kind."""

PLURALS: Final[Mapping[ComponentKind, str]] = {
    "blueprint": "blueprints",
    "host": "hosts",
    "policy": "policies",
    "reward": "rewards",
    "sink": "sinks",
    "task": "tasks",
}

USUAL_PACKAGE: Final[Mapping[ComponentKind, str]] = {
    "blueprint": "esper-blueprints",
    "host": "esper-tasks",
    "policy": "esper-policies",
    "reward": "esper-rewards",
    "task": "esper-tasks",
}
"""The project's own package that brings components of a kind, where there is one."""

_MOST_SHOWN: Final = 12


class UnknownComponent(ConfigError):
    """A name in the configuration, or on the command line, that no active plugin answers to."""


class UnusableComponent(PluginError):
    """A name whose plugin is installed, but broken or rejected."""


def unknown(
    kind: ComponentKind, name: str, context: str, known: Sequence[Component], others: Sequence[Component]
) -> Problem:
    """The problem that no ``kind`` is called so. ``others`` are the components of the other kinds."""
    plugin, slash, _ = name.rpartition("/")
    lines = [f'"{other.id}" is a {other.kind} ({other.source}).' for other in others if name in (other.id, other.short)]
    if not known:
        lines.append(_none_there(kind))
    elif close := _close(name, known):
        lines.append(f'Did you mean "{close[0]}" ({close[1].source})?')
    elif slash and plugin in FIRST_PARTY and plugin not in {component.plugin for component in known}:
        lines.append(f'There is no plugin "{plugin}":  pip install {FIRST_PARTY[plugin]}')
    else:
        names = [component.short for component in known]
        lines.append(f"Known: {', '.join(names[:_MOST_SHOWN])}" + (", …" if len(names) > _MOST_SHOWN else ""))
    return Problem(CODES[kind], f'unknown {kind} "{name}"{_within(context)}', hint=_hint(kind, lines))


def unknown_of_any_kind(
    name: str, known: Sequence[Component], records: Sequence[PluginRecord]
) -> UnknownComponent | UnusableComponent:
    """The error that no component of whatever kind is called so."""
    for record in records:
        if record.status != "active" and name.startswith(f"{record.id}/"):
            return unusable("component", name, "", record)
    lines = [f'Did you mean "{close[0]}" ({close[1].source})?'] if (close := _close(name, known)) else []
    if (inactive := inactive_hint(records)) is not None:
        lines.append(inactive)
    hint = "\n".join([*lines, "All:  esper components list"])
    return UnknownComponent(Problem("E200", f'unknown component "{name}"', hint=hint))


def nothing_matches(kind: ComponentKind, pattern: str, context: str, *, any_known: bool) -> Problem:
    """The problem that a pattern stands for nothing."""
    lines = [] if any_known else [_none_there(kind)]
    return Problem("E207", f'no {kind} matches "{pattern}"{_within(context)}', hint=_hint(kind, lines))


def ambiguous(kind: ComponentKind, name: str, context: str, claims: Sequence[Component]) -> Problem:
    """The problem that several plugins bring a component of this name."""
    ids = [f'"{component.id}" ({component.source})' for component in claims]
    return Problem(
        "E206",
        f'{len(claims)} {PLURALS[kind]} are called "{name}"{_within(context)}',
        hint=f"Write which one:  {' or '.join(ids)}",
    )


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


def _none_there(kind: ComponentKind) -> str:
    package = USUAL_PACKAGE.get(kind)
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


def _hint(kind: ComponentKind, lines: Sequence[str]) -> str:
    return "\n".join([*lines, f"All {PLURALS[kind]}:  esper components list {kind}"])
