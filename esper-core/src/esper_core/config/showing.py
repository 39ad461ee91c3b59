"""How is a value shown in a message? As one would write it in the file, on one line, cut where it is long."""

from __future__ import annotations

import json
import math
from typing import Any

from esper_core.config.limits import MAX_SHOWN

_NESTED = 3
_ITEMS = 8


def shown(value: Any, limit: int = MAX_SHOWN) -> str:
    """The value on one line of at most ``limit`` characters, with nothing in it that a terminal would obey.

    >>> shown({"use": "schedule", "settings": {"at": [1, 2.5, None, True]}})
    '{use: "schedule", settings: {at: [1, 2.5, null, true]}}'
    """
    return cut(_written(value, _NESTED), limit)


def cut(text: str, limit: int = MAX_SHOWN) -> str:
    """``text``, or its beginning and a mark where it has more than ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def quoted(text: str, limit: int = MAX_SHOWN) -> str:
    """``text`` in double quotes, cut, with quotes and what cannot be printed escaped.

    >>> print(quoted('a "b"'))
    "a \\"b\\""
    """
    return visible(json.dumps(cut(text, limit), ensure_ascii=False))


def visible(text: str) -> str:
    """``text`` with what cannot be printed escaped, so that no terminal obeys it."""
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def _written(value: Any, depth: int) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    if isinstance(value, str):
        return quoted(value, MAX_SHOWN - len('[""]'))
    if isinstance(value, dict):
        return _braced("{}", [_pair(key, item, depth) for key, item in list(value.items())[:_ITEMS]], len(value), depth)
    if isinstance(value, list | tuple):
        return _braced("[]", [_written(item, depth - 1) if depth else "" for item in value[:_ITEMS]], len(value), depth)
    return visible(cut(str(value)))


def _pair(key: Any, value: Any, depth: int) -> str:
    name = visible(cut(str(key)))
    return f"{name}: {_written(value, depth - 1)}" if depth else ""


def _braced(braces: str, parts: list[str], length: int, depth: int) -> str:
    if length and not depth:
        return f"{braces[0]}…{braces[1]}"
    more = ", …" if length > len(parts) else ""
    return f"{braces[0]}{', '.join(parts)}{more}{braces[1]}"
