"""What does a path of the configuration stand for? Its value, type, default, where it is from, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_core.config.fields import entry_at
from esper_core.config.model import RunConfig, Section
from esper_core.config.paths import KeyPath, PathSyntaxError, parse_path, path_text
from esper_core.config.plain import plain
from esper_core.config.showing import quoted, shown
from esper_core.config.typewords import words
from esper_core.leyline import ConfigError, Problem
from esper_core.leyline.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def explain(loaded: LoadedConfig, path: str | None = None) -> list[Explanation]:
    """The value at ``path``, or each value in the section there; without a path, each of the whole configuration.

    ConfigError E110 where nothing stands at ``path``.
    """
    start = () if path is None else _parsed(path)
    value = _value_at(loaded.config, start)
    return [_explained(loaded, at, leaf) for at, leaf in _leaves(value, start)]


def _parsed(path: str) -> KeyPath:
    try:
        return parse_path(path)
    except PathSyntaxError as error:
        message = f"expected a path, received {quoted(path)}: {error}"
        raise ConfigError(Problem("E110", message, hint="Write it as slots.early.blueprints[0].")) from None


def _value_at(config: RunConfig, path: KeyPath) -> Any:
    value: Any = config
    for depth, step in enumerate(path):
        names = _names(value)
        if step not in names:
            raise ConfigError(_nothing_there(path, depth, value, names))
        value = getattr(value, str(step)) if isinstance(value, Section) else value[step]
    return value


def _names(value: Any) -> list[str | int]:
    """The steps that lead below ``value``."""
    if isinstance(value, Section):
        return list(type(value).model_fields)
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list | tuple) else []


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


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The values that are explained one by one: those of sections, and of mappings whose keys are the user's own."""
    entry = entry_at(path)
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict) and value and entry is not None and entry.is_mapping:
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    else:
        yield path, value


def _explained(loaded: LoadedConfig, path: KeyPath, value: Any) -> Explanation:
    entry = entry_at(path)
    default = _default_at(path)
    return Explanation(
        path=path_text(path),
        value=plain(value, path),
        type=words(entry) if entry else "any value",
        default=None if default is _NONE else plain(default, path),
        has_default=default is not _NONE,
        origin=loaded.origin(path),
        description=(entry.field.description or "") if entry and entry.field else "",
    )


def _default_at(path: KeyPath) -> Any:
    """The value that ``path`` has where nobody writes one, or _NONE."""
    default: Any = _NONE
    for length in range(1, len(path) + 1):
        section = entry_at(path[: length - 1])
        step = path[length - 1]
        if section is None or section.section is None:
            default = _NONE
        elif isinstance(default, Section):
            default = getattr(default, str(step))
        else:
            field = section.section.model_fields[str(step)]
            default = _NONE if field.is_required() else field.get_default(call_default_factory=True)
    return default
