"""Values of a configuration: key paths, places in files, display in messages, and limits on their size."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from esper_core.leyline.errors import Problem

MAX_BYTES: Final = 1 << 20
"""Bytes of a file, and characters of its values once every alias is expanded."""

MAX_DEPTH: Final = 50
"""Nesting of mappings and lists."""

MAX_NODES: Final = 20_000
"""Keys, values, lists and mappings once every alias is expanded."""

MAX_SHOWN: Final = 60
"""Characters of a value or a key that a message shows."""

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of the configuration down; () is the top itself."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STEP = re.compile(r'\[(?P<index>[0-9]{1,6})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|(?P<dot>\.?)(?P<key>[^.\[\]="\s]+)')


def path_text(path: KeyPath) -> str:
    """Write a path as messages print it and ``--set`` takes it. Long keys are cut.

    >>> path_text(("slots", "early", "blueprints", 0))
    'slots.early.blueprints[0]'
    >>> path_text(("policy", "settings", "a key"))
    'policy.settings["a key"]'
    """
    parts: list[str] = []
    for step in path:
        if isinstance(step, str) and _PLAIN_KEY.fullmatch(step) and len(step) <= MAX_SHOWN:
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{shown(step)}]")
    return "".join(parts)


def parse_path(text: str) -> KeyPath:
    """Parse a path that is written as ``path_text`` writes it. ValueError where it is not.

    >>> parse_path('policy.settings["a key"][2].slot')
    ('policy', 'settings', 'a key', 2, 'slot')
    """
    steps: list[str | int] = []
    position = 0
    while position < len(text) or not steps:
        match = _STEP.match(text, position)
        if match is None or (match["key"] and bool(match["dot"]) != bool(steps)) or (match["index"] and not steps):
            msg = f"unexpected {shown(text[position:], 10)}" if text[position:] else "it does not begin with a key"
            raise ValueError(msg)
        if len(steps) == MAX_DEPTH:
            msg = f"it is more than {MAX_DEPTH} keys deep"
            raise ValueError(msg)
        steps.append(match["key"] or json.loads(match["quoted"] or match["index"]))
        position = match.end()
    return tuple(steps)


def shown(value: Any, limit: int = MAX_SHOWN) -> str:
    """Show a value as JSON on one line of about ``limit`` printable characters.

    >>> shown({"use": "schedule", "settings": {"at": [1, None]}})
    '{"use": "schedule", "settings": {"at": [1, null]}}'
    """
    if isinstance(value, str):
        return visible(json.dumps(cut(value, limit), ensure_ascii=False))
    return visible(cut(json.dumps(value, ensure_ascii=False, default=str), limit))


def cut(text: str, limit: int = MAX_SHOWN) -> str:
    """Return ``text``, or its beginning and an ellipsis where it has more than ``limit`` characters.

    >>> cut("a very long name", 8)
    'a very …'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def visible(text: str) -> str:
    """Escape unprintable characters, so that no terminal interprets them."""
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


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
class Node:
    """A value and its position. The values of a mapping and of a list are nodes, too."""

    value: Any
    position: SourcePosition

    def plain(self) -> Any:
        """Return the value as plain data, without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def below(self, step: str | int) -> Node | None:
        """Return the node one step down; None where there is none."""
        if isinstance(self.value, dict):
            return self.value.get(step)
        is_index = isinstance(self.value, list) and isinstance(step, int) and step < len(self.value)
        return self.value[step] if is_index else None

    def nearest(self, path: KeyPath) -> tuple[Node, int]:
        """Return the node at ``path``, or the nearest one above it, and how many steps of ``path`` lead there."""
        node = self
        for depth, step in enumerate(path):
            below = node.below(step)
            if below is None:
                return node, depth
            node = below
        return node, len(path)

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """Build a problem with the value (or the ``key``) at ``path``, located there or at the nearest value above."""
        position = self.nearest(path)[0].position
        at_key = key and position.key_line is not None
        line, column = (position.key_line, position.key_column) if at_key else (position.line, position.column)
        return Problem(code, message, position.file, line, column, path_text(path) or None, hint)
