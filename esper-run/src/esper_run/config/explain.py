"""Explain the values of a configuration: type, default, origin and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from esper_core.leyline.errors import ConfigError, Problem, suggestion
from esper_run.config.errors import Entry, entry_at
from esper_run.config.model import RunConfig
from esper_run.config.values import KeyPath, parse_path, path_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from esper_run.config.loading import LoadedConfig

_NONE = object()
"""No default: the value is required, or a component decides."""

_BOUNDS = {
    **{"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"},
    **{"min_length": "length ≥", "max_length": "length ≤"},
}


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


@dataclass(frozen=True, slots=True)
class _Item:
    """A value with what the models say of it. ``default`` is _NONE where there is none."""

    path: KeyPath
    value: Any
    entry: Entry | None
    default: Any

    def inside(self, models: Mapping[KeyPath, type[BaseModel]]) -> dict[str | int, _Item]:
        """Return what is one step below: what was written, and the defaults of the rest."""
        entry = Entry(models[self.path]) if self.path in models else self.entry
        fields = entry.section.model_fields if entry and entry.section else {}
        defaults = {name: _default_of(field, name, self.default) for name, field in fields.items()}
        value: dict[Any, Any] = {}
        if isinstance(self.value, BaseModel):
            value = {name: getattr(self.value, name) for name in fields}
        elif isinstance(self.value, dict):
            value = self.value | {
                name: default for name, default in defaults.items() if name not in self.value and default is not _NONE
            }
        elif isinstance(self.value, list | tuple):
            value = dict(enumerate(self.value))
        return {
            step: _Item((*self.path, step), child, entry and entry.below(step), defaults.get(step, _NONE))
            for step, child in value.items()
        }

    def leaves(self, models: Mapping[KeyPath, type[BaseModel]]) -> Iterator[_Item]:
        """Yield the values to explain one by one: those of sections, and of mappings with keys of the user's own."""
        inside = self.inside(models)
        if inside and self.entry and (self.entry.section or self.entry.is_mapping):
            for child in inside.values():
                yield from child.leaves(models)
        else:
            yield self


def explain(
    loaded: LoadedConfig, path: str | None = None, models: Mapping[KeyPath, type[BaseModel]] | None = None
) -> list[Explanation]:
    """Explain the value at ``path``, or each value of the section there; without a path, the whole configuration.

    ``models`` are those of components by the path of their settings. ConfigError E110 where nothing is at ``path``.
    """
    try:
        start = () if path is None else parse_path(path)
    except ValueError as error:
        message = f"expected a path, received {shown(path)}: {error}"
        raise ConfigError(Problem("E110", message, hint="Write it as slots.early.blueprints[0].")) from None
    models = models or {}
    node = _Item((), loaded.config, entry_at((), RunConfig), _NONE)
    for step in start:
        inside = node.inside(models)
        if step not in inside:
            message = f"there is no {path_text((*node.path, step))}"
            raise ConfigError(Problem("E110", message, path=path, hint=suggestion(str(step), map(str, inside))))
        node = inside[step]
    return [_explained(loaded, leaf) for leaf in node.leaves(models)]


def _explained(loaded: LoadedConfig, leaf: _Item) -> Explanation:
    entry, has_default = leaf.entry, leaf.default is not _NONE
    return Explanation(
        path=path_text(leaf.path),
        value=_plain(leaf.value),
        type=type_text(entry) if entry else "any value",
        default=_plain(leaf.default) if has_default else None,
        has_default=has_default,
        origin=loaded.origin(leaf.path),
        description=(entry.field.description or "") if entry and entry.field else "",
    )


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
        names = {bool: "true | false", int: "integer", float: "number", str: "text"}
        text = "list" if entry.is_list else "mapping" if entry.is_mapping else names.get(entry.kind, "any value")
        bounds: dict[str, Any] = {}
        for constraint in entry.constraints:
            bounds |= {name: bound for name in _BOUNDS if (bound := getattr(constraint, name, None)) is not None}
        text += "".join(f", {sign} {_number(bounds[name])}" for name, sign in _BOUNDS.items() if name in bounds)
    return f"{text}, or null" if entry.is_nullable else text


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default_of(field: FieldInfo, name: str, above: Any) -> Any:
    """Return the default of a field, which may be part of the default of the section ``above``."""
    if isinstance(above, BaseModel):
        return getattr(above, name)
    return _NONE if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def _plain(value: Any) -> Any:
    """Return a value as plain data; what no file can hold becomes its text."""
    return to_jsonable_python(value, fallback=str, inf_nan_mode="constants")
