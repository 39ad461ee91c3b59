"""Turn the errors of a pydantic model into problems with a place and a hint.

The message is pydantic's own, with the value that was received. ``entry_at`` looks up what a model says of a key path.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from esper_core.config.model import REMOVED_VALUES, Described, RunConfig, Use
from esper_core.config.values import KeyPath, cut, path_text, quoted, shown, visible
from esper_core.config.yaml import NumberError, parse_scalar
from esper_core.leyline.errors import nearest, suggestion

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from esper_core.config.values import Places, Tree
    from esper_core.leyline.errors import Problem

_MAPPINGS = (dict, Mapping)
_LISTS = (list, tuple, set, frozenset, Sequence, AbstractSet)
_UNIONS = (Union, types.UnionType)

_KEY = "[key]"
"""pydantic's last step of a path whose key is wrong, and not its value."""

_OUT_OF_RANGE = frozenset(
    {
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number", "multiple_of"),
        *("string_too_short", "string_too_long", "string_pattern_mismatch", "too_short", "too_long"),
        *("literal_error", "enum"),
    }
)
"""pydantic's errors about a value of the right type."""

_IN_YAML = {
    "a valid tuple": "a list",
    "a valid dictionary": "a mapping",
    "a valid list": "a list",
    "Tuple ": "List ",
    "Dictionary ": "Mapping ",
}
"""What pydantic's messages call types of Python, and what they are in a file."""

