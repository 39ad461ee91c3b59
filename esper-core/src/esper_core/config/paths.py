"""How is a place in the configuration written? As ``slots.early.blueprints[0]``; kept as a tuple of its keys."""

from __future__ import annotations

import json
import re

from esper_core.config.limits import MAX_DEPTH, MAX_SHOWN
from esper_core.config.showing import quoted

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of the configuration down; () is the top itself."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STEP = re.compile(r'\[(?P<index>[0-9]{1,6})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|(?P<dot>\.?)(?P<key>[^.\[\]="\s]+)')


class PathSyntaxError(ValueError):
    """A text that is no path. Its message says where it goes wrong."""


def path_text(path: KeyPath) -> str:
    """The path as it is printed and as ``--set`` takes it. Long keys are cut.

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
    """The keys of a path that is written as ``path_text`` writes it.

    >>> parse_path('policy.settings["a key"][2].slot')
    ('policy', 'settings', 'a key', 2, 'slot')
    """
    path, end = scan_path(text)
    if end != len(text):
        msg = f"it goes wrong at {quoted(text[end:], 10)}"
        raise PathSyntaxError(msg)
    return path


def scan_path(text: str) -> tuple[KeyPath, int]:
    """The path that ``text`` begins with, and where it ends; what follows is the caller's business."""
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
        msg = f"{match['quoted'][:40]} is not a quoted text"
        raise PathSyntaxError(msg) from error
    return key
