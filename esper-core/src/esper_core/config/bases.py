"""Which files is a configuration built on? ``base:`` names one, by path or as a preset; that may name another.

The chain is read from the file down to the last base, and laid over each other from there up.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from esper_core.config.files import file_name, read_file
from esper_core.config.limits import MAX_BASES
from esper_core.config.merging import lay_over, move_plugins
from esper_core.config.presets import offered, preset
from esper_core.config.reading import read_document
from esper_core.config.showing import quoted, shown
from esper_core.leyline import ConfigError, Problem
from esper_core.leyline.errors import suggestion

if TYPE_CHECKING:
    from esper_core.config.places import Place, Tree

BASE: Final = "base"
"""The key. It is no part of the model: what was read from a base is a value like any other."""

BASE_IN_WORDS: Final = "the path of a file, or the name of a preset"

BASE_DESCRIPTION: Final = (
    "What this file is built on: a file, by its path relative to this one, or a preset, by its name. "
    "What this file says goes over it."
)

_ENDINGS: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Base:
    """What a file is built on.

    said: as the file above it names it. file: what problems call it. place: where it is named.
    """

    said: str
    file: str
    place: Place
    source: bytes = field(repr=False)
    folder: Path = field(default_factory=Path, repr=False)
    """Where it stands, and its own base is looked for; of no use to a preset."""

    @property
    def is_preset(self) -> bool:
        """Whether it comes with Esper."""
        return not _is_path(self.said)

    @property
    def identity(self) -> str:
        """The same for the same base, whatever it is called."""
        return self.file if self.is_preset else os.path.realpath(self.folder / PurePath(self.said).name)


def read_with_bases(data: bytes, file: str, folder: Path) -> tuple[Tree, tuple[Base, ...]]:
    """What a file and its bases say together, and the bases from the nearest to the last.

    folder: where the file stands. ConfigError where one of them cannot be read; what else is wrong stands in the tree.
    """
    bases: list[Base] = []
    trees = [read_document(data, file)]
    told, seen = [file], {os.path.realpath(folder / PurePath(file).name)}
    try:
        while (named := _named(trees[-1])) is not None:
            base = _found(*named, bases[-1].folder if bases else folder)
            told.append(base.file)
            if base.identity in seen:
                raise ConfigError(_problem("E116", base.place, f"the bases go in a circle: {' → '.join(told)}"))
            if len(bases) == MAX_BASES:
                message = f"at most {MAX_BASES} files can be built on one another, received more"
                raise ConfigError(_problem("E116", base.place, message, "Write what they have in common into one."))
            seen.add(base.identity)
            trees.append(read_document(base.source, base.file))
            bases.append(base)
    except ConfigError as error:
        raise ConfigError([*(problem for tree in trees for problem in tree.problems), *error.problems]) from None
    tree = trees.pop()
    for base, upper in zip(reversed(bases), reversed(trees), strict=True):
        move_plugins(tree, PurePath(base.said).parent)
        tree = lay_over(upper, tree)
    return tree, tuple(bases)


def _named(tree: Tree) -> tuple[str, Place] | None:
    """The base that a file names and where; None where it names none. The key is taken out of the tree."""
    if BASE not in tree.value:
        return None
    said, place = tree.value.pop(BASE), tree.places.by_path[BASE,]
    tree.places.forget((BASE,))
    if tree.is_refused((BASE,)):
        return None
    wrong = _wrong(said)
    if wrong is None:
        return said, place
    code, received, hint = wrong
    tree.problems.append(_problem(code, place, f"expected {BASE_IN_WORDS}, received {received}", hint))
    return None


def _wrong(said: Any) -> tuple[str, str, str] | None:
    """Code, what was received, and the way out, where ``said`` is no base; None where it may be one."""
    example = f"Write {BASE}: ./other.yaml or {BASE}: quick."
    if isinstance(said, list):
        return "E111", shown(said), "A file has one base, which may have a base itself."
    if not isinstance(said, str):
        return "E111", "nothing" if said is None else shown(said), example
    return None if 0 < len(said) <= 4096 else ("E112", shown(said), example)


def _found(said: str, place: Place, folder: Path) -> Base:
    if _is_path(said):
        path = folder / said
        try:
            return Base(said, file_name(path), place, read_file(path), path.parent)
        except ConfigError as error:
            told = [
                _problem(one.code, place, f"the base {one.file}: {one.message}", one.hint) for one in error.problems
            ]
            raise ConfigError(told) from None
    source = preset(said)
    if source is None:
        raise ConfigError(_problem("E116", place, f"there is no preset {quoted(said)}", _meant(said, folder)))
    return Base(said, f"preset {said}", place, source)


def _is_path(said: str) -> bool:
    return said.endswith(_ENDINGS) or "/" in said or os.sep in said


def _meant(said: str, folder: Path) -> str:
    """The file beside that was meant, or the preset; and how a file is written."""
    for name in (f"{said}{ending}" for ending in _ENDINGS):
        if (folder / name).is_file():
            return f"A file is written with its ending: {BASE}: {file_name(name)}"
    there = offered()
    near = suggestion(said, there)
    listed = near if ", ".join(there) in near else f"{near}\nPresets: {', '.join(there)}"
    return f"{listed}\nA file is written with its ending, .yaml, or with a folder: ./{file_name(said)}"


def _problem(code: str, place: Place, message: str, hint: str | None = None) -> Problem:
    return Problem(code, message, place.file, place.line, place.column, BASE, hint)
