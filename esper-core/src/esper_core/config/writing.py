"""How is a configuration written to a file? As YAML 1.2 that ``parse_config`` reads back to an equal one.

PyYAML's emitter quotes by the rules of YAML 1.1: it leaves ``1e-3`` and ``0o7`` bare, which are numbers here. This one
leaves bare only what ``scalars.meaning`` reads as text, and escapes what no editor shows.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from esper_core.config.plain import plain
from esper_core.config.scalars import meaning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.config.model import RunConfig

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./+*-]*( [A-Za-z0-9_./+*-]+)*")
_TRUTHS = frozenset({"yes", "no", "on", "off", "y", "n"})
"""Text to us, but true or false to a reader of YAML 1.1."""
_LONG = 100
"""Characters of a list or mapping on one line; a longer one is written one entry to a line."""
_LONG_KEY = 1000
"""Characters of a key before a colon; YAML allows 1024."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump_config(config: RunConfig) -> str:
    """The whole configuration, defaults spelt out, as YAML. ConfigError E111 where no file could hold a value."""
    return "\n".join(_block(plain(config), "")) + "\n"


def flow(value: Any) -> str:
    """Plain data as YAML on one line.

    >>> flow({"step": 0, "op": None, "at": ["a b", 1.0, True, "no"]})
    '{step: 0, op: null, at: [a b, 1.0, true, "no"]}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


def _block(value: Any, indent: str) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _pair(_scalar(key), item, indent)
        return
    for item in value:
        line = _line(item, inside=True)
        if line is not None:
            yield f"{indent}- {line}"
            continue
        first, *others = _block(item, f"{indent}  ")
        yield f"{indent}- {first.lstrip(' ')}"
        yield from others


def _pair(key: str, value: Any, indent: str) -> Iterator[str]:
    if len(key) > _LONG_KEY:
        yield f"{indent}? {key}"
        key = ""
    line = _line(value, inside=False)
    if line is not None:
        yield f"{indent}{key}: {line}"
    else:
        yield f"{indent}{key}:"
        yield from _block(value, f"{indent}  ")


def _line(value: Any, *, inside: bool) -> str | None:
    """The value on one line, or None where it takes several. A mapping is braced only ``inside`` a list."""
    if not isinstance(value, dict | list):
        return _scalar(value)
    if not value:
        return "{}" if isinstance(value, dict) else "[]"
    entries = value.values() if isinstance(value, dict) else value
    if any(isinstance(entry, dict | list) for entry in entries) or (isinstance(value, dict) and not inside):
        return None
    if isinstance(value, dict):
        line = "{" + ", ".join(f"{_scalar(key)}: {_scalar(item)}" for key, item in value.items()) + "}"
    else:
        line = "[" + ", ".join(map(_scalar, value)) + "]"
    return line if len(line) <= _LONG else None


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float(value)
    text = str(value)
    bare = _BARE.fullmatch(text) and meaning(text) == text and text.casefold() not in _TRUTHS
    return text if bare else _quoted(text)


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return float.__repr__(value)


def _quoted(text: str) -> str:
    return (
        '"'
        + "".join(_ESCAPES.get(letter) or (letter if letter.isprintable() else _escape(letter)) for letter in text)
        + '"'
    )


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
