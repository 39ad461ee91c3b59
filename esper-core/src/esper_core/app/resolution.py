"""Resolution: replace each name in a configuration by an installed component with validated settings.

``load_run_plugins`` loads the plugins that a configuration asks for, ``resolve`` looks up every name in it. All
problems are collected and raised together, each with its place in the file. Nothing here imports torch, so that
``esper check`` reports a misspelt name at once.
"""

from __future__ import annotations

from contextlib import chdir
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from esper_core.app.components import ConfiguredComponent, host_at
from esper_core.config import model_problems, parse_path
from esper_core.config.model import CAPACITY
from esper_core.leyline.errors import (
    ConfigError,
    EsperError,
    PluginError,
    Problem,
    suggestion,
)
from esper_core.leyline.specs import HostSpec, RewardSpec, SlotPlace
from esper_core.plugins import load_plugins
from esper_core.plugins.lookup_errors import unknown_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pydantic import BaseModel

    from esper_core.config import LoadedConfig, RunConfig, Use
    from esper_core.config.values import KeyPath
    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, PluginRecord, Plugins

T = TypeVar("T")

TWIN: Final = "twin"
"""Name of the arm that never grows."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A configuration with a component for each name in it.

    Attributes:
        plugin_settings: By plugin id, an instance of the settings model of each active plugin that declares one.
        rewards: One, or several that environments take in turn.
        schedules: The learning rate schedules of ``host`` and ``seed``, where the file names one.
        policies: By arm, in the order of the file; the twin has none.
        blueprints: By slot, what may grow there.
    """

    loaded: LoadedConfig
    plugins: Plugins
    plugin_settings: Mapping[str, Any]
    task: ConfiguredComponent
    host: ConfiguredComponent
    rewards: tuple[ConfiguredComponent, ...]
    sinks: tuple[ConfiguredComponent, ...]
    schedules: Mapping[str, ConfiguredComponent]
    policies: Mapping[str, ConfiguredComponent]
    places: Mapping[str, SlotPlace]
    blueprints: Mapping[str, tuple[Component, ...]]

    @property
    def used_plugins(self) -> frozenset[str]:
        """Ids of the plugins whose components the run uses, or which the configuration requires."""
        chosen = [self.task, self.host, *self.rewards, *self.sinks, *self.schedules.values(), *self.policies.values()]
        blueprints = [component for components in self.blueprints.values() for component in components]
        used = [component.plugin for component in [*(one.component for one in chosen), *blueprints]]
        return frozenset([*used, *self.loaded.config.plugins.require])

    @property
    def unmarked_hooks(self) -> tuple[Problem, ...]:
        """E222 for each function in a used plugin that looks like a hook and lacks ``@hookimpl``."""
        return unmarked_hooks(self.plugins, self.used_plugins)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong and does not stop the run, one line each."""
        return (*unused_faults(self.plugins), *map(one_line, self.unmarked_hooks))


# --- plugins of a run


def load_run_plugins(loaded: LoadedConfig, folder: Path) -> Plugins:
    """Load the plugins for a configuration. Its one-file plugins are looked up in ``folder``.

    A plugin that changes the current folder while it is imported does not change it for the run.
    """
    own = loaded.config.plugins
    local = [folder.absolute() / name for name in own.local]
    with chdir(Path.cwd()):
        return load_plugins(disable=own.disable, require=own.require, local=local)


def unmarked_hooks(plugins: Plugins, used: Collection[str] | None = None) -> tuple[Problem, ...]:
    """Return E222 for each function of an active plugin that looks like a hook and lacks ``@hookimpl``.

    Args:
        plugins: The loaded plugins.
        used: Ids of the installed plugins to look at; None for all. One-file plugins are always looked at.
    """
    found = [
        problem
        for record in plugins.records
        if record.status == "active" and (used is None or record.id in used or _is_local(plugins, record))
        for problem in record.problems
        if problem.code == "E222"
    ]
    return tuple(dict.fromkeys(found))


def unused_faults(plugins: Plugins) -> tuple[str, ...]:
    """Return one line for each plugin that failed to load and that the run does not need."""
    lines = []
    for record in plugins.records:
        if record.status in ("broken", "rejected"):
            reason = next((f"{one.code} {one.message}" for one in record.problems), "no reason is known")
            lines.append(
                f'plugin "{record.id}" ({record.source}) is {record.status}, and not used: {reason}'
                f"  More:  esper plugins show {record.id}"
            )
    return (*lines, *(f"{one.message}  {one.hint}" for one in plugins.problems if one.code == "E223"))


def one_line(problem: Problem) -> str:
    """Return a problem as one line: code, message, place and hint."""
    hint = (problem.hint or "").splitlines()
    return "  ".join(filter(None, [f"{problem.code} {problem.message}", problem.where(), *hint]))


def _check_required(loaded: LoadedConfig, plugins: Plugins) -> None:
    """Raise PluginError if a plugin that the configuration requires, or a one-file plugin, cannot be used."""
    problems = [_at_named_path(loaded, problem) for problem in plugins.problems if problem.code == "E226"]
    for record in plugins.records:
        if record.id in loaded.config.plugins.require and record.status != "active":
            problems += _requirement_problems(loaded, record)
        elif _is_local(plugins, record) and record.status in ("broken", "rejected"):
            problems += record.problems
    if problems:
        raise PluginError(list(dict.fromkeys(problems)))


def _requirement_problems(loaded: LoadedConfig, record: PluginRecord) -> list[Problem]:
    if any(problem.code == "E226" for problem in record.problems):
        return []  # among the problems of the loader: it is required in another version
    state: str = record.status
    hint, reasons = f"More:  esper plugins show {record.id}", list(record.problems)
    if record.status == "disabled":
        hint, reasons = f'Take "{record.id}" out of plugins.disable, or out of plugins.require.', []
    elif record.status == "not-listed":
        state, hint, reasons = "left out in safe mode", "Unset ESPER_SAFE_MODE.", []
    message = f'plugin "{record.id}" ({record.source}) is required, and it is {state}'
    return [loaded.problem("E226", ("plugins", "require", record.id), message, hint), *reasons]


def _plugin_settings(loaded: LoadedConfig, plugins: Plugins) -> tuple[dict[str, Any], list[Problem]]:
    """Validate ``plugins.settings``: by plugin id an instance of its settings model, and what is wrong."""
    given = loaded.config.plugins.settings
    records = {record.id: record for record in plugins.records}
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for id_, model in plugins.settings.items():
        try:
            found[id_] = model.model_validate(given.get(id_, {}))
        except ValidationError as error:
            problems += model_problems(error, model, loaded.root, ("plugins", "settings", id_))
    for id_, values in given.items():
        path = ("plugins", "settings", id_)
        if id_ not in records:
            unknown = unknown_plugin(id_, plugins.records)
            problems.append(loaded.problem(unknown.code, path, unknown.message, unknown.hint, key=True))
        elif records[id_].status == "active" and id_ not in plugins.settings and values:
            message = f'plugin "{id_}" ({records[id_].source}) has no settings'
            problems.append(loaded.problem("E121", path, message, "Delete them.", key=True))
    return found, problems


def _at_named_path(loaded: LoadedConfig, problem: Problem) -> Problem:
    """Return the problem with the place in the file of the value that its path names."""
    placed = loaded.problem(problem.code, parse_path(problem.path or ""), problem.message, problem.hint)
    return replace(placed, path=problem.path)


def _is_local(plugins: Plugins, record: PluginRecord) -> bool:
    return any(file.entry_point.file == record.origin for file in plugins.files)


# --- names


def resolve(loaded: LoadedConfig, plugins: Plugins) -> Resolution:
    """Look up every name of a configuration among the loaded plugins, and validate all settings.

    Raises:
        PluginError: A plugin that the configuration requires or uses is broken.
        ConfigError: Names are unknown or settings invalid; has all problems, in the order of the file.
    """
    _check_required(loaded, plugins)
    settings, problems = _plugin_settings(loaded, plugins)
    named = [_at_named_path(loaded, one) for one in plugins.problems if one.code in ("E208", "E227")]
    return _Resolver(loaded, plugins, settings, [*named, *problems]).resolve()


@dataclass(slots=True)
class _Resolver:
    """One pass over a configuration that collects problems instead of stopping at the first.

    Attributes:
        problems: What is wrong in the file.
        faults: What is wrong in plugins that the file uses.
    """

    loaded: LoadedConfig
    plugins: Plugins
    plugin_settings: Mapping[str, Any]
    problems: list[Problem]
    faults: list[Problem] = field(default_factory=list)

    def resolve(self) -> Resolution:
        """Look up everything; raise all problems together."""
        config = self.loaded.config
        task = self.choose("task", config.task, ("task",))
        host = self.choose("host", config.host, ("host",))
        rewards = [self.choose("reward", use, path) for use, path in rewards_of(config)]
        self.check_families(rewards)
        sinks = [self.choose("sink", use, ("sinks", index)) for index, use in enumerate(config.sinks)]
        schedules = {side: self.choose("schedule", use, path) for side, (use, path) in _schedules(config).items()}
        policies = {arm: self.choose("policy", use, path) for arm, (use, path) in _policies(config).items()}
        places = {name: self.place(name, host) for name in config.slots}
        blueprints = {name: self.blueprints(name) for name in config.slots}
        if found := sorted(self.problems + self.faults, key=lambda problem: (problem.line or 0, problem.column or 0)):
            raise ConfigError(found) if self.problems else PluginError(found)
        assert task is not None
        assert host is not None
        return Resolution(
            loaded=self.loaded,
            plugins=self.plugins,
            plugin_settings=self.plugin_settings,
            task=task,
            host=host,
            rewards=tuple(reward for reward in rewards if reward is not None),
            sinks=tuple(sink for sink in sinks if sink is not None),
            schedules={side: chosen for side, chosen in schedules.items() if chosen is not None},
            policies={arm: chosen for arm, chosen in policies.items() if chosen is not None},
            places={name: place for name, place in places.items() if place is not None},
            blueprints=blueprints,
        )

    def choose(self, kind: ComponentKind, use: Use, path: KeyPath) -> ConfiguredComponent | None:
        """Return the component that ``use`` names, with its settings validated; None after a problem."""
        if kind == "host" and ":" in use.use:
            own = self.attempt((*path, "use"), partial(host_at, use.use))
            return None if own is None else ConfiguredComponent(own, use.settings, path)
        registry = self.plugins.registry
        found = self.attempt((*path, "use"), lambda: (one := registry.find(kind, use.use), one.settings_model()))
        if found is None:
            return None
        component, model = found
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

    def check_families(self, rewards: Iterable[ConfiguredComponent | None]) -> None:
        """Report each reward whose family is not that of the first: their sums cannot be compared."""
        specs = [(own, own.component.spec) for own in rewards if own and isinstance(own.component.spec, RewardSpec)]
        for own, spec in specs[1:]:
            first, wanted = specs[0]
            if spec.family != wanted.family:
                families = f'is of the family "{wanted.family}", "{own.component.id}" of "{spec.family}"'
                hint = "The rewards of one run must be of one family: use one run for each family."
                self.problems.append(self.loaded.problem("E114", own.path, f'"{first.component.id}" {families}', hint))

    def place(self, name: str, host: ConfiguredComponent | None) -> SlotPlace | None:
        """Return where a slot goes: where the file says, else where the host suggests."""
        slot = self.loaded.config.slots[name]
        suggested: Mapping[str, SlotPlace] = {}
        if host is not None and isinstance(host.component.spec, HostSpec):
            suggested = host.component.spec.slots
        if slot.at is not None:
            return SlotPlace(slot.at, slot.kind, slot.stack)
        if name in suggested:
            return SlotPlace(suggested[name].at, slot.kind or suggested[name].kind, slot.stack)
        if host is not None:
            message = f'host "{host.component.id}" suggests no slot called "{name}"'
            hint = f"{suggestion(name, suggested)}\nOr say where it goes:  slots.{name}.at: NAME_OF_A_MODULE"
            self.problems.append(self.loaded.problem("E122", ("slots", name), message, hint))
        return None

    def blueprints(self, name: str) -> tuple[Component, ...]:
        """Return the blueprints of a slot, given as names and globs, each once."""
        found: dict[str, Component] = {}
        for index, pattern in enumerate(self.loaded.config.slots[name].blueprints):
            match = partial(self.plugins.registry.match, "blueprint", pattern, context=f'slot "{name}"')
            for component in self.attempt(("slots", name, "blueprints", index), match) or ():
                found[component.id] = component
        return tuple(found.values())

    def attempt(self, path: KeyPath, look_up: Callable[[], T]) -> T | None:
        """Return what ``look_up`` finds; None after a problem, which gets the place of ``path`` if it has none."""
        try:
            return look_up()
        except EsperError as error:
            own = self.faults if isinstance(error, PluginError) else self.problems
            for problem in error.problems:
                here = self.loaded.problem(problem.code, path, problem.message, problem.hint)
                own.append(here if problem.file is None else replace(problem, path=here.where()))
            return None


def rewards_of(config: RunConfig) -> list[tuple[Use, KeyPath]]:
    """Return the rewards of a configuration, each with its path: ``rewards`` if given, else ``reward``."""
    return [(use, ("rewards", index)) for index, use in enumerate(config.rewards)] or [(config.reward, ("reward",))]


def _schedules(config: RunConfig) -> dict[str, tuple[Use, KeyPath]]:
    sides = {"host": config.optimizer.host.schedule, "seed": config.optimizer.seed.schedule}
    return {side: (use, ("optimizer", side, "schedule")) for side, use in sides.items() if use is not None}


def _policies(config: RunConfig) -> dict[str, tuple[Use, KeyPath]]:
    """Return the policy of each arm. A single ``policy`` names its arm, unless that name has another meaning."""
    if config.policy is not None:
        name = config.policy.use.rpartition("/")[2]
        return {"grown" if name in (TWIN, CAPACITY, "static") else name: (config.policy, ("policy",))}
    return {arm: (own.policy, ("arms", arm, "policy")) for arm, own in config.arms.items()}


# --- what is written to the run directory, and what ``esper explain`` shows


def resolved_config(resolution: Resolution) -> RunConfig:
    """Return the configuration with every name in full and every default written out.

    It runs the same whatever else is installed. One-file plugins are named as they lie beside it in the run directory.
    """
    config, policies = resolution.loaded.config, resolution.policies
    rewards = tuple(map(_in_full, [use for use, _ in rewards_of(config)], resolution.rewards))
    optimizers = {
        side: own.model_copy(update={"schedule": _in_full(own.schedule, resolution.schedules[side])})
        for side, own in (("host", config.optimizer.host), ("seed", config.optimizer.seed))
        if own.schedule is not None
    }
    update: dict[str, Any] = {
        "plugins": config.plugins.model_copy(
            update={"local": tuple(f"./{Path(name).name}" for name in config.plugins.local)}
        ),
        "task": _in_full(config.task, resolution.task),
        "host": _in_full(config.host, resolution.host),
        "sinks": tuple(map(_in_full, config.sinks, resolution.sinks)),
        "slots": {name: slot.model_copy(update=_slot_in_full(resolution, name)) for name, slot in config.slots.items()},
        "optimizer": config.optimizer.model_copy(update=optimizers),
    }
    update |= {"rewards": rewards} if config.rewards else {"reward": rewards[0]}
    if config.policy is not None:
        (chosen,) = policies.values()
        update["policy"] = _in_full(config.policy, chosen)
    else:
        update["arms"] = {
            name: arm.model_copy(update={"policy": _in_full(arm.policy, policies[name])})
            for name, arm in config.arms.items()
        }
    return config.model_copy(update=update)


def _slot_in_full(resolution: Resolution, name: str) -> dict[str, Any]:
    place, blueprints = resolution.places[name], tuple(one.id for one in resolution.blueprints[name])
    return {"at": place.at, "kind": place.kind, "blueprints": blueprints}


def _in_full(use: Use, chosen: ConfiguredComponent) -> Use:
    return use.model_copy(update={"use": chosen.component.id, "settings": to_jsonable_python(dict(chosen.settings))})


def settings_models(loaded: LoadedConfig, folder: Path) -> dict[KeyPath, type[BaseModel]]:
    """Return the settings model of each component and plugin that a configuration names, by the path of its settings.

    What is not installed, cannot be imported or has no settings is left out: ``esper check`` reports that.
    """
    plugins, config = load_run_plugins(loaded, folder), loaded.config
    models: dict[KeyPath, type[BaseModel]] = {
        ("plugins", "settings", id_): model for id_, model in plugins.settings.items() if id_ in config.plugins.settings
    }
    uses: list[tuple[str, Use, KeyPath]] = [("task", config.task, ("task",)), ("host", config.host, ("host",))]
    uses += [("reward", use, path) for use, path in rewards_of(config)]
    uses += [("policy", use, path) for use, path in _policies(config).values()]
    uses += [("schedule", use, path) for use, path in _schedules(config).values()]
    uses += [("sink", use, ("sinks", index)) for index, use in enumerate(config.sinks)]
    for kind, use, path in uses:
        try:
            model = plugins.registry.find(cast("ComponentKind", kind), use.use).settings_model()
        except EsperError:
            continue
        if model is not None:
            models[*path, "settings"] = model
    return models
