"""Resolution: replace each name in a configuration by an installed component with validated settings.

``load_run_plugins`` loads the plugins that a configuration asks for, ``resolve`` looks up every name in it. All
problems are collected and raised together, each with its place in the file. Nothing here imports torch, so that
``esper check`` reports a misspelt name at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from esper_core.leyline.errors import ConfigError, EsperError, PluginError, Problem, suggestion
from esper_core.leyline.specs import HostSpec, SlotPlace
from esper_core.plugins import load_plugins
from esper_run.app.components import ConfiguredComponent, host_at
from esper_run.config import model_problems, parse_path
from esper_run.config.model import CAPACITY, TWIN
from esper_run.engines import Engine, find_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, Plugins
    from esper_core.settings import Use
    from esper_run.config import LoadedConfig, RunConfig
    from esper_run.config.values import KeyPath

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfiguredEngine:
    """The engine of a run with its settings; ``engine`` is None where ``auto`` leaves the choice open."""

    name: str
    engine: Engine | None = None
    settings: BaseModel | None = None

    @property
    def is_remote(self) -> bool:
        """Whether it computes on other machines."""
        return self.engine is not None and self.engine.is_remote


@dataclass(frozen=True, slots=True)
class Resolution:
    """A configuration with a component for each name in it.

    Attributes:
        components: By its path in the configuration, in the order of ``named_components``.
        places: The place of each slot.
        blueprints: The blueprints of each slot.
        engine: What computes the environments.
    """

    loaded: LoadedConfig
    plugins: Plugins
    components: Mapping[KeyPath, ConfiguredComponent]
    places: Mapping[str, SlotPlace]
    blueprints: Mapping[str, tuple[Component, ...]]
    engine: ConfiguredEngine

    @property
    def config(self) -> RunConfig:
        """The configuration as the file has it."""
        return self.loaded.config

    @property
    def task(self) -> ConfiguredComponent:
        """The task."""
        return self.components["task",]

    @property
    def host(self) -> ConfiguredComponent:
        """The host."""
        return self.components["host",]

    @property
    def reward(self) -> ConfiguredComponent:
        """The reward."""
        return self.components["reward",]

    @property
    def policies(self) -> Mapping[str, ConfiguredComponent]:
        """By arm; the twin has none. A single ``policy`` names its arm, unless that name has another meaning."""
        return {_arm_name(chosen): chosen for chosen in self.of_kind("policy")}

    def of_kind(self, kind: ComponentKind) -> list[ConfiguredComponent]:
        """Return the components of a kind, in the order of the file."""
        return [chosen for chosen in self.components.values() if chosen.component.kind == kind]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong and does not stop the run, one line each."""
        broken = [record for record in self.plugins.records if record.status in ("broken", "rejected")]
        faults = [problem for record in broken for problem in record.problems[:1]]
        faults += [problem for problem in self.plugins.problems if problem.code == "E223"]
        return tuple(map(one_line, (*faults, *unmarked_hooks(self.plugins))))


def _arm_name(policy: ConfiguredComponent) -> str:
    if policy.path[0] == "arms":
        return str(policy.path[1])
    name = policy.component.short
    return "grown" if name in (TWIN, CAPACITY) else name


# --- plugins of a run


def load_run_plugins(loaded: LoadedConfig, folder: Path) -> Plugins:
    """Load the plugins for a configuration. Its one-file plugins are looked up in ``folder``."""
    settings = loaded.config.plugins
    local = [folder.absolute() / name for name in settings.local]
    return load_plugins(disable=settings.disable, local=local)


def unmarked_hooks(plugins: Plugins) -> tuple[Problem, ...]:
    """Return E222 for each function of an active plugin that looks like a hook and lacks ``@hookimpl``."""
    active = [record for record in plugins.records if record.status == "active"]
    return tuple(problem for record in active for problem in record.problems if problem.code == "E222")


def one_line(problem: Problem) -> str:
    """Return a problem as one line: code, message, place and hint."""
    hint = (problem.hint or "").splitlines()
    return "  ".join(filter(None, [f"{problem.code} {problem.message}", problem.where(), *hint]))


# --- names