_TRUTHS = {**dict.fromkeys(("yes", "on", "y", "1"), "true"), **dict.fromkeys(("no", "off", "n", "0"), "false")}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a model says of one path. ``kind`` is the type without Annotated and None; ``field`` the nearest field."""

    kind: Any
    constraints: tuple[Any, ...] = ()
    is_nullable: bool = False
    field: FieldInfo | None = None

    @property
    def section(self) -> type[BaseModel] | None:
        """The model that is here, if one is."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, BaseModel) else None

    @property
    def is_use(self) -> bool:
        """Whether a component is here, which may be its name alone."""
        return self.kind is Use

    @property
    def is_mapping(self) -> bool:
        """Whether a mapping with keys of the user's own is here."""
        return (get_origin(self.kind) or self.kind) in _MAPPINGS

    @property
    def is_list(self) -> bool:
        """Whether a list is here."""
        return (get_origin(self.kind) or self.kind) in _LISTS

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that are allowed here, if they are enumerated."""
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(member.value for member in self.kind)
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def names(self) -> list[str]:
        """The keys of the model that is here."""
        return [field.alias or name for name, field in self.section.model_fields.items()] if self.section else []

    @property
    def described(self) -> str | None:
        """The description of the type in words, if it has one."""
        return next((item.text for item in reversed(self.constraints) if isinstance(item, Described)), None)

    def below(self, step: str | int) -> Entry | None:
        """Return what may be one step down; None where the model knows no such place."""
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

    def key(self) -> Entry | None:
        """Return what the keys must be where a mapping is here."""
        arguments = get_args(self.kind)
        return _entry(arguments[0], self.field) if self.is_mapping and arguments else None


def entry_at(path: KeyPath, root: type[BaseModel] = RunConfig) -> Entry | None:
    """Return what ``root`` says of ``path``; None where it knows no such place."""
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
            for item in metadata:
                constraints += tuple(item.metadata) if isinstance(item, FieldInfo) else (item,)
        elif get_origin(annotation) in _UNIONS:
            members = get_args(annotation)
            others = [member for member in members if member is not type(None)]
            is_nullable = is_nullable or len(others) < len(members)
            if len(others) != 1:
                return Entry(annotation, constraints, is_nullable, field)
            annotation = others[0]
        else:
            return Entry(annotation, constraints, is_nullable, field)


def model_problems(error: ValidationError, tree: Tree, most: int) -> tuple[list[Problem], int]:
    """Return the first ``most`` errors of the configuration's model as problems, and how many are left.

    What was refused when the file was read is not reported again.
    """
    due = [details for details in _distinct(error, RunConfig) if not _is_known(details, tree)]
    translator = _Translator(RunConfig, (), tree.places)
    return [translator.problem(details) for details in due[:most]], max(0, len(due) - most)


def component_problems(error: ValidationError, model: type[BaseModel], path: KeyPath, places: Places) -> list[Problem]:
    """Return the errors of a component's own ``model`` as problems. ``path`` is that of the component's settings.

    Codes E110 to E113 as for the file's own keys; E120 for a check that the component makes itself.
    """
    translator = _Translator(model, path, places)
    return [translator.problem(details) for details in _distinct(error, model)]


def _distinct(error: ValidationError, root: type[BaseModel]) -> list[ErrorDetails]:
    """The errors, with those of the members of a union joined to one."""
    found: list[ErrorDetails] = []
    unions: dict[KeyPath, ErrorDetails] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and len(details["input"]) >= details.get("ctx", {}).get("min_length", 0):
            continue  # pydantic counts the valid items only
        path = _known(details["loc"], root)
        entry = entry_at(path, root)
        if entry is None or get_origin(entry.kind) not in _UNIONS or len(path) == len(details["loc"]):
            found.append(details)
        elif (before := unions.get(path)) is not None:
            before["msg"] += f" or {details['msg'].removeprefix('Input should be ')}"
        else:
            unions[path] = details
            details["loc"] = path
            found.append(details)
    return found


def _known(path: KeyPath, root: type[BaseModel]) -> KeyPath:
    """As much of ``path`` as the model has: pydantic appends the names of the members of a union."""
    while path and path[-1] != _KEY and entry_at(path, root) is None:
        path = path[:-1]
    return path


def _is_known(details: ErrorDetails, tree: Tree) -> bool:
    path = details["loc"]
    at = path[:-1] if details["type"] == "missing" else path
    is_left = details["type"] in ("missing", "too_short") and at in tree.incomplete
    return is_left or tree.is_refused(path)


@dataclass(frozen=True, slots=True)
class _Translator:
    """Turns errors of the model ``root``, which is at ``at`` of the configuration, into problems."""

    root: type[BaseModel]
    at: KeyPath
    places: Places

    def problem(self, details: ErrorDetails) -> Problem:
        path, kind = details["loc"], details["type"]
        name, above = str(path[-1]) if path else "", entry_at(path[:-1], self.root)
        if kind == "extra_forbidden":
            return self.at_path("E110", path, f"unknown key {quoted(name)}", self.meant(path, above), is_key=True)
        if kind == "missing":
            entry = entry_at(path, self.root)
            about = (entry.field.description or "") if entry and entry.field else ""
            where = path_text((*self.at, *path[:-1]))
            hint = f'Add "{name}: …"{f" to {where}" if where else ""}. {about}'.rstrip()
            return self.at_path("E113", path, f"the key {quoted(name)} is missing", hint)
        if name == _KEY and kind.startswith("string_"):
            parent = entry_at(path[:-2], self.root)
            key = parent.key() if parent else None
            expected = (key and key.described) or "another key"
            message = f"expected {expected}; received {quoted(str(path[-2]))}"
            return self.at_path("E112", path[:-1], message, "Choose another name.", is_key=True)
        return self.wrong_value(details)

    def at_path(
        self, code: str, path: KeyPath, message: str, hint: str | None = None, *, is_key: bool = False
    ) -> Problem:
        return self.places.problem(code, (*self.at, *path), message, hint, key=is_key)

    def wrong_value(self, details: ErrorDetails) -> Problem:
        """A value of the wrong type, out of range, or refused by a check of the component's own."""
        kind, value, path = details["type"], details["input"], _known(details["loc"], self.root)
        entry = entry_at(path, self.root)
        is_type = kind.endswith(("_type", "_parsing")) or kind in ("int_from_float", "is_instance_of")
        message = str(details.get("ctx", {}).get("error", details["msg"]))
        for python, yaml in _IN_YAML.items():
            message = message.replace(python, yaml)
        if entry is not None and entry.described and kind in _OUT_OF_RANGE:
            message = f"Input should be {entry.described}"
        elif entry is not None and entry.section is not None and is_type:
            keys = ", ".join(entry.names)
            message = f"Input should be {'the name of a component or ' * entry.is_use}a mapping with the keys {keys}"
        message = visible(cut(" ".join(message.split()), 300)).rstrip(".")
        if "received" not in message.casefold():
            received = f"{len(value):,} items" if kind == "too_long" else shown(value)
            message += f"; received {'nothing' if value is None else received}"
        hint = None if entry is None else _hint(entry, value, (*self.at, *path), self.root)
        code = "E111" if is_type else "E112" if kind in _OUT_OF_RANGE else "E120"
        return self.at_path(code, path, message, hint)

    def meant(self, path: KeyPath, above: Entry | None) -> str:
        """Suggest what an unknown key should be."""
        key, names = str(path[-1]), above.names if above else []
        before, colon, after = key.partition(":")
        if key == "<<":
            return "YAML 1.2 has no merge keys. Write the keys out."
        if colon and before in names:
            return f'Write "{before}: {visible(cut(after, 20))}", with a space after the colon.'
        if self.root is RunConfig and path == ("base",):
            return "Give the other file first and this one as an overlay:  esper run OTHER --overlay THIS"
        elsewhere = [path_text(home) for home in _fixed_paths(RunConfig, ()) if home[-1] == key]
        if self.root is RunConfig and elsewhere:
            return f"It belongs elsewhere: {' or '.join(elsewhere)}"
        if above is not None and above.is_use and nearest(key, names) is None:
            return f"Settings of a component are one level lower: {path_text((*self.at, *path[:-1], 'settings', key))}"
        return suggestion(key, names)


