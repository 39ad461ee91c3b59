"""``esper plugins`` and ``esper components``: show what is installed, what a run can use, and problems with it.

Listing imports plugins but none of their components, and works with broken plugins.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from esper_core.leyline.errors import ConfigError, PluginError, printable, suggestion
from esper_core.leyline.specs import COMPONENT_KINDS, BlueprintSpec, HostSpec
from esper_run.cli.exits import preparation
from esper_run.cli.main import OpenGroup
from esper_run.cli.output import print_facts, print_json, print_line, print_problems, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.errors import Problem
    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, Plugins


@click.group(cls=OpenGroup)
def plugins() -> None:
    """Show the installed plugins and their problems."""


_local_option = click.option(
    "--local",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also load a one-file plugin, as plugins.local does.",
)


@plugins.command("list")
@_local_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, package, version, status, …} as JSON.")
def list_plugins(local: tuple[Path, ...], *, as_json: bool) -> None:
    """List the installed plugins and their problems."""
    loaded = _load(local)
    if as_json:
        print_json([asdict(record) for record in loaded.records])
        return
    if loaded.records:
        head = ["id", "package", "version", "status", "components"]
        rows = [
            [record.id, record.package, record.version, record.status, str(len(record.components))]
            for record in loaded.records
        ]
        print_table(head, rows)
    else:
        print_line("No plugin is installed. Install some:  pip install esper-blueprints esper-policies esper-tasks")
    _print_problems(loaded.problems)


@plugins.command("show")
@click.argument("id")
@_local_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, package, version, status, …} as JSON.")
def show_plugin(id: str, local: tuple[Path, ...], *, as_json: bool) -> None:
    """Show one plugin: its package, its hooks, its components, its problems.

    \b
    esper plugins show blueprints
    esper plugins show my-plugin --local my_plugin.py
    """
    loaded = _load(local)
    records = [record for record in loaded.records if record.id == id]
    if not records:
        raise ConfigError(loaded.unknown(id))
    if as_json:
        print_json([asdict(record) for record in records])
        return
    for record in records:
        print_line(printable(record.id))
        facts = [
            ("status", record.status),
            ("package", record.source),
            ("entry point", record.origin),
            ("hooks", ", ".join(record.hooks) or "none"),
            ("components", ", ".join(record.components) or "none"),
        ]
        print_facts(facts)
    _print_problems(list(dict.fromkeys(problem for record in records for problem in record.problems)))


def _load(local: Sequence[Path] = ()) -> Plugins:
    """Load the plugins; ConfigError if one of the files cannot be a plugin."""
    from esper_core.plugins import load_plugins

    with preparation():
        loaded = load_plugins(local=local) if local else load_plugins()
    if refused := [replace(problem, path=None) for problem in loaded.problems if problem.code == "E227"]:
        raise ConfigError(refused)
    return loaded


def _print_problems(problems: Sequence[Problem]) -> None:
    if problems:
        print_line()
        print_problems(problems, stream=sys.stdout)


# --- components


@click.group()
def components() -> None:
    """Show what a run can use: blueprints, hosts, policies, rewards, sinks, tasks."""


def _kind(_context: click.Context, _parameter: click.Parameter, word: str | None) -> ComponentKind | None:
    """Return the kind for a word in singular or plural."""
    if word is None:
        return None
    kind = "policy" if word == "policies" else word.removesuffix("s")
    if kind in COMPONENT_KINDS:
        return cast("ComponentKind", kind)
    message = f'there is no kind "{word}". {suggestion(word, COMPONENT_KINDS)}'
    raise click.BadParameter(printable(message))


@components.command("list")
@click.argument("kind", required=False, callback=_kind, metavar=f"[{'|'.join(COMPONENT_KINDS)}]")
@_local_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, kind, package, …} as JSON.")
def list_components(kind: ComponentKind | None, local: tuple[Path, ...], *, as_json: bool) -> None:
    """List the components of all active plugins, or those of one kind."""
    loaded = _load(local)
    listed = loaded.registry.components(kind)
    if as_json:
        print_json([_describe(component) for component in listed])
    elif listed:
        shorts = [(component.kind, component.short) for component in listed]
        names = [
            component.short if shorts.count((component.kind, component.short)) == 1 else component.id
            for component in listed
        ]
        rows = [
            [component.kind, name, component.source, component.spec.summary]
            for component, name in zip(listed, names, strict=True)
        ]
        print_table(["kind", "name", "package", "summary"], rows)
    else:
        print_line(f"There is no {kind or 'component'}.")
    if hint := loaded.inactive_hint:
        for line in (hint, "More:  esper plugins list"):
            print_line(printable(line), stream=sys.stderr)


@components.command("show")
@click.argument("name")
@_local_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, kind, package, …} as JSON.")
def show_component(name: str, local: tuple[Path, ...], *, as_json: bool) -> None:
    """Show one component: its description and its settings."""
    loaded = _load(local)
    shown = loaded.registry.find_any(name)
    described = [_describe(component) for component in shown]
    problems: list[Problem] = []
    for component, facts in zip(shown, described, strict=True):
        try:
            model = component.settings_model()
            facts["settings_schema"] = None if model is None else model.model_json_schema()
        except PluginError as error:
            facts["settings_schema"] = None
            problems += error.problems
    if as_json:
        print_json(described)
    else:
        for facts in described:
            _show_component(facts)
    if problems:
        raise PluginError(problems)


def _describe(component: Component) -> dict[str, Any]:
    """Return a component as JSON: where it comes from, then what its specification says."""
    spec = component.spec
    described: dict[str, Any] = {
        **{name: getattr(component, name) for name in ("id", "short", "kind", "plugin", "package", "version")},
        "summary": spec.summary,
        "target": component.title.target,
    }
    if isinstance(spec, BlueprintSpec):
        return described | {
            "accepts": spec.kinds,
            "starts_as_identity": spec.starts_as_identity,
            "adapts": spec.adapts,
            "blueprint_version": spec.version,
        }
    if isinstance(spec, HostSpec):
        described["slots"] = {name: asdict(place) for name, place in spec.slots.items()}
    settings = spec.settings
    if isinstance(settings, type):
        settings = f"{settings.__module__}:{settings.__qualname__}"
    return described | {"settings": settings}


def _show_component(facts: dict[str, Any]) -> None:
    print_line(printable(f"{facts['kind']} {facts['id']}"))
    if facts["summary"]:
        print_line(printable(f"  {facts['summary']}"))
    shown_elsewhere = ("id", "short", "kind", "summary", "settings_schema")
    print_facts([(name, _plain(value)) for name, value in facts.items() if name not in shown_elsewhere])
    schema = facts["settings_schema"] or {}
    rows = []
    for name, value in schema.get("properties", {}).items():
        default = "required" if name in schema.get("required", ()) else f"default {_plain(value.get('default'))}"
        rows.append([name, default, value.get("description", "")])
    if rows:
        print_line()
        print_table(["setting", "", "meaning"], rows)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(member) for member in value)
    if isinstance(value, dict):
        return ", ".join(
            f"{name} ({_plain([v for v in inner.values() if v is not None])})" for name, inner in value.items()
        )
    return "none" if value is None else str(value)
