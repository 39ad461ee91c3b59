"""JSON schema of a configuration for editors, with the names and settings of what is installed.

A name that is not installed stays valid: a file may be written on another machine than it is run on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from esper_core.leyline.errors import EsperError
from esper_core.leyline.specs import COMPONENT_KINDS
from esper_run.config import RunConfig
from esper_run.engines import find_engine, installed_engines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, Plugins

_KINDS: Final[Mapping[str, ComponentKind]] = {
    "task": "task",
    "host": "host",
    "reward": "reward",
    "sinks": "sink",
    "policy": "policy",
    "schedule": "schedule",
}
"""The keys whose values are components, each with its kind."""

Schema = dict[str, Any]


def config_schema(plugins: Plugins) -> Schema:
    """Return the schema as plain data."""
    schema = RunConfig.model_json_schema()
    definitions = schema["$defs"]
    del definitions["Use"]
    for owner in (schema, *definitions.values()):
        properties = owner.get("properties", {})
        for key in properties.keys() & _KINDS.keys():
            text = json.dumps(properties[key]).replace('"#/$defs/Use"', f'"#/$defs/use-{_KINDS[key]}"')
            properties[key] = json.loads(text)
    for kind in COMPONENT_KINDS:
        definitions[f"use-{kind}"] = _use(cast("ComponentKind", kind), plugins, definitions)
    schema["properties"]["engine"] = {**schema["properties"]["engine"], **_engine(definitions)}
    schema["properties"]["engine"].pop("$ref", None)
    off = {"enum": ["off", False], "description": "Judge, restore and stop nothing."}
    schema["properties"]["governor"] = {"anyOf": [off, schema["properties"]["governor"]]}
    blueprints = definitions["SlotConfig"]["properties"]["blueprints"]
    blueprints["items"] = _names(plugins.registry.components("blueprint"), blueprints["items"])
    definitions["PluginsConfig"]["properties"]["settings"]["properties"] = {
        id_: _embedded(model, f"plugin.{id_}", definitions) for id_, model in plugins.settings.items()
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A run of Esper"}


def _use(kind: ComponentKind, plugins: Plugins, definitions: Schema) -> Schema:
    """Return the schema of one component: its name alone, or a mapping whose settings depend on the name."""
    components = plugins.registry.components(kind)
    names = _names(components, {"type": "string", "minLength": 1, "maxLength": 100})
    conditions = []
    for component in components:
        called = {"properties": {"use": {"enum": _names_of(component, components)}}, "required": ["use"]}
        settings = _settings(component, definitions)
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
    return {"anyOf": [names, {**mapping, "allOf": conditions} if conditions else mapping]}


def _engine(definitions: Schema) -> Schema:
    """Return the schema of the engine: an installed name, or any other, and settings that depend on it."""
    installed: list[Schema] = []
    conditions = []
    for name in installed_engines():
        try:
            engine = find_engine(name)
        except EsperError:
            continue
        installed.append({"const": name, "description": engine.summary})
        settings: Schema = {"type": "object", "maxProperties": 0}
        if engine.settings is not None:
            settings = _embedded(engine.settings, f"engine.{name}", definitions)
        called = {"properties": {"use": {"const": name}}, "required": ["use"]}
        conditions.append({"if": called, "then": {"properties": {"settings": settings}}})
    names = {"anyOf": [*installed, {"type": "string", "minLength": 1, "maxLength": 100}]}
    mapping = {
        "type": "object",
        "properties": {"use": names, "settings": {"type": "object"}},
        "required": ["use"],
        "additionalProperties": False,
        "allOf": conditions,
    }
    return {"anyOf": [names, mapping]}


def _names(components: Sequence[Component], otherwise: Schema) -> Schema:
    """Return the schema of a name: an installed one, with its summary, or any other."""
    constants = []
    for component in components:
        summary = getattr(component.spec, "summary", "")
        description = f"{summary}  ({component.source})" if summary else component.source
        constants += [{"const": name, "description": description} for name in _names_of(component, components)]
    return {"anyOf": [*constants, otherwise]}


def _names_of(component: Component, components: Sequence[Component]) -> list[str]:
    """Return the names of a component: its id, and its short name if that is unique."""
    unique = [candidate.short for candidate in components].count(component.short) == 1
    return [component.short, component.id] if unique else [component.id]


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
