"""Values of a configuration: key paths, places in files, display in messages, and limits on their size."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from esper_core.leyline.errors import Problem

MAX_BYTES: Final = 1 << 20
"""Bytes of a file, and characters of its values once every alias is expanded."""

MAX_DEPTH: Final = 50
"""Nesting of mappings and lists."""

MAX_NODES: Final = 20_000
"""Keys, values, lists and mappings once every alias is expanded."""

MAX_TOKENS: Final = 5 * MAX_NODES
"""YAML tokens. ``MAX_NODES`` nodes need fewer; only directives and document markers can exceed it."""

MAX_NUMBER: Final = 100
"""Characters of one number. A 64-bit integer has 20, a float that is written out exactly about 55."""

MAX_SHOWN: Final = 60
"""Characters of a value or a key that a message shows."""

_MAX_SHOWN_DEPTH = 3
_MAX_SHOWN_ITEMS = 8

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of the configuration down; () is the top itself."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STEP = re.compile(r'\[(?P<index>[0-9]{1,6})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|(?P<dot>\.?)(?P<key>[^.\[\]="\s]+)')


class PathSyntaxError(ValueError):
    """A text that is not a key path. The message says where it is wrong."""


def path_text(path: KeyPath) -> str:
    """Write a path as messages print it and ``--set`` takes it. Long keys are cut.

    >>> path_text(("slots", "early", "blueprints", 0))
    'slots.early.blueprints[0]'
    >>> path_text(("policy", "settings", "a key"))
    'policy.settings["a key"]'
    """
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step) and len(step) <= MAX_SHOWN:
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{quoted(step)}]")
    return "".join(parts)


def parse_path(text: str) -> KeyPath:
    """Parse a path that is written as ``path_text`` writes it.

    >>> parse_path('policy.settings["a key"][2].slot')
    ('policy', 'settings', 'a key', 2, 'slot')
    """
    path, end = scan_path(text)
    if end != len(text):
        msg = f"unexpected {quoted(text[end:], 10)}"
        raise PathSyntaxError(msg)
    return path


def scan_path(text: str) -> tuple[KeyPath, int]:
    """Parse the path that ``text`` begins with; return it and the index of its end."""
    steps: list[str | int] = []
    position = 0
    while match := _STEP.match(text, position):
        if (match["key"] and bool(match["dot"]) != bool(steps)) or (match["index"] and not steps):
            break
        if len(steps) == MAX_DEPTH:
            msg = f"it is more than {MAX_DEPTH} keys deep"
            raise PathSyntaxError(msg)
        steps.append(_step(match))
        position = match.end()
    if not steps:
        msg = "it does not begin with a key"
        raise PathSyntaxError(msg)
    return tuple(steps), position


def _step(match: re.Match[str]) -> str | int:
    if match["index"]:
        return int(match["index"])
    if not match["quoted"]:
        return match["key"]
    try:
        key = str(json.loads(match["quoted"]))
        key.encode()
    except ValueError as error:
        msg = f"{match['quoted'][:40]} is not a quoted key"
        raise PathSyntaxError(msg) from error
    return key


def shown(value: Any, limit: int = MAX_SHOWN) -> str:
    """Show a value in YAML's flow style on one line of at most ``limit`` printable characters.

    >>> shown({"use": "schedule", "settings": {"at": [1, 2.5, None, True]}})
    '{use: "schedule", settings: {at: [1, 2.5, null, true]}}'
    """
    return cut(_shown(value, _MAX_SHOWN_DEPTH), limit)


def cut(text: str, limit: int = MAX_SHOWN) -> str:
    """Return ``text``, or its beginning and an ellipsis where it has more than ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def quoted(text: str, limit: int = MAX_SHOWN) -> str:
    """Return ``text`` cut and in double quotes; quotes and unprintable characters are escaped.

    >>> print(quoted('a "b"'))
    "a \\"b\\""
    """
    return visible(json.dumps(cut(text, limit), ensure_ascii=False))


def visible(text: str) -> str:
    """Escape unprintable characters, so that no terminal interprets them."""
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def _shown(value: Any, depth: int) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    if isinstance(value, str):
        return quoted(value, MAX_SHOWN - len('[""]'))
    if not isinstance(value, dict | list | tuple):
        return visible(cut(str(value)))
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if value and not depth:
        return f"{opening}…{closing}"
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_SHOWN_ITEMS]
        parts = [f"{visible(cut(str(key)))}: {_shown(item, depth - 1)}" for key, item in items]
    else:
        parts = [_shown(item, depth - 1) for item in value[:_MAX_SHOWN_ITEMS]]
    more = ", …" if len(value) > len(parts) else ""
    return f"{opening}{', '.join(parts)}{more}{closing}"


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where a value and its key are. Lines and columns count from 1; a value of ``--set`` has none."""

    file: str
    line: int | None = None
    column: int | None = None
    key_line: int | None = None
    key_column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(slots=True)
class Places:
    """The places of the values of a configuration."""

    by_path: dict[KeyPath, SourcePosition] = field(default_factory=dict)

    def nearest(self, path: KeyPath) -> SourcePosition | None:
        """Return the place at ``path``, or that of the nearest value above it that has one."""
        for length in range(len(path), -1, -1):
            if (place := self.by_path.get(path[:length])) is not None:
                return place
        return None

    def is_leaf(self, path: KeyPath) -> bool:
        """Return whether nothing below ``path`` has a place."""
        return not any(len(known) > len(path) and known[: len(path)] == path for known in self.by_path)

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """Build a problem with the value (or the ``key``) at ``path``, located there or at the nearest value above."""
        place = self.nearest(path) or SourcePosition("")
        at_key = key and place.key_line is not None
        line, column = (place.key_line, place.key_column) if at_key else (place.line, place.column)
        return Problem(code, message, place.file or None, line, column, path_text(path) or None, hint)


@dataclass(slots=True)
class Tree:
    """The values that were read, their places, and the problems found so far."""

    value: Any
    places: Places = field(default_factory=Places)
    problems: list[Problem] = field(default_factory=list)
    refused: set[KeyPath] = field(default_factory=set)
    """Where a value was refused already, so that the model's errors about it are not reported."""
    incomplete: set[KeyPath] = field(default_factory=set)
    """Mappings of which a key was refused: what is missing in them may be that key."""

    def is_refused(self, path: KeyPath) -> bool:
        """Return whether the value at ``path``, or one above it, was refused already."""
        return any(path[:length] in self.refused for length in range(len(path) + 1))

    def replace(self, path: KeyPath, source: Tree) -> None:
        """Forget what is known of the value at ``path``, and take over what ``source`` knows of its own there."""

        def below(known: KeyPath) -> bool:
            return known[: len(path)] == path

        places = {at: place for at, place in self.places.by_path.items() if not below(at)}
        self.places.by_path = places | {at: place for at, place in source.places.by_path.items() if below(at)}
        self.refused = {at for at in self.refused if not below(at)} | {at for at in source.refused if below(at)}
        kept = {at for at in self.incomplete if not below(at)}
        self.incomplete = kept | {at for at in source.incomplete if below(at)}
