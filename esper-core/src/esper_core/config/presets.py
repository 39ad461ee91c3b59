"""Which configurations come with Esper, to be built on by name? The files of the folder ``presets`` beside this one.

Some say nothing but settings of the core; others name components of plugins, in full. One of these is offered only
where every plugin that it names is installed; who names it all the same is told what is missing when names are looked
up, as with any other file.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_COMPONENT: Final = re.compile(r"(?<![\w/.-])(?P<plugin>[a-z][a-z0-9-]*)/[\w*-]+")
"""A component by its full name, as a preset writes it."""

_PLUGINS: Final = "esper.plugins"
"""The group of entry points by which plugins are found."""


def preset(name: str) -> bytes | None:
    """What the preset of this name says; None where there is none."""
    found = _shipped().get(name)
    return None if found is None else found.read_bytes()


def offered() -> dict[str, str]:
    """The presets that can be run with what is installed, by name: what each is for, in one line."""
    installed = {point.name for point in entry_points(group=_PLUGINS)}
    texts = {name: file.read_text(encoding="utf-8") for name, file in _shipped().items()}
    return {name: _first_line(text) for name, text in texts.items() if needs(text) <= installed}


def needs(text: str) -> set[str]:
    """The ids of the plugins whose components a preset names.

    >>> sorted(needs("task: tasks/mnist1d  # or tasks/bytes\\nslots: {early: {blueprints: [blueprints/mlp]}}"))
    ['blueprints', 'tasks']
    """
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return {match["plugin"] for line in lines for match in _COMPONENT.finditer(line)}


def _shipped() -> dict[str, Traversable]:
    """The files by their names without the ending."""
    there = [file for file in files(__package__).joinpath("presets").iterdir() if file.name.endswith(".yaml")]
    return {file.name.removesuffix(".yaml"): file for file in sorted(there, key=lambda file: file.name)}


def _first_line(text: str) -> str:
    return text.partition("\n")[0].removeprefix("#").strip()
