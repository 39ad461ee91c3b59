"""What should be written instead? The way out of the mistakes that are made most with values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from esper_core.config.scalars import NumberError, meaning
from esper_core.config.showing import cut, shown
from esper_core.leyline.errors import suggestion

if TYPE_CHECKING:
    from esper_core.config.fields import Entry
    from esper_core.config.paths import KeyPath

_YES = ("yes", "on", "y", "1")
_NO = ("no", "off", "n", "0")
_SEVERAL = {
    "policy": "To compare several policies, write arms.",
    "reward": "For several rewards, write them below rewards.",
}
"""What stands for a list of components, where one is expected."""


def remedy(entry: Entry, value: Any, path: KeyPath, kind: str, *, optional: bool) -> str | None:
    """What to write at ``path`` in the place of ``value``; ``kind`` is the type of pydantic's error.

    None where the message says it all, as with a number out of its range.
    """
    if kind == "too_short" and path == ("slots",):
        return "Name a place where something may grow, for example early: {blueprints: [conv_light]}."
    if value is None:
        below = "Write its keys below it, indented" if entry.section and not entry.is_use else "Write a value behind it"
        return f"{below}, or delete the key: it has a default." if optional else f"{below}."
    if entry.choices and isinstance(value, str):
        return suggestion(value, [str(choice) for choice in entry.choices])
    if entry.kind is bool:
        return _truth(value)
    if entry.kind in (int, float):
        return _number(entry, value)
    return _shape(entry, value, path)


def _shape(entry: Entry, value: Any, path: KeyPath) -> str | None:
    """A list, a mapping, a text or a component: something of another shape was written."""
    if entry.is_list and not isinstance(value, dict | list):
        return f"Write it as a list: {path[-1]}: {_as_list(value)}"
    if entry.kind is str and not isinstance(value, dict | list | str):
        return f'Put it in quotes: "{shown(value)}"'
    if entry.is_use:
        several = isinstance(value, list) and len(path) == 1
        name = f"Write {path[-1]}: name-of-the-component"
        return _SEVERAL.get(str(path[-1]), name) if several else name
    if (entry.section or entry.is_mapping) and not isinstance(value, dict):
        return "Write its keys below it, indented, or in braces: {key: value}."
    return None


def _truth(value: Any) -> str:
    word = str(value).casefold()
    if word in _YES or word in _NO:
        return f"Write {'true' if word in _YES else 'false'}: {shown(value)} is no truth value in YAML 1.2."
    return "Write true or false, without quotes."


def _number(entry: Entry, value: Any) -> str | None:
    again = None
    if isinstance(value, str):
        number = _number_in(value)
        if number is None:
            return None
        value, again = number, f"Write it without quotes, commas or underscores: {shown(number)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "It must be finite."
    if isinstance(value, float) and entry.kind is int and value.is_integer():
        return f"Write it without a fraction or exponent: {shown(int(value))}"
    return again


def _number_in(text: str) -> int | float | None:
    try:
        value = meaning(text.strip().replace("_", "").replace(",", ""))
    except NumberError:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_list(value: Any) -> str:
    """What a scalar would be as a list: ``a, b`` was meant as two."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else [shown(value)]
    written = [part if part.replace("_", "").replace("-", "").isalnum() else shown(part) for part in parts if part]
    return f"[{cut(', '.join(written), 50)}]"
