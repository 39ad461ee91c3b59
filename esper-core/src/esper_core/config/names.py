"""Can a run be called this? What is typed for ``--name`` must be what ``name`` in a file can be."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from esper_core.config.fields import entry_at
from esper_core.config.model import Key
from esper_core.config.showing import quoted
from esper_core.config.typewords import words


def wrong_name(name: str) -> str | None:
    """What is wrong with a run's name, or None.

    >>> wrong_name("../x")
    'expected a name of at most 50 letters, digits, - and _ that begins with a letter, received "../x"'
    """
    try:
        TypeAdapter(Key).validate_python(name)
    except ValidationError:
        entry = entry_at(("name",))
        assert entry is not None
        return f"expected {words(entry).removesuffix(', or null')}, received {quoted(name)}"
    return None
