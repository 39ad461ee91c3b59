"""Can a plugin be called so? Every name that follows from the one that was typed, or what is wrong with it."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "esper-"
"""What the name of a package begins with, so that it is found among others; the plugin's id goes without."""

LONGEST: Final = 48
"""Characters of a plugin's id."""

FIRST_PARTY: Final = frozenset({"blueprints", "core", "esper", "policies", "rewards", "tasks", "testing", "watch"})
"""Ids that are the project's own, and its name."""

LIBRARIES: Final = frozenset(
    {"click", "numpy", "packaging", "pluggy", "pydantic", "pytest", "rich", "torch", "typing-extensions", "yaml"}
)
"""What Esper stands on: a plugin that is called so would be taken for a part of it."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RULE: Final = f"Lower case letters and digits, joined by single -, from a letter on, at most {LONGEST} characters."


@dataclass(frozen=True, slots=True)
class Names:
    """How one plugin is called: ``my-blocks`` in a configuration, ``esper-my-blocks`` for pip, and for Python:

    >>> names_from("my-blocks").package
    'esper_my_blocks'
    """

    plugin: str

    @property
    def distribution(self) -> str:
        """The package as pip knows it, and the folder that holds it."""
        return f"{PREFIX}{self.plugin}"

    @property
    def package(self) -> str:
        """The package as Python imports it."""
        return self.distribution.replace("-", "_")


def names_from(typed: str, kind: str = "blueprint") -> Names:
    """The names for a plugin that is to be called ``typed``, with or without ``esper-``.

    >>> names_from("esper-my-blocks") == names_from("my-blocks")
    True

    kind: of the component, for the command in the message. ConfigError (E501) where it cannot be called so.
    """
    plugin = typed.removeprefix(PREFIX)
    if reason := _fault(plugin):
        proposal = _nearest(plugin)
        hint = f"{_RULE}\nFor example:  esper new {kind} {proposal}"
        raise ConfigError(
            Problem("E501", f"a plugin cannot be called so: {reason}. Received: {_shown(typed)}", hint=hint)
        )
    return Names(plugin)


def taken(names: Names, installed: Iterable[tuple[str, str]]) -> str | None:
    """Which installed package has this plugin id already; None where none but an earlier build of this one has.

    installed: plugin ids, each with the package that announces it.
    """
    for plugin, package in installed:
        if plugin == names.plugin and re.sub(r"[-_.]+", "-", package).lower() != names.distribution:
            return package
    return None


def _fault(plugin: str) -> str | None:
    """Why this cannot be a plugin's id, in words; None where it can."""
    as_module = plugin.replace("-", "_")
    if not plugin:
        return "it is empty"
    if len(plugin) > LONGEST:
        return f"it has {len(plugin)} characters"
    if not _NAME.fullmatch(plugin):
        return "it holds what a name cannot"
    if plugin in FIRST_PARTY:
        return "the name belongs to Esper itself"
    if keyword.iskeyword(as_module) or keyword.issoftkeyword(as_module):
        return "it is a word of Python"
    if as_module in sys.stdlib_module_names:
        return "it is a module of Python's library"
    if plugin in LIBRARIES:
        return "it is a library that Esper stands on"
    return None


def _nearest(plugin: str) -> str:
    """A name that could be, as close as possible to the one that was typed."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plugin[: 4 * LONGEST]).lower())
    close = "-".join(words).lstrip("0123456789-")[:LONGEST].rstrip("-")
    if close and _fault(close) is None:
        return close
    mine = f"my-{close}"[:LONGEST].rstrip("-")
    return mine if close and _fault(mine) is None else "my-blocks"


def _shown(typed: str) -> str:
    text = typed if len(typed) <= 60 else f"{typed[:60]}…"
    return ascii(text) if not text.isprintable() else f'"{text}"'
