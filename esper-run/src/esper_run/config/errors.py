"""Turn the errors of a pydantic model into problems with a place and a hint.

The message is pydantic's own, with the value that was received. ``entry_at`` looks up what a model says of a key path.
"""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from esper_core.leyline.errors import Problem, nearest, suggestion
from esper_core.settings import Described, Use
from esper_run.config.model import RunConfig
from esper_run.config.values import KeyPath, cut, path_text, shown, visible

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from esper_run.config.values import Node

MAX_PROBLEMS: Final = 100
"""Problems that one error lists; the others are counted."""

_KEY = "[key]"
"""pydantic's last step of a path whose key is wrong, and not its value."""

_IN_YAML = {
    "tuple": "list",
    "Tuple": "List",
    "dictionary": "mapping",
    "Dictionary": "Mapping",
    "True": "true",
    "False": "false",
}
"""Types and values of Python in pydantic's messages, and what they are in a file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a model declares at a path. ``kind`` is the type without Annotated and None; ``field`` the nearest field."""

    kind: Any
    constraints: tuple[Any, ...] = ()
    is_nullable: bool = False
    field: FieldInfo | None = None

    @property
    def section(self) -> type[BaseModel] | None:
        """The model at this path; None if there is none."""
        return self.kind if self._is(BaseModel) else None

    @property
    def is_use(self) -> bool:
        """Whether the value is a component, perhaps by its name alone."""
        return self.kind is Use

    @property
    def is_mapping(self) -> bool:
        """Whether the value is a mapping with keys that the user chooses."""
        return self._is(Mapping)

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return self._is(Collection) and not self._is(Mapping) and not self._is(str)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that are allowed here, if they are enumerated."""
        if self._is(Enum):
            return tuple(member.value for member in self.kind)
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def names(self) -> list[str]:
        """The keys of the model at this path."""
        return list(self.section.model_fields) if self.section else []

    @property
    def described(self) -> str | None:
        """The description of the type in words, if it has one."""
        return next(
            (constraint.text for constraint in reversed(self.constraints) if isinstance(constraint, Described)), None
        )

    def below(self, step: str | int) -> Entry | None:
        """Return the entry for one more key; None if the model does not have it."""
        arguments = get_args(self.kind)
        if self.section is not None:
            field = self.section.model_fields.get(str(step))
            return None if field is None else _entry(field.annotation, field, tuple(field.metadata))
        if self.kind is Any:
            return self
        if self.is_mapping and isinstance(step, str):
            return _entry(arguments[1] if arguments else Any, self.field)
        if self.is_list and isinstance(step, int):
            member = arguments[step if ... not in arguments and step < len(arguments) else 0] if arguments else Any
            return _entry(member, self.field)
        return None

    def _is(self, kind: type) -> bool:
        origin = get_origin(self.kind) or self.kind
        return isinstance(origin, type) and issubclass(origin, kind)


def entry_at(path: KeyPath, root: type[BaseModel] = RunConfig) -> Entry | None:
    """Return what ``root`` declares at ``path``; None if it has no such path."""
    entry: Entry | None = Entry(root)
    for step in path:
        entry = entry.below(step) if entry is not None else None
    return entry


def _entry(annotation: Any, field: FieldInfo | None, constraints: tuple[Any, ...] = ()) -> Entry:
    """Take Annotated and None off a type, and collect what Annotated adds."""
    is_nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            for constraint in metadata:
                constraints += tuple(constraint.metadata) if isinstance(constraint, FieldInfo) else (constraint,)
            continue
        members = [member for member in get_args(annotation) if member is not type(None)]
        if not _is_union(annotation) or len(members) == len(get_args(annotation)):
            return Entry(annotation, constraints, is_nullable, field)
        is_nullable = True
        annotation = Union[tuple(members)]  # noqa: UP007 – its members are only known here


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def model_problems(error: ValidationError, model: type[BaseModel], root: Node, path: KeyPath = ()) -> list[Problem]:
    """Return the errors of ``model``, which checked what is at ``path`` of the configuration ``root``, as problems.

    Codes E110 to E113; E120 for a check that the model makes itself.
    """
    details_by_path: dict[KeyPath, ErrorDetails] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and len(details["input"]) >= details.get("ctx", {}).get("min_length", 0):
            continue  # pydantic counts the valid items only
        place = _without_union_members(details["loc"], model)
        if place in details_by_path:
            details_by_path[place]["msg"] += f" or {details['msg'].removeprefix('Input should be ')}"
        else:
            details["loc"] = place
            details_by_path[place] = details
    problems = [_problem(details, model, root, path) for details in list(details_by_path.values())[:MAX_PROBLEMS]]
    if len(details_by_path) > MAX_PROBLEMS:
        message = f"{len(details_by_path) - MAX_PROBLEMS:,} more problems are not shown"
        problems.append(Problem("E100", message, hint="Fix the problems above first."))
    return problems


def _without_union_members(path: KeyPath, model: type[BaseModel]) -> KeyPath:
    """Return ``path`` up to a union: pydantic appends the names of its members."""
    for length in range(len(path)):
        entry = entry_at(path[:length], model)
        if entry is not None and _is_union(entry.kind):
            return path[:length]
    return path


def _problem(details: ErrorDetails, model: type[BaseModel], root: Node, start: KeyPath) -> Problem:
    path, kind = details["loc"], details["type"]
    if path and path[-1] == _KEY:
        mapping = entry_at(path[:-2], model)
        types_ = get_args(mapping.kind) if mapping else ()
        path, entry = path[:-1], _entry(types_[0], None) if types_ else None
        return root.problem("E112", (*start, *path), _message(details, entry), "Choose another name.", key=True)
    entry = entry_at(path, model)
    if kind == "extra_forbidden":
        message = f"unknown key {shown(path[-1])}"
        return root.problem("E110", (*start, *path), message, _meant(path, model, start), key=True)
    if kind == "missing":
        about = (entry.field.description or "") if entry and entry.field else ""
        section = path_text((*start, *path[:-1]))
        hint = f'Add "{path[-1]}: …"{f" to {section}" if section else ""}. {about}'.rstrip()
        return root.problem("E113", (*start, *path), f"the key {shown(path[-1])} is missing", hint)
    code = "E111" if _is_wrong_type(kind) else "E120" if kind in ("value_error", "assertion_error") else "E112"
    return root.problem(code, (*start, *path), _message(details, entry), _hint(details, entry))


def _is_wrong_type(kind: str) -> bool:
    return kind.endswith(("_type", "_parsing")) or kind in ("int_from_float", "is_instance_of")


def _message(details: ErrorDetails, entry: Entry | None) -> str:
    """Return pydantic's message, or the description of the type, with the value that was received."""
    kind, value = details["type"], details["input"]
    message = str(details.get("ctx", {}).get("error", details["msg"]))
    message = re.sub(r"\w+", lambda word: _IN_YAML.get(word[0], word[0]), message)
    if entry is not None and entry.described and not _is_wrong_type(kind) and kind != "value_error":
        message = f"Input should be {entry.described}"
    elif entry is not None and entry.section is not None and _is_wrong_type(kind):
        keys = ", ".join(entry.names)
        message = f"Input should be {'the name of a component or ' * entry.is_use}a mapping with the keys {keys}"
    message = visible(cut(" ".join(message.split()), 300)).rstrip(".")
    if "received" in message.casefold():
        return message
    received = "nothing" if value is None else f"{len(value):,} items" if kind == "too_long" else shown(value)
    return f"{message}; received {received}"


