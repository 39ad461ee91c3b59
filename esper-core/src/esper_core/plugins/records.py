"""What is known of a plugin, from the moment its package was seen to the end of loading?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from esper_core.leyline.errors import Problem
    from esper_core.plugins.component import Component
    from esper_core.plugins.discovery import Announcement

Status = Literal["active", "disabled", "not-listed", "rejected", "broken"]
"""active: its components can be used · disabled: by the user · not-listed: safe mode, and it is not first-party ·
rejected: its metadata or its API level do not fit, or its id is taken twice · broken: its own code is at fault."""

Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """What became of one plugin.

    origin: its entry point's target; the path of a local file.
    api: the API level that it says it was written for; None where it was not asked.
    hooks: names of the hooks that it implements. components: full ids; empty unless it is active.
    load_ms: milliseconds that importing it took; None where it was not imported.
    sha256: of the file that its module is in, in hexadecimal; None where it was not imported, or is in no file.
    """

    id: str
    package: str
    version: str
    origin: str
    api: int | None = None
    hooks: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    status: Status = "active"
    problems: tuple[Problem, ...] = ()
    load_ms: float | None = None
    sha256: str | None = None

    @property
    def source(self) -> str:
        """Package and version, as messages name them."""
        return f"{self.package} {self.version}"

    def as_json(self) -> dict[str, Any]:
        """The record as ``esper plugins list --json`` prints it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin on its way through the pipeline. Each step takes one and gives the next; one that fell stays down.

    settings: the pydantic model of its own settings, where it names one.
    """

    announcement: Announcement
    status: Status = "active"
    problems: tuple[Problem, ...] = ()
    plugin: Any = None
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    api: int | None = None
    components: tuple[Component, ...] = ()
    load_ms: float | None = None
    sha256: str | None = None
    settings: Any = None

    @property
    def id(self) -> str:
        """The plugin's id: the name of its entry point."""
        return self.announcement.name

    @property
    def title(self) -> str:
        """How messages name it."""
        return f'plugin "{self.id}" ({self.announcement.source})'

    @property
    def is_active(self) -> bool:
        """Whether nothing has stopped it so far."""
        return self.status == "active"

    def fallen(self, status: Status, *problems: Problem) -> Candidate:
        """The same candidate, stopped, with the reasons added."""
        return replace(self, status=status, problems=(*self.problems, *problems))

    def record(self) -> PluginRecord:
        """What is kept of it."""
        return PluginRecord(
            id=self.id,
            package=self.announcement.package,
            version=self.announcement.version,
            origin=self.announcement.file or self.announcement.target,
            api=self.api,
            hooks=tuple(sorted(self.hooks)),
            components=tuple(component.id for component in self.components) if self.is_active else (),
            status=self.status,
            problems=self.problems,
            load_ms=None if self.load_ms is None else round(self.load_ms, 3),
            sha256=self.sha256,
        )
