"""``esper components``: what a run can use, by the names that a configuration gives it. Listing imports none of it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from esper_core.cli.rendering import aligned, print_json, print_line, print_table, visible
from esper_core.leyline.errors import PluginError, suggestion
from esper_core.leyline.specs import COMPONENT_KINDS, BlueprintSpec, HostSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, Plugins


@click.group()
def components() -> None:
    """Show what a run can use: blueprints, hosts, policies, rewards, sinks, tasks."""


def _kind(_context: click.Context, _parameter: click.Parameter, given: str | None) -> ComponentKind | None:
    """The kind that was meant; its plural will do."""
    if given is None:
        return None
    from esper_core.plugins.lookup_errors import PLURALS

    for kind, plural in PLURALS.items():
        if given in (kind, plural):
            return kind
    message = f'there is no kind "{given}". {suggestion(given, COMPONENT_KINDS)}'
    raise click.BadParameter(visible(message))


@components.command("list")
@click.argument("kind", required=False, callback=_kind, metavar=f"[{'|'.join(COMPONENT_KINDS)}]")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, kind, package, …} as JSON.")
def list_components(kind: ComponentKind | None, *, as_json: bool) -> None:
    """List the components of all active plugins, or those of one kind."""
    found = _load()
    listed = found.registry.components(kind)
    if as_json:
        print_json([described(component) for component in listed])
    elif listed:
        shorts = [(component.kind, component.short) for component in listed]
        print_table(
            ["kind", "name", "package", "summary"],
            [
                [
                    component.kind,
                    component.short if shorts.count((component.kind, component.short)) == 1 else component.id,
                    component.source,
                    component.spec.summary,
                ]
                for component in listed
            ],
        )
    else:
        print_line(f"There is no {kind or 'component'}.")
    _tell_inactive(found)


@components.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, kind, package, …} as JSON.")
def show_component(name: str, *, as_json: bool) -> None:
    """Show one component: what it says of itself, and its settings."""
    found = _load()
    shown = [one for one in found.registry.components() if name in (one.id, one.short)]
    if not shown:
        from esper_core.plugins.lookup_errors import ask_plugins, unknown_of_any_kind

        ask = partial(ask_plugins, found.manager, found.records)
        raise unknown_of_any_kind(name, found.registry.components(), found.records, ask)
    schemas, problems = _schemas(shown)
    if as_json:
        print_json([{**described(one), "settings_schema": schema} for one, schema in zip(shown, schemas, strict=True)])
    else:
        for one, schema in zip(shown, schemas, strict=True):
            _show(one, schema)
    if problems:
        raise PluginError(problems)


def described(component: Component) -> dict[str, Any]:
    """A component as JSON: its place, then what its specification says."""
    spec = component.spec
    told: dict[str, Any] = {
        "id": component.id,
        "short": component.short,
        "kind": component.kind,
        "plugin": component.plugin,
        "package": component.package,
        "version": component.version,
        "summary": spec.summary,
        "target": _place(component.target),
    }
    if isinstance(spec, BlueprintSpec):
        told |= {
            "accepts": list(spec.kinds),
            "params": spec.params,
            "starts_as_identity": spec.starts_as_identity,
            "traits": list(spec.traits),
            "blueprint_version": spec.version,
        }
        return told
    if isinstance(spec, HostSpec):
        told["slots"] = {name: asdict(place) for name, place in spec.slots.items()}
    told["settings"] = None if spec.settings is None else _place(spec.settings)
    return told


def _load() -> Plugins:
    from esper_core.plugins import load_plugins

    return load_plugins()


def _place(thing: Callable[..., Any] | str) -> str:
    """Where something stands, as "module:attribute"."""
    if isinstance(thing, str):
        return thing
    kind = type(thing)
    return f"{getattr(thing, '__module__', kind.__module__)}:{getattr(thing, '__qualname__', kind.__qualname__)}"


def _schemas(shown: list[Component]) -> tuple[list[dict[str, Any] | None], list[Any]]:
    """The JSON schema of each component's settings, and why one could not be had."""
    schemas: list[dict[str, Any] | None] = []
    problems: list[Any] = []
    for component in shown:
        schema = None
        try:
            model = component.settings_model()
            schema = None if model is None else model.model_json_schema()
        except PluginError as error:
            problems.extend(error.problems)
        schemas.append(schema)
    return schemas, problems


def _show(component: Component, schema: dict[str, Any] | None) -> None:
    told = described(component)
    print_line(visible(f"{component.kind} {component.id}"))
    if component.spec.summary:
        print_line(visible(f"  {component.spec.summary}"))
    facts = [
        ("", name, _plain(value)) for name, value in told.items() if name not in ("id", "short", "kind", "summary")
    ]
    for line in aligned(facts):
        print_line(visible(line))
    properties: dict[str, Any] = (schema or {}).get("properties", {})
    if properties:
        needed = set((schema or {}).get("required", ()))
        rows = [
            [
                name,
                "needed" if name in needed else f"default {_plain(value.get('default'))}",
                value.get("description", ""),
            ]
            for name, value in properties.items()
        ]
        print_line()
        print_table(["setting", "", "meaning"], rows)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if isinstance(value, dict):
        return ", ".join(
            f"{name} ({_plain([v for v in inner.values() if v is not None])})" for name, inner in value.items()
        )
    return "none" if value is None else str(value)


def _tell_inactive(found: Plugins) -> None:
    """On stderr, where plugins are missing from the list."""
    from esper_core.plugins.lookup_errors import inactive_hint

    if hint := inactive_hint(found.records):
        for line in (hint, "More:  esper plugins list"):
            print_line(visible(line), stream=sys.stderr)
