"""Explain the values of a configuration: type, default, origin and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from esper_core.config.errors import entry_at
from esper_core.config.loading import plain
from esper_core.config.model import RunConfig, Section
from esper_core.config.values import KeyPath, PathSyntaxError, parse_path, path_text, quoted, shown
from esper_core.leyline.errors import ConfigError, Problem, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from esper_core.config.errors import Entry
    from esper_core.config.loading import LoadedConfig

_NONE = object()
"""No default: the value is required, or a component decides."""

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of", "min_length": "length ≥"}
_BOUNDS["max_length"] = "length ≤"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One value of a configuration. ``value`` and ``default`` are plain data; ``default`` is None without a default."""

    path: str
    value: Any
    type: str
    default: Any
    has_default: bool
    origin: str
    description: str


def explain(
    loaded: LoadedConfig, path: str | None = None, models: Mapping[KeyPath, type[BaseModel]] | None = None
) -> list[Explanation]:
    """Explain the value at ``path``, or each value of the section there; without a path, the whole configuration.

    ``models`` are those of components by the path of their settings. ConfigError E110 where nothing is at ``path``.
    """
    try:
        start = () if path is None else parse_path(path)
    except PathSyntaxError as error:
        message = f"expected a path, received {quoted(path or '')}: {error}"
        raise ConfigError(Problem("E110", message, hint="Write it as slots.early.blueprints[0].")) from None
    known = _Models(models or {})
    value: Any = loaded.config
    for depth, step in enumerate(start):
        inside = known.inside(value, start[:depth])
        if step not in inside:
            raise ConfigError(_not_found(start, depth, value, list(inside)))
        value = inside[step]
    return [_explained(known, loaded, at, leaf) for at, leaf in _leaves(known, value, start)]


def type_text(entry: Entry) -> str:
    """Describe a type with its bounds or its choices.

    >>> print(type_text(entry_at(("episode", "steps"))))
    integer, ≥ 1, ≤ 100,000
    """
    if entry.described:
        text = entry.described
    elif entry.choices:
        text = " | ".join(str(choice) for choice in entry.choices)
    elif entry.section is not None:
        text = "component" if entry.is_use else "mapping"
    else:
        names = {bool: "true | false", int: "integer", float: "number", str: "text", Any: "any value"}
        text = "list" if entry.is_list else "mapping" if entry.is_mapping else names.get(entry.kind, "any value")
        found: dict[str, Any] = {}
        for item in entry.constraints:
            found |= {name: bound for name in _BOUNDS if (bound := getattr(item, name, None)) is not None}
        text += "".join(f", {sign} {_number(found[name])}" for name, sign in _BOUNDS.items() if name in found)
    return f"{text}, or null" if entry.is_nullable else text


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class _Models:
    """The model of the configuration, and those of components by the path of their settings."""

    models: Mapping[KeyPath, type[BaseModel]]

    def entry(self, path: KeyPath) -> Entry | None:
        """Return what a model says of ``path``; None where none knows it."""
        root, below = self.root(path)
        return entry_at(below, root)

    def fields(self, value: Any, path: KeyPath) -> Mapping[str, FieldInfo]:
        """Return the fields of the component's model at ``path``, if one is there."""
        if not isinstance(value, dict):
            return {}
        entry = self.entry(path)
        model = self.models.get(path) or (entry.section if entry else None)
        return {} if model is None or issubclass(model, Section) else model.model_fields

    def inside(self, value: Any, path: KeyPath) -> dict[str | int, Any]:
        """Return what is one step below ``path``: what was written, and the defaults of the rest."""
        if isinstance(value, Section):
            return {name: getattr(value, name) for name in type(value).model_fields}
        if isinstance(value, dict):
            own = {
                name: _default_of(field)
                for name, field in self.fields(value, path).items()
                if not {name, field.alias} & value.keys()
            }
            return {**value, **{name: _as_data(default) for name, default in own.items() if default is not _NONE}}
        return dict(enumerate(value)) if isinstance(value, list | tuple) else {}

    def default(self, path: KeyPath) -> Any:
        """Return the value of ``path`` where none is given, or _NONE."""
        root, below = self.root(path)
        default: Any = _NONE
        for length, step in enumerate(below):
            above = entry_at(below[:length], root)
            if isinstance(default, BaseModel):
                default = getattr(default, str(step), _NONE)
            elif isinstance(default, dict):
                default = default.get(step, _NONE)
            elif above is None or above.section is None or (field := above.section.model_fields.get(str(step))) is None:
                default = _NONE
            else:
                default = _default_of(field)
        return default

    def root(self, path: KeyPath) -> tuple[type[BaseModel], KeyPath]:
        """Return the model that knows ``path``, and the path below it."""
        for length in range(len(path) - 1, 0, -1):
            if path[:length] in self.models:
                return self.models[path[:length]], path[length:]
        return RunConfig, path


def _not_found(path: KeyPath, depth: int, value: Any, names: list[str | int]) -> Problem:
    step, above = path[depth], path_text(path[:depth])
    received = f"[{step}]" if isinstance(step, int) else quoted(step)
    message = f"there is no {received}" + (f' in "{above}"' if above else "")
    if not names:
        hint = f"{above} is {shown(plain(value))}: it has no entries."
    elif isinstance(names[0], int):
        hint = f"{above} has the entries [0] to [{len(names) - 1}]."
    else:
        hint = suggestion(str(step), [str(name) for name in names])
    return Problem("E110", message, path=path_text(path), hint=hint)


def _leaves(known: _Models, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values to explain one by one: those of sections, and of mappings with keys of the user's own."""
    entry, inside = known.entry(path), known.inside(value, path)
    is_own = isinstance(value, dict) and entry is not None and entry.is_mapping
    if inside and (isinstance(value, Section) or is_own or known.fields(value, path)):
        for name, item in inside.items():
            yield from _leaves(known, item, (*path, name))
    else:
        yield path, value


def _explained(known: _Models, loaded: LoadedConfig, path: KeyPath, value: Any) -> Explanation:
    entry, default = known.entry(path), known.default(path)
    return Explanation(
        path=path_text(path),
        value=plain(_as_data(value), path),
        type=type_text(entry) if entry else "any value",
        default=None if default is _NONE else plain(_as_data(default), path),
        has_default=default is not _NONE,
        origin=loaded.origin(path),
        description=(entry.field.description or "") if entry and entry.field else "",
    )


def _default_of(field: FieldInfo) -> Any:
    return _NONE if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def _as_data(value: Any) -> Any:
    """Return a default of a component's model as plain data; what no file can hold becomes its text."""
    return value if isinstance(value, Section) else to_jsonable_python(value, fallback=str, inf_nan_mode="constants")
