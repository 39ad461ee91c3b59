"""Plugin records: what is known of a plugin and its components, from discovery to the end of loading.

``EntryPointInfo`` is what a package's metadata declares. A ``PluginCandidate`` passes through the steps of the loader
and collects what they find. ``PluginRecord`` is what remains of it, ``Component`` is one thing that it provides, and
``PluginHook`` its implementation of a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from esper_core.leyline import specs
from esper_core.leyline.errors import ConfigError, PluginError, Problem, one_line
from esper_core.plugins.isolation import (
    Label,
    attempt,
    attributed_to,
    author_hint,
    definition_of,
    fault_problem,
    import_target,
    target_of,
)
from esper_core.plugins.process_state import Scope
from esper_core.plugins.returned_values import AttributedSchedule, AttributedTask

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pydantic import BaseModel

    from esper_core.plugins.isolation import Attempt

T = TypeVar("T")

Status = Literal["active", "disabled", "not-listed", "rejected", "broken"]
"""The status of a plugin.

* active: its components can be used.
* disabled: the user disabled it.
* not-listed: safe mode leaves it out, because it is not the project's own.
* rejected: its metadata does not fit, or another plugin has the same id.
* broken: its own code failed.
"""

Hook = Callable[..., Any]


class Kind(NamedTuple):
    """What belongs to a kind of component: ``code`` is that of an unknown name, ``package`` the project's own."""

    hook: str
    spec: type[specs.Spec]
    code: str
    package: str


KINDS: Final[Mapping[specs.ComponentKind, Kind]] = {
    "blueprint": Kind("esper_register_blueprints", specs.BlueprintSpec, "E201", "esper-blueprints"),
    "host": Kind("esper_register_hosts", specs.HostSpec, "E202", "esper-tasks"),
    "policy": Kind("esper_register_policies", specs.PolicySpec, "E203", "esper-policies"),
    "reward": Kind("esper_register_rewards", specs.RewardSpec, "E204", "esper-rewards"),
    "schedule": Kind("esper_register_schedules", specs.ScheduleSpec, "E230", "esper-policies"),
    "sink": Kind("esper_register_sinks", specs.SinkSpec, "E225", "esper-watch"),
    "task": Kind("esper_register_tasks", specs.TaskSpec, "E205", "esper-tasks"),
}


class Packaged:
    """What a version of a package provides."""

    __slots__ = ()

    package: str
    version: str

    @property
    def source(self) -> str:
        """Package and version, as messages name them."""
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class EntryPointInfo(Packaged):
    """One entry point, and the package or the one-file plugin (``file``) that declares it."""

    name: str
    target: str
    package: str
    version: str
    requires: tuple[str, ...] = ()
    file: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Component(Packaged):
    """One component that a plugin provides; its code is imported by ``load``.

    ``id`` is ``blueprints/conv_light``, ``short`` is ``conv_light``, ``plugin`` the plugin's id. ``target`` is what
    builds the component, or the "module:attribute" of that.
    """

    id: str
    short: str
    kind: specs.ComponentKind
    plugin: str
    package: str
    version: str
    target: Callable[..., Any] | str = field(hash=False)
    spec: specs.Spec = field(hash=False)

    @property
    def title(self) -> Label:
        """How messages name it: ``policy "policies/schedule" (esper-policies 0.1.0)``."""
        target = self.target if isinstance(self.target, str) else target_of(self.target)
        return Label(f'{self.kind} "{self.id}" ({self.source})', target)

    def __repr__(self) -> str:
        return f"<{one_line(f'{self.kind} {self.id} from {self.source}')}>"

    def load(self) -> Callable[..., Any]:
        """Import and return what builds the component. Raises PluginError (E219) if that fails."""
        target = self._import(self.target, "cannot be loaded") if isinstance(self.target, str) else self.target
        if not callable(target):
            message = f"{self.title} cannot be called: {self.target} is of type {type(target).__name__}"
            hint = f"A target is a class or a function. {author_hint(self.package)}"
            raise PluginError(Problem("E219", message, hint=hint))
        return target

    def configured(self, text: str = "") -> Component:
        """Return the blueprint with the settings in ``text``, such as ``rank=8, alpha=16)``, and defaults for others.

        The text becomes a part of its id, so a saved network names its settings, too. ConfigError (E120) for settings
        that it does not take. Components that have none are returned as they are.
        """
        model: Any = self.settings_model() if isinstance(self.spec, specs.BlueprintSpec) else None
        if not (text or model):
            return self
        text = text and f"({text.replace(' ', '')}"
        pairs = dict(pair.partition("=")[::2] for pair in text[1:-1].split(",") if pair)
        try:
            values = model.model_validate_strings(pairs).model_dump()
        except (AttributeError, ValueError) as error:
            hint = "It has none."
            if model:
                first = getattr(error, "errors")()[0]  # noqa: B009
                hint = f"{first['loc'][0]}: {first['msg']}. Its settings: {', '.join(model.model_fields)}"
            raise ConfigError(Problem("E120", f"{self.title} does not take {text}", hint=hint)) from None
        return replace(self, id=self.id + text, target=partial(self.load(), **values))

    @staticmethod
    def attributed(kind: str, built: Any, label: str) -> Any:
        """Return what was built, with the faults of its methods attributed to ``label`` if it is a task or a schedule.

        ``label`` is the ``title`` of the component that a run keeps. Components of other kinds are returned as they
        are: whoever calls them attributes what they raise.
        """
        wrap = {"schedule": AttributedSchedule, "task": AttributedTask}.get(kind)
        return built if wrap is None else wrap(built, label)

    def settings_model(self) -> type[BaseModel] | None:
        """Import and return the pydantic model of the component's settings; None if it has no settings.

        Raises PluginError if it cannot be imported (E219) or is no such model (E217).
        """
        declared = getattr(self.spec, "settings", None)
        if declared is None:
            return None
        model = self._import(declared, "has settings that cannot be loaded") if isinstance(declared, str) else declared

        from pydantic import BaseModel

        if isinstance(model, type) and issubclass(model, BaseModel):
            return model
        message = f"{self.title} declares settings that are not a pydantic model: {declared}"
        hint = f"Settings are a class that derives from pydantic.BaseModel. {author_hint(self.package)}"
        raise PluginError(Problem("E217", message, hint=hint))

    def _import(self, target: str, failure: str) -> Any:
        title = self.title
        return import_target(target, f"{title} {failure}", package=self.package, component=title)