def named_components(config: RunConfig) -> dict[KeyPath, tuple[ComponentKind, Use]]:
    """Return every component that a configuration names, except blueprints: its kind and settings, by its path."""
    named: dict[KeyPath, tuple[ComponentKind, Use]] = {
        ("task",): ("task", config.task),
        ("host",): ("host", config.host),
        ("reward",): ("reward", config.reward),
    }
    named |= {("sinks", index): ("sink", use) for index, use in enumerate(config.sinks)}
    for side, optimizer in (("host", config.optimizer.host), ("seed", config.optimizer.seed)):
        if optimizer.schedule is not None:
            named["optimizer", side, "schedule"] = "schedule", optimizer.schedule
    if config.policy is not None:
        named["policy",] = "policy", config.policy
        return named
    return named | {("arms", arm, "policy"): ("policy", arm_config.policy) for arm, arm_config in config.arms.items()}


def resolve(loaded: LoadedConfig, plugins: Plugins) -> Resolution:
    """Look up every name of a configuration among the loaded plugins, and validate all settings.

    Raises:
        PluginError: A plugin that the configuration uses is broken.
        ConfigError: Names are unknown or settings invalid; has all problems, in the order of the file.
    """
    local = [file.entry_point.file for file in plugins.files]
    unusable = [record for record in plugins.records if record.status in ("broken", "rejected")]
    if faults := [problem for record in unusable if record.origin in local for problem in record.problems]:
        raise PluginError(list(dict.fromkeys(faults)))
    placed = [  # the path of such a problem names its place in the file
        loaded.problem(problem.code, parse_path(problem.path or ""), problem.message, problem.hint)
        for problem in plugins.problems
        if problem.code in ("E208", "E227")
    ]
    return _Resolver(loaded, plugins, placed).resolve()


@dataclass(slots=True)
class _Resolver:
    """One pass over a configuration that collects problems instead of stopping at the first.

    Attributes:
        problems: What is wrong in the file.
        faults: What is wrong in plugins that the file uses.
    """

    loaded: LoadedConfig
    plugins: Plugins
    problems: list[Problem]
    faults: list[Problem] = field(default_factory=list)

    def resolve(self) -> Resolution:
        """Look up everything; raise all problems together."""
        config = self.loaded.config
        chosen = {path: self.choose(kind, use, path) for path, (kind, use) in named_components(config).items()}
        components = {path: component for path, component in chosen.items() if component is not None}
        places = {name: self.place(name, components.get(("host",))) for name in config.slots}
        blueprints = {name: self.blueprints(name) for name in config.slots}
        engine = self.engine()
        if problems := sorted(
            self.problems + self.faults, key=lambda problem: (problem.line or 0, problem.column or 0)
        ):
            raise ConfigError(problems) if self.problems else PluginError(problems)
        known_places = {name: place for name, place in places.items() if place is not None}
        return Resolution(self.loaded, self.plugins, components, known_places, blueprints, engine)

    def choose(self, kind: ComponentKind, use: Use, path: KeyPath) -> ConfiguredComponent | None:
        """Return the component that ``use`` names, with its settings validated; None after a problem."""
        if kind == "host" and (":" in use.use or "." in use.use):
            host = self.attempt((*path, "use"), partial(host_at, use.use))
            return None if host is None else ConfiguredComponent(host, use.settings, path)
        registry = self.plugins.registry
        component_and_model = self.attempt(
            (*path, "use"), lambda: (candidate := registry.find(kind, use.use), candidate.settings_model())
        )
        if component_and_model is None:
            return None
        component, model = component_and_model
        if model is None:
            if use.settings:
                message = f'{kind} "{component.id}" has no settings'
                self.problems.append(self.loaded.problem("E121", (*path, "settings"), message))
            return ConfiguredComponent(component, {}, path)
        try:
            settings = model.model_validate(dict(use.settings))
        except ValidationError as error:
            self.problems += model_problems(error, model, self.loaded.root, (*path, "settings"))
            return None
        return ConfiguredComponent(component, {name: getattr(settings, name) for name in model.model_fields}, path)

    def place(self, name: str, host: ConfiguredComponent | None) -> SlotPlace | None:
        """Return the place of a slot: the file's, else the host's."""
        slot = self.loaded.config.slots[name]
        if slot.at is not None:
            return SlotPlace(slot.at, slot.kind, slot.stack, slot.output)
        if host is None:
            return None
        suggested = host.component.spec.slots if isinstance(host.component.spec, HostSpec) else {}
        if name in suggested:
            place = suggested[name]
            output = place.output if slot.output is None else slot.output
            return SlotPlace(place.at, slot.kind or place.kind, slot.stack, output)
        message = f'host "{host.component.id}" declares no slot "{name}"'
        hint = f"{suggestion(name, suggested)}\nOr give its place:  slots.{name}.at: NAME_OF_A_MODULE"
        self.problems.append(self.loaded.problem("E122", ("slots", name), message, hint))
        return None

    def blueprints(self, name: str) -> tuple[Component, ...]:
        """Return the blueprints of a slot, given as names and globs, each once."""
        components: dict[str, Component] = {}
        for index, pattern in enumerate(self.loaded.config.slots[name].blueprints):
            match = partial(self.plugins.registry.match, "blueprint", pattern, context=f'slot "{name}"')
            for component in self.attempt(("slots", name, "blueprints", index), match) or ():
                components[component.id] = component
        return tuple(components.values())

    def engine(self) -> ConfiguredEngine:
        """Return the engine with its settings validated. Without one after a problem."""
        use, path = self.loaded.config.engine, ("engine", "settings")
        engine = self.attempt(("engine", "use"), partial(find_engine, use.use))
        if engine is None or engine.settings is None:
            if use.settings and engine is not None:
                self.problems.append(self.loaded.problem("E121", path, f'engine "{use.use}" has no settings'))
            return ConfiguredEngine(use.use, engine)
        self.check_devices(engine)
        try:
            return ConfiguredEngine(use.use, engine, engine.settings.model_validate(dict(use.settings)))
        except ValidationError as error:
            self.problems += model_problems(error, engine.settings, self.loaded.root, path)
            return ConfiguredEngine(use.use)

    def check_devices(self, engine: Engine) -> None:
        """Report a GPU where the engine computes on the CPUs of other machines."""
        config = self.loaded.config
        gpu = next((name for name in (config.device, *config.devices) if name.startswith("cuda")), None)
        if engine.is_remote and gpu is not None:
            message = f"workers of engine {config.engine.use} compute on CPUs, received {gpu}"
            path = ("devices",) if config.devices else ("device",)
            self.problems.append(self.loaded.problem("E114", path, message, "Use device: cpu, or engine: threads."))

    def attempt(self, path: KeyPath, look_up: Callable[[], T]) -> T | None:
        """Return what ``look_up`` finds; None after a problem, which gets the place of ``path`` if it has none."""
        try:
            return look_up()
        except EsperError as error:
            collected = self.faults if isinstance(error, PluginError) else self.problems
            for problem in error.problems:
                located = self.loaded.problem(problem.code, path, problem.message, problem.hint)
                collected.append(located if problem.file is None else replace(problem, path=located.where()))
            return None


