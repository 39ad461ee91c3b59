"""What does a model object to, in plain words? Of each error of pydantic: place, expected, received, way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_core.config.fields import entry_at, homes
from esper_core.config.model import RunConfig
from esper_core.config.paths import KeyPath, path_text
from esper_core.config.remedies import remedy
from esper_core.config.showing import cut, quoted, shown, visible
from esper_core.config.typewords import words
from esper_core.leyline.errors import nearest, suggestion

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    from esper_core.config.places import Places, Tree
    from esper_core.leyline import Problem

_KEY = "[key]"
"""What pydantic puts behind a path where not the value but the key is wrong."""

_RANGES = frozenset(
    {
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number", "multiple_of"),
        *("string_too_short", "string_too_long", "string_pattern_mismatch", "too_short", "too_long"),
        *("literal_error", "enum"),
    }
)
"""pydantic's errors about a value of the right type. Of others it is pydantic, or a plugin's author, that speaks."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The model that objects, and where it stands in the configuration."""

    root: type[BaseModel]
    at: KeyPath
    places: Places

    def problem(self, details: ErrorDetails) -> Problem:
        """One error of pydantic as a problem."""
        path, kind = details["loc"], details["type"]
        if kind == "extra_forbidden":
            hint = self.home_of(path)
            return self.tell("E110", path, f"unknown key {quoted(str(path[-1]))}", hint, key=True)
        if kind == "missing":
            return self.missing(path)
        if path[-1:] == (_KEY,) and kind.startswith("string_"):
            return self.wrong_key(path[:-1])
        return self.wrong_value(details)

    def tell(self, code: str, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """A problem with ``path``, which is relative to this model."""
        return self.places.problem(code, (*self.at, *path), message, hint, key=key)

    def missing(self, path: KeyPath) -> Problem:
        """A key that must be there: shown at the mapping that lacks it."""
        entry = entry_at(path, self.root)
        about = entry.field.description if entry and entry.field and entry.field.description else ""
        above = path_text((*self.at, *path[:-1]))
        hint = f'Add "{path[-1]}: …"{f" to {above}" if above else ""}. {about}'.rstrip()
        return self.tell("E113", path, f"the key {quoted(str(path[-1]))} is missing", hint)

    def wrong_key(self, path: KeyPath) -> Problem:
        """A key that a mapping with keys of the user's own cannot have."""
        above = entry_at(path[:-1], self.root)
        expected = words(above.key) if above and above.key else "another key"
        message = f"expected {expected}, received {quoted(str(path[-1]))}"
        return self.tell("E112", path, message, "Choose another name.", key=True)

    def wrong_value(self, details: ErrorDetails) -> Problem:
        """A value of the wrong type, out of range, or refused by a check of the component's own."""
        kind, value = details["type"], details["input"]
        path = self.known(details["loc"])
        entry = entry_at(path, self.root)
        is_type = kind.endswith(("_type", "_parsing")) or kind in ("int_from_float", "is_instance_of")
        if entry is None or path != details["loc"] or not (is_type or kind in _RANGES):
            said = _one_line(details.get("ctx", {}).get("error", details["msg"]))
            received = "" if "received" in said.casefold() else f"; received {shown(value)}"
            return self.tell("E111" if is_type else "E120", path, f"{said}{received}")
        message = f"expected {words(entry)}, received {_received(value, kind)}"
        hint = remedy(entry, value, (*self.at, *path), kind, optional=self.is_optional(path))
        return self.tell("E111" if is_type else "E112", path, message, hint)

    def known(self, path: KeyPath) -> KeyPath:
        """As much of ``path`` as the model has; pydantic adds the names of a union's members to it."""
        while path and entry_at(path, self.root) is None:
            path = path[:-1]
        return path

    def is_optional(self, path: KeyPath) -> bool:
        """Whether the key at ``path`` has a default, so that it can be left out."""
        entry, above = entry_at(path, self.root), entry_at(path[:-1], self.root)
        return bool(above and above.section and entry and entry.field and not entry.field.is_required())

    def home_of(self, path: KeyPath) -> str:
        """Where an unknown key may have been meant to stand."""
        key, above = str(path[-1]), entry_at(path[:-1], self.root)
        names = above.names if above else []
        before, colon, after = key.partition(":")
        if key == "<<":
            return "YAML 1.2 has no merge keys. Write out what is meant."
        if colon and before in names:
            return f'Write "{before}: {visible(cut(after, 20))}", with a space behind the colon.'
        if self.root is RunConfig and path == ("base",):
            return "Give the other file first and this one as an overlay: esper run OTHER --overlay THIS"
        if self.root is RunConfig and (found := homes(key)):
            return f"It belongs elsewhere: {' or '.join(path_text(home) for home in found)}"
        if above is not None and above.is_use and nearest(key, names) is None:
            lower = path_text((*self.at, *path[:-1], "settings", key))
            return f"Settings of a component stand one level lower: {lower}"
        return suggestion(key, names)


def objections(error: ValidationError, tree: Tree, most: int) -> tuple[list[Problem], int]:
    """The first ``most`` of pydantic's errors as problems, and how many were left. What was refused is left out."""
    model = _Model(RunConfig, (), tree.places)
    due = [details for details in error.errors(include_url=False) if not _told_before(details, tree)]
    return [model.problem(details) for details in due[:most]], max(0, len(due) - most)


def objections_to_settings(
    error: ValidationError, model: type[BaseModel], path: KeyPath, places: Places
) -> list[Problem]:
    """The errors of a component's own model as problems. ``path`` is that of its settings in the configuration."""
    due = [details for details in error.errors(include_url=False) if not _is_long_enough(details)]
    return [_Model(model, path, places).problem(details) for details in due]


def _told_before(details: ErrorDetails, tree: Tree) -> bool:
    path = details["loc"]
    if tree.is_refused(path) or _is_long_enough(details):
        return True
    at = path[:-1] if details["type"] == "missing" else path
    return details["type"] in ("missing", "too_short") and at in tree.incomplete


def _is_long_enough(details: ErrorDetails) -> bool:
    """Whether pydantic calls a list too short that is not: it counts only the entries that are right."""
    if details["type"] != "too_short":
        return False
    least: int = details.get("ctx", {}).get("min_length", 0)
    return len(details["input"]) >= least


def _received(value: Any, kind: str) -> str:
    if value is None:
        return "nothing"
    if kind in ("too_short", "too_long") and value:
        return f"{len(value):,} entries"
    if kind == "string_too_long":
        return f"{len(value):,} characters: {shown(value)}"
    return shown(value)


def _one_line(said: object) -> str:
    """What pydantic, or the author of a check, says."""
    return visible(cut(" ".join(str(said).split()), 300)).rstrip(".")
