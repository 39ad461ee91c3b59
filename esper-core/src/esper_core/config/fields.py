"""What may stand at a path of the configuration, or of a component's settings? What their pydantic models say."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from esper_core.config.model import RunConfig, Use

if TYPE_CHECKING:
    from esper_core.config.paths import KeyPath

_MAPPINGS = (dict, Mapping)
_LISTS = (list, tuple, set, frozenset, Sequence, AbstractSet)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the model says of one path. ``kind`` is the type without Annotated and None; ``field`` the nearest field."""

    kind: Any
    constraints: tuple[Any, ...] = ()
    nullable: bool = False
    field: FieldInfo | None = None

    @property
    def section(self) -> type[BaseModel] | None:
        """The model that stands here, if one does."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, BaseModel) else None

    @property
    def is_use(self) -> bool:
        """Whether a component stands here, which may be a name alone."""
        return self.kind is Use

    @property
    def is_mapping(self) -> bool:
        """Whether keys of one type stand here, with values of one type."""
        return (get_origin(self.kind) or self.kind) in _MAPPINGS

    @property
    def is_list(self) -> bool:
        """Whether a list stands here."""
        return (get_origin(self.kind) or self.kind) in _LISTS

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that may stand here, if they can be counted."""
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(member.value for member in self.kind)
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def names(self) -> list[str]:
        """The keys that are known here; empty where any may stand, or none."""
        return [field.alias or name for name, field in self.section.model_fields.items()] if self.section else []

    @property
    def key(self) -> Entry | None:
        """What a key must be, where a mapping stands here."""
        arguments = get_args(self.kind)
        return _entry(arguments[0], self.field) if self.is_mapping and arguments else None

    def below(self, step: str | int) -> Entry | None:
        """What may stand one step down, or None where the model knows no such place."""
        if self.section is not None:
            for name, field in self.section.model_fields.items():
                if step in (name, field.alias):
                    return _entry(field.annotation, field, tuple(field.metadata))
            return None
        if self.kind is Any:
            return self
        arguments = get_args(self.kind)
        if self.is_mapping and isinstance(step, str):
            return _entry(arguments[1] if arguments else Any, self.field)
        if self.is_list and isinstance(step, int):
            item = arguments[step if ... not in arguments and step < len(arguments) else 0] if arguments else Any
            return _entry(item, self.field)
        return None


def entry_at(path: KeyPath, root: type[BaseModel] = RunConfig) -> Entry | None:
    """What may stand at ``path`` below ``root``, or None where the model knows no such place."""
    entry: Entry | None = Entry(root)
    for step in path:
        entry = entry.below(step) if entry is not None else None
    return entry


def homes(name: str) -> list[KeyPath]:
    """Where a key of this name belongs, in sections that every configuration has.

    >>> homes("steps")
    [('episode', 'steps')]
    """
    return [path for path in _fixed_paths(RunConfig, ()) if path[-1] == name]


def _entry(annotation: Any, field: FieldInfo | None, constraints: tuple[Any, ...] = ()) -> Entry:
    """Take Annotated and None away, and collect what Annotated said."""
    nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            constraints += tuple(_flat(metadata))
        elif get_origin(annotation) in (Union, types.UnionType):
            members = get_args(annotation)
            others = [member for member in members if member is not type(None)]
            nullable = nullable or len(others) < len(members)
            if len(others) != 1:
                return Entry(annotation, constraints, nullable, field)
            annotation = others[0]
        else:
            return Entry(annotation, constraints, nullable, field)


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _fixed_paths(section: type[BaseModel], path: KeyPath) -> Iterator[KeyPath]:
    for name, field in section.model_fields.items():
        yield (*path, name)
        below = _entry(field.annotation, field).section
        if below is not None and below is not Use:
            yield from _fixed_paths(below, (*path, name))
