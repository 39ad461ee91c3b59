"""What is known of a plugin, from the moment its package was seen to the end of loading?

What can a run use? A component: its name, the package behind it, and the way to its code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.text import one_line
from esper_core.plugins.isolation import (
    Label,
    attempt,
    author_of,
    blame,
    fault_in,
    import_target,
    remedy,
    root_of,
    target_of,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind, Spec


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


@dataclass(frozen=True, slots=True)
class Component:
    """A blueprint, host, policy, reward, sink or task that a plugin brings. Its code is imported by ``load``.

    id: plugin and name, ``blueprints/conv_light``; unique among the components of a kind.
    target: what builds it, or the "module:attribute" where that stands.
    """

    id: str
    short: str
    kind: ComponentKind
    plugin: str
    package: str
    version: str
    target: Callable[..., Any] | str = field(hash=False)
    spec: Spec = field(hash=False)

    @property
    def source(self) -> str:
        """Package and version, as messages name them."""
        return f"{self.package} {self.version}"

    @property
    def title(self) -> Label:
        """How messages name it: ``policy "policies/schedule" (esper-policies 0.1.0)``. It knows its target."""
        target = self.target if isinstance(self.target, str) else target_of(self.target)
        return Label(f'{self.kind} "{self.id}" ({self.source})', target)

    def __repr__(self) -> str:
        summary = f": {self.spec.summary}" if self.spec.summary else ""
        return f"<{one_line(f'{self.kind} {self.id}, {self.source}{summary}')}>"

    def load(self) -> Callable[..., Any]:
        """What builds it. Imports the package's code; PluginError (E219) where that fails."""
        found = self._import(self.target, "cannot be loaded") if isinstance(self.target, str) else self.target
        if not callable(found):
            raise PluginError(
                Problem(
                    "E219",
                    f"{self.title} cannot be called: {self.target} is {_article(type(found).__name__)}",
                    hint=f"A target is a class or a function. {author_of(self.package)}",
                )
            )
        return found

    def settings_model(self) -> type[BaseModel] | None:
        """The pydantic model of its settings; None where it has no settings. PluginError where it cannot be had."""
        declared = getattr(self.spec, "settings", None)
        if declared is None:
            return None
        found = self._import(declared, "has settings that cannot be loaded") if isinstance(declared, str) else declared

        from pydantic import BaseModel

        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
        raise PluginError(
            Problem(
                "E217",
                f"{self.title} declares settings that are no pydantic model: {declared}",
                hint=f"Settings are a class that derives from pydantic.BaseModel. {author_of(self.package)}",
            )
        )

    def _import(self, target: str, failing: str) -> Any:
        tried = attempt(lambda: import_target(target))
        if tried.error is None:
            return tried.value
        fault = fault_in(tried.error, root_of(target))
        problem = Problem(
            "E219",
            f"{self.title} {failing}: {fault.summary}",
            file=fault.file,
            line=fault.line,
            path=None if fault.file else target,
            hint=remedy(fault, target, self.package) or author_of(self.package),
        )
        raise PluginError(problem) from tried.error


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


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


def raised(code: str, candidate: Candidate, what: str, error: BaseException) -> Problem:
    """The problem that a plugin's code raised: with its author's own line where the fault passed through one."""
    announcement = candidate.announcement
    fault = fault_in(error, root_of(announcement.target))
    return Problem(
        code,
        f"{candidate.title} {what}: {fault.summary}",
        file=fault.file,
        line=fault.line,
        path=f"entry point {candidate.id} = {announcement.target}" if fault.file is None else None,
        hint=remedy(fault, announcement.target, announcement.package, announcement.requires)
        or blame(announcement.package, candidate.id),
    )
