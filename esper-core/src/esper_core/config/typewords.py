"""How is a type called, with its range or its choices, in a message or an explanation?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.config.model import InWords

if TYPE_CHECKING:
    from esper_core.config.fields import Entry

_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def words(entry: Entry) -> str:
    """The type of an entry in words, with its range or its choices.

    >>> from esper_core.config.fields import entry_at
    >>> print(words(entry_at(("episode", "steps"))))
    a whole number from 1 to 100,000
    """
    return _without_null(entry) + (", or null" if entry.nullable else "")


def _without_null(entry: Entry) -> str:
    if entry.is_use:
        return "the name of a component, or a mapping with the keys use and settings"
    if entry.section is not None:
        keys = "keys" if len(entry.names) > 1 else "key"
        return f"a mapping with the {keys} {_listed(entry.names, 'and')}" if entry.names else "an empty mapping"
    if entry.choices:
        return _listed([str(choice) for choice in entry.choices], "or")
    if named := [item.text for item in entry.constraints if isinstance(item, InWords)]:
        return named[-1] + (_length(entry, "entry", "entries") if entry.is_list else "")
    if entry.is_mapping or entry.is_list:
        return ("a mapping" if entry.is_mapping else "a list") + _length(entry, "entry", "entries")
    if entry.kind is Any:
        return "any value: the component checks it"
    length = _length(entry, "character", "characters") if entry.kind is str else _range(entry)
    return _PLAIN.get(entry.kind, "a value") + length


def _listed(names: list[str], conjunction: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {conjunction} {names[-1]}"


def _bound(entry: Entry, name: str) -> Any:
    """The last constraint of this name (ge, lt, min_length …), or None."""
    found = [getattr(item, name) for item in entry.constraints if getattr(item, name, None) is not None]
    return found[-1] if found else None


def _range(entry: Entry) -> str:
    least, above, most, below = (_bound(entry, name) for name in ("ge", "gt", "le", "lt"))
    if entry.kind is int and below is not None:
        most, below = below - 1, None
    factor = _bound(entry, "multiple_of")
    steps = f", a multiple of {_number(factor)}" if factor is not None else ""
    if least is not None and most is not None:
        return f" from {_number(least)} to {_number(most)}{steps}"
    bounds = [f"at least {_number(least)}"] if least is not None else []
    bounds += [f"greater than {_number(above)}"] if above is not None else []
    bounds += [f"at most {_number(most)}"] if most is not None else []
    bounds += [f"less than {_number(below)}"] if below is not None else []
    return (f", {' and '.join(bounds)}" if bounds else "") + steps


def _length(entry: Entry, one: str, many: str) -> str:
    low, high = _bound(entry, "min_length"), _bound(entry, "max_length")
    if low and high:
        return f", {low} to {high:,} {many}"
    if high:
        return f", at most {high:,} {many}"
    return f", at least {low} {one if low == 1 else many}" if low else ""


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
