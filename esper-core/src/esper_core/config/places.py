"""Where does each value of a configuration stand? Found by its path; a path without a place has its parent's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from esper_core.config.paths import KeyPath, path_text
from esper_core.leyline import Problem


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value and its key stand. Lines and columns count from 1; ``--set`` has none."""

    file: str
    line: int | None = None
    column: int | None = None
    key_line: int | None = None
    key_column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(slots=True)
class Places:
    """The places of a whole configuration."""

    by_path: dict[KeyPath, Place] = field(default_factory=dict)

    def nearest(self, path: KeyPath) -> Place | None:
        """The place at ``path``, or that of the nearest value above it that has one."""
        for length in range(len(path), -1, -1):
            if (place := self.by_path.get(path[:length])) is not None:
                return place
        return None

    def is_leaf(self, path: KeyPath) -> bool:
        """Whether nothing has a place below ``path``."""
        return not any(len(known) > len(path) and known[: len(path)] == path for known in self.by_path)

    def forget(self, path: KeyPath) -> None:
        """Drop the places at and below ``path``."""
        for known in [known for known in self.by_path if known[: len(path)] == path]:
            del self.by_path[known]

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """A problem with the value (or the ``key``) at ``path``, shown there or at the nearest value above it."""
        place = self.nearest(path) or Place("")
        known = key and place.key_line is not None
        line, column = (place.key_line, place.key_column) if known else (place.line, place.column)
        return Problem(code, message, place.file or None, line, column, path_text(path) or None, hint)


@dataclass(slots=True)
class Tree:
    """What was read: plain values, their places, and what is wrong so far."""

    value: Any
    places: Places = field(default_factory=Places)
    problems: list[Problem] = field(default_factory=list)
    refused: set[KeyPath] = field(default_factory=set)
    """Where a value was refused already, so that no second complaint about it is due."""
    incomplete: set[KeyPath] = field(default_factory=set)
    """Mappings of which a key was refused, so that what is missing may be that one."""

    def is_refused(self, path: KeyPath) -> bool:
        """Whether the value at ``path``, or one above it, was refused already."""
        return any(path[:length] in self.refused for length in range(len(path) + 1))

    def take_out(self, path: KeyPath) -> None:
        """Let go of the value at ``path``, if there is one; for an item the whole list: others have their places."""
        here = self.value
        for depth, step in enumerate(path):
            if not isinstance(here, dict) or step not in here:
                return
            if depth + 1 == len(path) or isinstance(path[depth + 1], int):
                del here[step]
                return
            here = here[step]
