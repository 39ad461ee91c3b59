"""Which installed packages announce something to Esper? Read from their metadata: nothing of theirs is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PLUGIN_GROUP: Final = "esper.plugins"
COMMAND_GROUP: Final = "esper.commands"

LOCAL_FILE: Final = "local file"
"""What stands for the package of a plugin that is a file of the user's own."""


class EntryPoint(Protocol):
    """What is asked of an entry point; ``importlib.metadata.EntryPoint`` has it."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def group(self) -> str: ...


class Distribution(Protocol):
    """What is asked of an installed package; ``importlib.metadata.Distribution`` has it, and a test's fake."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def requires(self) -> Sequence[str] | None: ...
    @property
    def entry_points(self) -> Iterable[EntryPoint]: ...


@dataclass(frozen=True, slots=True)
class Announcement:
    """One entry point, and the package behind it; or a ``file`` of the user's own, whose hash is its version."""

    name: str
    target: str
    package: str
    version: str
    requires: tuple[str, ...] = ()
    file: str | None = None

    @property
    def source(self) -> str:
        """Package and version, as messages name them."""
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class Damage:
    """A package whose metadata cannot be read."""

    package: str | None
    error: Exception


def discover(
    group: str, distributions: Iterable[Distribution] | None = None
) -> tuple[tuple[Announcement, ...], tuple[Damage, ...]]:
    """What is announced in a group of entry points, in the order of names, and the packages that cannot be read.

    A package that stands on the path twice (an editable install and its egg-info) counts once, where Python finds it
    first.
    """
    found: list[Announcement] = []
    damaged: list[Damage] = []
    seen: set[str] = set()
    for distribution in _installed() if distributions is None else distributions:
        try:
            entries = [entry for entry in distribution.entry_points if entry.group == group]
            if not entries:
                continue
            package = normalised(distribution.name)
            if package not in seen:
                found.extend(_announcements(distribution, entries))
            seen.add(package)
        except Exception as error:  # what damaged metadata raises is nobody's contract; it is reported
            damaged.append(Damage(_name_of(distribution), error))
    found.sort(key=lambda announcement: (announcement.name, announcement.package, announcement.target))
    return tuple(found), tuple(damaged)


def normalised(package: str) -> str:
    """A package's name as indexes compare it.

    >>> normalised("Esper_Blueprints.Extra")
    'esper-blueprints-extra'
    """
    return re.sub(r"[-_.]+", "-", package).lower()


def _installed() -> Iterable[Distribution]:
    from importlib.metadata import distributions  # 20 ms, paid only by commands that look

    return distributions()


def _announcements(distribution: Distribution, entries: list[EntryPoint]) -> list[Announcement]:
    name, version = distribution.name, distribution.version
    if not isinstance(version, str):
        msg = "the metadata has no version"
        raise ValueError(msg)
    requires = tuple(distribution.requires or ())
    return [
        Announcement(entry.name, entry.value.partition("[")[0].strip(), name, version, requires) for entry in entries
    ]


def _name_of(distribution: Distribution) -> str | None:
    try:
        return str(distribution.name) if distribution.name else None
    except Exception:  # the name is only for the message about the damage, which is reported anyway
        return None
