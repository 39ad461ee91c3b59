"""Extensions: what packages announce by entry points of other groups than plugins: commands, engines and stores.

Their metadata is read without importing them. ``load`` imports one, after the checks that plugins pass, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from esper_core.leyline.errors import PluginError, Problem
from esper_core.plugins.discovery import core_version_problem, discover, duplicate_problem, is_first_party, is_set
from esper_core.plugins.isolation import import_target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.plugins.plugin_records import EntryPointInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extension:
    """What packages announce under one name. It is an error if several do.

    Attributes:
        kind: What it is, for messages: ``command``.
    """

    kind: str
    name: str
    claims: tuple[EntryPointInfo, ...]

    @classmethod
    def find(cls, group: str, kind: str) -> Mapping[str, Extension]:
        """Return what installed packages announce in a group of entry points, by name, without importing it."""
        entry_points, _ = discover(group)
        names = dict.fromkeys(entry_point.name for entry_point in entry_points)
        return {name: cls(kind, name, tuple(claim for claim in entry_points if claim.name == name)) for name in names}

    @property
    def source(self) -> str:
        """The packages that announce it, each with its version."""
        return " and ".join(dict.fromkeys(claim.source for claim in self.claims))

    @property
    def title(self) -> str:
        """How messages name it: ``command "grow" (esper-extra 1.0)``."""
        return f'{self.kind} "{self.name}" ({self.source})'

    @property
    def is_left_out(self) -> bool:
        """Whether safe mode leaves it out."""
        return is_set("ESPER_SAFE_MODE") and not all(is_first_party(claim.package) for claim in self.claims)

    def load(self, expected: type[T], described: str) -> T:
        """Import it.

        Args:
            expected: What it has to be an instance of.
            described: That in words, with its article.

        Raises:
            PluginError: It may not or cannot be imported, or is something else; names the package.
        """
        named = f'{self.kind} "{self.name}"'
        if self.is_left_out:
            message = f"{named} is from {self.source}, which safe mode leaves out"
            raise PluginError(Problem("E224", message, hint="Unset ESPER_SAFE_MODE."))
        claim = self.claims[0]
        if len(self.claims) > 1:
            raise PluginError(duplicate_problem(named, self.claims))
        if problem := core_version_problem(claim, self.title):
            raise PluginError(problem)
        failure = f"{self.title} cannot be imported"
        imported = import_target(claim.target, failure, code="E210", package=claim.package, requires=claim.requires)
        if isinstance(imported, expected):
            return imported
        message = f"{self.title} is not {described}: {claim.target} is of type {type(imported).__name__}"
        raise PluginError(Problem("E219", message, hint=f"Tell the author of {claim.package}."))