# --- what is written to the run directory


def resolved_config(resolution: Resolution) -> RunConfig:
    """Return the configuration with every name in full and every default written out.

    The run it describes does not depend on what else is installed. One-file plugins are named by their copies in the
    run directory.
    """
    config: RunConfig = resolution.loaded.config
    values: dict[KeyPath, Any] = {("plugins", "local"): tuple(f"./{Path(name).name}" for name in config.plugins.local)}
    for path, chosen in resolution.components.items():
        values[*path, "use"] = chosen.component.id
        values[*path, "settings"] = to_jsonable_python(dict(chosen.settings))
    if (settings := resolution.engine.settings) is not None:
        values["engine", "settings"] = settings.model_dump(mode="json")
    for name, place in resolution.places.items():
        values["slots", name, "at"] = place.at
        values["slots", name, "kind"] = place.kind
        values["slots", name, "output"] = place.output
        values["slots", name, "blueprints"] = tuple(component.id for component in resolution.blueprints[name])
    for path, value in values.items():
        config = _replaced(config, path, value)
    return config


def _replaced(part: Any, path: KeyPath, value: Any) -> Any:
    """Return a copy of a part of a configuration with another value at ``path``."""
    if not path:
        return value
    key, subpath = path[0], path[1:]
    if isinstance(part, Mapping):
        return {**part, key: _replaced(part[key], subpath, value)}
    if isinstance(part, tuple):
        return tuple(_replaced(member, subpath, value) if at == key else member for at, member in enumerate(part))
    return part.model_copy(update={key: _replaced(getattr(part, str(key)), subpath, value)})
