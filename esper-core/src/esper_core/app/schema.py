"""JSON schema of a configuration for editors, with the names and settings of what is installed.

A name that is not installed stays valid: a file may be written on another machine than it is run on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from esper_core.config import RunConfig
from esper_core.leyline.errors import EsperError
from esper_core.leyline.specs import COMPONENT_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, Plugins, Registry

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_USES: Final[Mapping[str, ComponentKind]] = {"task": "task", "host": "host", "reward": "reward"}
"""Top-level keys whose value is one component, each with its kind."""

Schema = dict[str, Any]


def config_schema(plugins: Plugins) -> Schema:
    """Return the schema as plain data."""
    schema = RunConfig.model_json_schema()
    definitions = schema["$defs"]
    for kind in COMPONENT_KINDS:
        definitions[f"use-{kind}"] = _use(cast("ComponentKind", kind), plugins.registry, definitions)
    top = schema["properties"]
    for key, kind in _USES.items():
        top[key] = _described(top[key], {"$ref": f"#/$defs/use-{kind}"})
    top["policy"] = _described(top["policy"], {"anyOf": [{"$ref": "#/$defs/use-policy"}, {"type": "null"}]})
    top["sinks"]["items"] = {"$ref": "#/$defs/use-sink"}
    top["rewards"]["items"] = {"$ref": "#/$defs/use-reward"}
    own = definitions["OptimizerConfig"]["properties"]
    own["schedule"] = _described(own["schedule"], {"anyOf": [{"$ref": "#/$defs/use-schedule"}, {"type": "null"}]})
    arm = definitions["ArmConfig"]["properties"]
    arm["policy"] = _described(arm["policy"], {"$ref": "#/$defs/use-policy"})
    slot = definitions["SlotConfig"]["properties"]
    slot["blueprints"]["items"] = _names(plugins.registry.components("blueprint"), slot["blueprints"]["items"])
    own = definitions["PluginsConfig"]["properties"]["settings"]
    own["properties"] = {id_: _embedded(model, f"plugin.{id_}", definitions) for id_, model in plugins.settings.items()}
    definitions.pop("Use", None)
    return {"$schema": DIALECT, "title": "A run of Esper", **{key: schema[key] for key in schema if key != "title"}}


def _described(before: Schema, now: Schema) -> Schema:
    """Return a new schema for a key that keeps its description and default."""
    return {**{key: before[key] for key in ("description", "default") if key in before}, **now}


def _use(kind: ComponentKind, registry: Registry, definitions: Schema) -> Schema:
    """Return the schema of one component: its name alone, or a mapping whose settings depend on the name."""
    components = registry.components(kind)
    names = _names(components, {"type": "string", "minLength": 1, "maxLength": 100})
    conditions = []
    for component in components:
        settings = _settings(component, definitions)
        called = {"properties": {"use": {"enum": _names_of(component, components)}}, "required": ["use"]}
        conditions.append({"if": called, "then": {"properties": {"settings": settings}}})
    mapping: Schema = {
        "type": "object",
        "properties": {
            "use": {**names, "description": f"Name of the {kind}, short or with its plugin."},
            "settings": {"type": "object", "description": f"Settings of the {kind}, checked by it."},
        },
        "required": ["use"],
        "additionalProperties": False,
    }
    if conditions:
        mapping["allOf"] = conditions
    return {"anyOf": [names, mapping]}


def _names(components: Sequence[Component], otherwise: Schema) -> Schema:
    """Return the schema of a name: an installed one, with its summary, or any other."""
    known = [
        {"const": name, "description": _line(component)}
        for component in components
        for name in _names_of(component, components)
    ]
    return {"anyOf": [*known, otherwise]}


def _names_of(component: Component, components: Sequence[Component]) -> list[str]:
    """Return the names of a component: its id, and its short name if that is unique."""
    unique = [one.short for one in components].count(component.short) == 1
    return [component.short, component.id] if unique else [component.id]


def _line(component: Component) -> str:
    summary = getattr(component.spec, "summary", "")
    return f"{summary}  ({component.source})" if summary else component.source


def _settings(component: Component, definitions: Schema) -> Schema:
    try:
        model = component.settings_model()
    except EsperError as error:
        return {"type": "object", "description": f"Unknown: {error.problems[0].message}"}
    if model is None:
        return {"type": "object", "maxProperties": 0, "description": f'{component.kind} "{component.id}" has none.'}
    return _embedded(model, f"{component.kind}.{component.id}".replace("/", "."), definitions)


def _embedded(model: type[BaseModel], name: str, definitions: Schema) -> Schema:
    """Add the schema of a model to the definitions under ``name``, and return a reference to it."""
    schema = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[f"{name}.{inner}"] = definition
    definitions[name] = schema
    return {"$ref": f"#/$defs/{name}"}
