"""What does a path of the configuration stand for? Its value, type, default, where it is from, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from esper_core.config.fields import entry_at
from esper_core.config.model import RunConfig, Section
from esper_core.config.paths import KeyPath, PathSyntaxError, parse_path, path_text
from esper_core.config.plain import plain
from esper_core.config.showing import quoted, shown
from esper_core.config.typewords import words
from esper_core.leyline import ConfigError, Problem
from esper_core.leyline.errors import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from esper_core.config.fields import Entry
    from esper_core.config.loading import LoadedConfig

_NONE = object()
"""No default: the value must be given, or a component decides."""


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
class _Guide:
    """What the models say of a path: the configuration's own, and those of components below their settings."""

    models: Mapping[KeyPath, type[BaseModel]]

    def entry(self, path: KeyPath) -> Entry | None:
        """What may stand at ``path``; None where no model knows of it."""
        root, below = self.root(path)
        return entry_at(below, root)

    def fields(self, value: Any, path: KeyPath) -> Mapping[str, FieldInfo]:
        """The fields of the component's model that stands at ``path``, if one does."""
        if not isinstance(value, dict):
            return {}
        entry = self.entry(path)
        model = self.models.get(path) or (entry.section if entry else None)
        return {} if model is None or issubclass(model, Section) else model.model_fields

    def inside(self, value: Any, path: KeyPath) -> dict[str | int, Any]:
        """What stands one step below ``path``: what was written, and what holds where nothing was."""
        if isinstance(value, Section):
            return {name: getattr(value, name) for name in type(value).model_fields}
        if isinstance(value, dict):
            own = {
                name: _default_of(field)
                for name, field in self.fields(value, path).items()
                if not {name, field.alias} & value.keys()
            }
            return {**value, **{name: _settled(default) for name, default in own.items() if default is not _NONE}}
        return dict(enumerate(value)) if isinstance(value, list | tuple) else {}

    def default(self, path: KeyPath) -> Any:
        """The value that ``path`` has where nobody writes one, or _NONE."""
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
        """The model that knows of ``path``, and the path below it. Of settings as a whole it is the file's own."""
        for length in range(len(path) - 1, 0, -1):
            if path[:length] in self.models:
                return self.models[path[:length]], path[length:]
        return RunConfig, path


def explain(
    loaded: LoadedConfig, path: str | None = None, models: Mapping[KeyPath, type[BaseModel]] | None = None
) -> list[Explanation]:
    """The value at ``path``, or each value in the section there; without a path, each of the whole configuration.

    ``models`` are those of components, by the path of their settings: what they do not name has any value.
    ConfigError E110 where nothing stands at ``path``.
    """
    start, guide = () if path is None else _parsed(path), _Guide(models or {})
    value = _value_at(guide, loaded.config, start)
    return [_explained(guide, loaded, at, leaf) for at, leaf in _leaves(guide, value, start)]


def _parsed(path: str) -> KeyPath:
    try:
        return parse_path(path)
    except PathSyntaxError as error:
        message = f"expected a path, received {quoted(path)}: {error}"
        raise ConfigError(Problem("E110", message, hint="Write it as slots.early.blueprints[0].")) from None


def _value_at(guide: _Guide, config: RunConfig, path: KeyPath) -> Any:
    value: Any = config
    for depth, step in enumerate(path):
        inside = guide.inside(value, path[:depth])
        if step not in inside:
            raise ConfigError(_nothing_there(path, depth, value, list(inside)))
        value = inside[step]
    return value


def _nothing_there(path: KeyPath, depth: int, value: Any, names: list[str | int]) -> Problem:
    step, above = path[depth], path_text(path[:depth])
    inside = f' in "{above}"' if above else ""
    received = f"[{step}]" if isinstance(step, int) else quoted(step)
    message = f"nothing is called {received}{inside}"
    if not names:
        hint = f"{above} is {shown(plain(value))}: it has nothing inside."
    elif isinstance(names[0], int):
        hint = f"{above} has the entries [0] to [{len(names) - 1}]."
    else:
        hint = suggestion(str(step), [str(name) for name in names])
    return Problem("E110", message, path=path_text(path), hint=hint)


def _leaves(guide: _Guide, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The values that are explained one by one: those of sections, and of mappings whose keys are the user's own."""
    entry, inside = guide.entry(path), guide.inside(value, path)
    is_own = isinstance(value, dict) and entry is not None and entry.is_mapping
    if inside and (isinstance(value, Section) or is_own or guide.fields(value, path)):
        for name, item in inside.items():
            yield from _leaves(guide, item, (*path, name))
    else:
        yield path, value


def _explained(guide: _Guide, loaded: LoadedConfig, path: KeyPath, value: Any) -> Explanation:
    entry, default = guide.entry(path), guide.default(path)
    return Explanation(
        path=path_text(path),
        value=plain(_settled(value), path),
        type=words(entry) if entry else "any value",
        default=None if default is _NONE else plain(_settled(default), path),
        has_default=default is not _NONE,
        origin=loaded.origin(path),
        description=(entry.field.description or "") if entry and entry.field else "",
    )


def _default_of(field: FieldInfo) -> Any:
    return _NONE if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def _settled(value: Any) -> Any:
    """What a component's model has as a default as plain data; what no file could hold as its text."""
    return value if isinstance(value, Section) else to_jsonable_python(value, fallback=str, inf_nan_mode="constants")