@dataclass(frozen=True, slots=True)
class PluginRecord(Packaged):
    """The outcome of loading one plugin.

    Attributes:
        package: the installed package, or "local file".
        version: the package's version; the start of the hash of a local file.
        origin: the target of the entry point; the path of a local file.
        components: full ids of its components; empty unless it is active.
        sha256: hash of its module's file in hexadecimal; None if it was not imported or has no file.
    """

    id: str
    package: str
    version: str
    origin: str
    hooks: tuple[str, ...]
    components: tuple[str, ...]
    status: Status
    problems: tuple[Problem, ...]
    sha256: str | None

    @property
    def title(self) -> str:
        """How messages name it: ``plugin "extra" (esper-extra 0.2.0)``."""
        return f'plugin "{self.id}" ({self.source})'


class PluginHook:
    """One plugin's implementation of a hook. ``Plugins.hooks`` returns those of every active plugin.

    ``call`` only calls it. What is called by ``attempt``, or within ``attributed``, is attributed to the plugin, and
    what it changes of the process's state is restored.

    Attributes:
        record: The plugin.
        hook: The name of the hook.
        call: Calls the implementation with its arguments by name, and returns what pluggy does: a list of at most one
            value.
        label: Names the plugin in messages, and the code that implements the hook (``label.target``).
        definition: File and line of that code, or two None if they are unknown.
    """

    def __init__(self, record: PluginRecord, hook: str, function: Any, call: Callable[..., Any]) -> None:
        self.record, self.hook, self.call = record, hook, call
        self.label = Label(record.title, target_of(function))
        self.definition = definition_of(function)

    def attempt(self, act: Callable[[], T]) -> Attempt[T]:
        """Return what ``act``, which runs code of the plugin, returns or raises."""
        return attempt(act, self.label, Scope.RUN)

    def attributed(self) -> AbstractContextManager[None]:
        """Return a context that raises what is raised within as PluginError, which names plugin, hook and line."""
        return attributed_to(self.label, f"in {self.hook}", Scope.RUN)

    def problem(self, code: str, failure: str, error: BaseException) -> Problem:
        """Describe an error that the plugin raised in this hook."""
        message, package = f"{self.record.title} {failure}", self.record.package
        return fault_problem(code, message, error, target=self.label.target, package=package, plugin=self.record.id)


@dataclass(frozen=True, slots=True)
class PluginCandidate:
    """A plugin on its way through the loader: each step takes one and returns the next.

    A step that finds a reason against the plugin returns it ``stopped``; later steps then leave it out.
    """

    entry_point: EntryPointInfo
    status: Status = "active"
    problems: tuple[Problem, ...] = ()
    plugin: Any = None
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    components: tuple[Component, ...] = ()
    sha256: str | None = None

    @property
    def id(self) -> str:
        """The plugin's id, which is the name of its entry point."""
        return self.entry_point.name

    @property
    def title(self) -> str:
        """How messages name it: ``plugin "extra" (esper-extra 0.2.0)``."""
        return f'plugin "{self.id}" ({self.entry_point.source})'

    @property
    def is_active(self) -> bool:
        """Whether nothing has stopped it so far."""
        return self.status == "active"

    def stopped(self, status: Status, *problems: Problem) -> PluginCandidate:
        """Return the candidate with another status and further problems."""
        return replace(self, status=status, problems=(*self.problems, *problems))

    def broken_by(self, code: str, failure: str, error: BaseException) -> PluginCandidate:
        """Return the candidate stopped as broken by an error that its code raised."""
        return self.stopped("broken", self.problem(code, failure, error))

    def problem(self, code: str, failure: str, error: BaseException) -> Problem:
        """Describe an error that the plugin's code raised, with its author's own line."""
        entry, message = self.entry_point, f"{self.title} {failure}"
        return fault_problem(
            code, message, error, target=entry.target, package=entry.package, plugin=self.id, requires=entry.requires
        )

    def record(self) -> PluginRecord:
        """Return what is kept of the candidate."""
        return PluginRecord(
            id=self.id,
            package=self.entry_point.package,
            version=self.entry_point.version,
            origin=self.entry_point.file or self.entry_point.target,
            hooks=tuple(sorted(self.hooks)),
            # A candidate that was stopped keeps its components, so that messages can name them, but provides none.
            components=tuple(component.id for component in self.components if self.is_active),
            status=self.status,
            problems=self.problems,
            sha256=self.sha256,
        )
