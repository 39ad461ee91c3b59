"""What is a configuration as plain data? Mappings, lists and scalars that a file can hold, and nothing else."""

from __future__ import annotations

from typing import Any

from esper_core.config.limits import MAX_NUMBER
from esper_core.config.model import Section, Use
from esper_core.config.paths import KeyPath, path_text
from esper_core.config.showing import quoted, shown
from esper_core.leyline import ConfigError, Problem


def plain(value: Any, path: KeyPath = ()) -> Any:
    """``value`` with sections as mappings and tuples as lists; a component without settings is its name alone.

    ConfigError E111 where a program put something into it that no file could hold.

    >>> plain(Use(use="schedule")), plain(Use(use="schedule", settings={"at": (1, 2)}))
    ('schedule', {'use': 'schedule', 'settings': {'at': [1, 2]}})
    """
    if isinstance(value, Use) and not value.settings:
        return plain(value.use, (*path, "use"))
    if isinstance(value, Section):
        return {name: plain(getattr(value, name), (*path, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {_key(key, path): plain(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, (*path, index)) for index, item in enumerate(value)]
    return _scalar(value, path)


def _key(key: Any, path: KeyPath) -> str:
    if not isinstance(key, str):
        raise _unwritable(path, f"expected texts as keys, received {shown(key)}")
    return str(_scalar(key, path))


def _scalar(value: Any, path: KeyPath) -> str | int | float | bool | None:
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _unwritable(path, f"expected a text, received half a character in {quoted(value)}")
        return value
    if isinstance(value, int) and abs(value) >= 10 ** (MAX_NUMBER - 1):
        raise _unwritable(path, f"expected a number of less than {MAX_NUMBER} digits, received a longer one")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise _unwritable(path, f"expected a value that a file can hold, received {type(value).__name__} {shown(value)}")


def _unwritable(path: KeyPath, message: str) -> ConfigError:
    hint = "Use texts, numbers, true, false, null, lists and mappings."
    return ConfigError(Problem("E111", message, path=path_text(path) or None, hint=hint))