def _hint(entry: Entry, value: Any, path: KeyPath, root: type[BaseModel]) -> str | None:
    """Suggest what to write at ``path`` instead of ``value``; None where the message says it all."""
    name = path[-1] if path else ""
    if value is None:
        above = entry_at(path[:-1], RunConfig) if root is RunConfig else None
        has_default = above and above.section and entry.field and not entry.field.is_required()
        return f"Give it a value{', or delete the key: it has a default' if has_default else ''}."
    if root is RunConfig and isinstance(value, str) and (removed := REMOVED_VALUES.get(path, {}).get(value)):
        return removed
    if entry.choices and isinstance(value, str):
        return suggestion(value, [str(choice) for choice in entry.choices])
    if entry.kind is bool:
        return f"Write {_TRUTHS.get(str(value).casefold(), 'true or false')}, without quotes."
    if entry.kind in (int, float):
        return _number_hint(entry, value)
    if path in (("policy",), ("reward",)) and isinstance(value, list):
        return "To compare several policies, write arms." if path == ("policy",) else "Write several below rewards."
    if entry.is_use:
        return f"Write {name}: NAME"
    if entry.is_list and not isinstance(value, dict | list):
        items = [part.strip() for part in value.split(",")] if isinstance(value, str) else [shown(value)]
        return f"Write a list: {name}: [{cut(', '.join(items), 50)}]"
    if entry.kind is str and not isinstance(value, dict | list | str):
        return f'Put it in quotes: "{shown(value)}"'
    if (entry.section or entry.is_mapping) and not isinstance(value, dict):
        return "Write its keys indented below it, or as {key: value}."
    return None


def _number_hint(entry: Entry, value: Any) -> str | None:
    if isinstance(value, str):
        try:
            number = parse_scalar(value.strip().replace("_", "").replace(",", ""))
        except NumberError:
            return None
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        return f"Write it without quotes, commas or underscores: {shown(number)}"
    if entry.kind is int and isinstance(value, float) and value.is_integer():
        return f"Write it without a fraction or exponent: {shown(int(value))}"
    return None


def _fixed_paths(section: type[BaseModel], path: KeyPath) -> Iterator[KeyPath]:
    """The paths of the keys that every configuration has."""
    for name, field in section.model_fields.items():
        yield (*path, name)
        below = _entry(field.annotation, field).section
        if below is not None and below is not Use:
            yield from _fixed_paths(below, (*path, name))