def _hint(details: ErrorDetails, entry: Entry | None) -> str | None:
    """Suggest what to write instead of a value; None if the message suffices."""
    value, path = details["input"], details["loc"]
    if entry is None:
        return None
    if value is None:
        return "Give it a value, or delete the key if it has a default."
    if entry.choices and isinstance(value, str):
        return suggestion(value, [_IN_YAML.get(str(choice), str(choice)) for choice in entry.choices])
    if entry.kind is bool:
        return "Write true or false, without quotes."
    if entry.is_list and isinstance(value, str):
        return f"Write a list: {path[-1]}: [{visible(cut(value))}]"
    if entry.kind is str and not isinstance(value, dict | list | str):
        return f'Put it in quotes: "{shown(value)}"'
    return None


def _meant(path: KeyPath, model: type[BaseModel], start: KeyPath) -> str:
    """Suggest what an unknown key should be."""
    key, above = str(path[-1]), entry_at(path[:-1], model)
    names = above.names if above else []
    places = [path_text(place) for place in _fixed_paths(RunConfig, ()) if place[-1] == key]
    if model is RunConfig and places:
        return f"The key belongs at: {' or '.join(places)}"
    if above is not None and above.is_use and nearest(key, names) is None:
        return f"Settings of a component are one level lower: {path_text((*start, *path[:-1], 'settings', key))}"
    return suggestion(key, names)


def _fixed_paths(section: type[BaseModel], path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of the keys that every configuration has."""
    for name, field in section.model_fields.items():
        yield (*path, name)
        below = _entry(field.annotation, field).section
        if below is not None and below is not Use:
            yield from _fixed_paths(below, (*path, name))
