"""What do the names in a configuration mean? Each becomes an installed component with its settings checked.

Nothing of torch is imported here: ``esper check`` finds a slip in a name in the blink of an eye. Every problem of the
file is found at once, with the line that it is on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from esper_core.app.import_path import host_at
from esper_core.config import settings_problems
from esper_core.config.limits import CAPACITY
from esper_core.leyline.errors import ConfigError, EsperError, PluginError, Problem, suggestion
from esper_core.leyline.specs import HostSpec, RewardSpec, SlotPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from esper_core.config import LoadedConfig, RunConfig, Use
    from esper_core.config.paths import KeyPath
    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins import Component, Registry
    from esper_core.plugins.isolation import Label


T = TypeVar("T")

TWIN = "twin"
"""Name of the arm that never grows."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A component and the settings that it is built with; ``path`` is where the file names it."""

    component: Component
    settings: Mapping[str, Any]
    path: KeyPath

    @property
    def label(self) -> Label:
        """For messages: ``policy "policies/schedule" (esper-policies 0.1.0)``."""
        return self.component.title


@dataclass(frozen=True, slots=True)
class Resolution:
    """A configuration whose every name is known."""

    loaded: LoadedConfig
    task: Chosen
    host: Chosen
    rewards: tuple[Chosen, ...]
    """One, or several that environments take in turn."""
    sinks: tuple[Chosen, ...]
    schedules: Mapping[str, Chosen]
    """Of learning rates, for ``host`` and ``seed``, where the file names one."""
    policies: Mapping[str, Chosen]
    """By arm, in the order of the file; the twin is not among them."""
    places: Mapping[str, SlotPlace]
    blueprints: Mapping[str, tuple[Component, ...]]

    @property
    def reward(self) -> Chosen:
        """The reward, the first where there are several."""
        return self.rewards[0]

    @property
    def plugins(self) -> frozenset[str]:
        """Ids of the plugins whose components the run uses, or which the file requires."""
        chosen = [self.task, self.host, *self.rewards, *self.sinks, *self.schedules.values(), *self.policies.values()]
        grown = [component for components in self.blueprints.values() for component in components]
        used = [component.plugin for component in [*(one.component for one in chosen), *grown]]
        return frozenset([*used, *self.loaded.config.plugins.require])


def resolve(loaded: LoadedConfig, registry: Registry, problems: Iterable[Problem] = ()) -> Resolution:
    """Look up every name; ConfigError with everything that is wrong, ``problems`` that were found before with it."""
    return _Search(loaded, registry, list(problems)).resolve()


@dataclass(slots=True)
class _Search:
    """A pass over the file that collects problems rather than stopping at the first."""

    loaded: LoadedConfig
    registry: Registry
    problems: list[Problem] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)
    """Problems that lie with a plugin, not with the file."""

    def resolve(self) -> Resolution:
        config = self.loaded.config
        task = self.choose("task", config.task, ("task",))
        host = self.choose("host", config.host, ("host",))
        rewards = [self.choose("reward", use, path) for use, path in rewards_of(config)]
        self.one_family(rewards)
        sinks = [self.choose("sink", use, ("sinks", index)) for index, use in enumerate(config.sinks)]
        schedules = {
            side: self.choose("schedule", own.schedule, ("optimizer", side, "schedule"))
            for side, own in (("host", config.optimizer.host), ("seed", config.optimizer.seed))
            if own.schedule is not None
        }
        policies = {arm: self.choose("policy", use, path) for arm, (use, path) in _policies(self.loaded).items()}
        places = {name: self.place(name, host) for name in config.slots}
        blueprints = {name: self.blueprints(name) for name in config.slots}
        if told := sorted(self.problems + self.faults, key=lambda problem: (problem.line or 0, problem.column or 0)):
            raise ConfigError(told) if self.problems else PluginError(told)
        assert task is not None
        assert host is not None
        return Resolution(
            loaded=self.loaded,
            task=task,
            host=host,
            rewards=tuple(reward for reward in rewards if reward is not None),
            sinks=tuple(sink for sink in sinks if sink is not None),
            schedules={side: chosen for side, chosen in schedules.items() if chosen is not None},
            policies={arm: chosen for arm, chosen in policies.items() if chosen is not None},
            places={name: place for name, place in places.items() if place is not None},
            blueprints=blueprints,
        )

    def choose(self, kind: ComponentKind, use: Use, path: KeyPath) -> Chosen | None:
        """The component of this name, and its settings as it wants them."""
        named = (*path, "use")
        if kind == "host" and ":" in use.use:
            own = self.attempt(named, partial(host_at, use.use))
            return None if own is None else Chosen(own, use.settings, path)
        found = self.attempt(named, lambda: (found := self.registry.find(kind, use.use), found.settings_model()))
        if found is None:
            return None
        component, model = found
        if model is None:
            if use.settings:
                message = f'{kind} "{component.id}" has no settings'
                self.problems.append(self.loaded.problem("E121", (*path, "settings"), message))
            return Chosen(component, {}, path)
        try:
            settings = model.model_validate(dict(use.settings))
        except ValidationError as error:
            self.problems += settings_problems(self.loaded, error, model, (*path, "settings"))
            return None
        return Chosen(component, {name: getattr(settings, name) for name in model.model_fields}, path)

    def one_family(self, rewards: Iterable[Chosen | None]) -> None:
        """A problem for each reward that pays for something else than the first: their sums cannot be put together."""
        families = [
            (own, own.component.spec.family) for own in rewards if own and isinstance(own.component.spec, RewardSpec)
        ]
        for own, family in families[1:]:
            first, wanted = families[0]
            if family != wanted:
                message = f'"{first.component.id}" is of the family "{wanted}", "{own.component.id}" of "{family}"'
                hint = "Rewards of one run are of one family: write a run for each."
                self.problems.append(self.loaded.problem("E114", own.path, message, hint))

    def place(self, name: str, host: Chosen | None) -> SlotPlace | None:
        """Where the slot goes: where the file says, else where the host suggests."""
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
        """What may grow in the slot: names and globs, each blueprint once."""
        found: dict[str, Component] = {}
        for index, pattern in enumerate(self.loaded.config.slots[name].blueprints):
            path, context = ("slots", name, "blueprints", index), f'slot "{name}"'
            for component in (
                self.attempt(path, partial(self.registry.match, "blueprint", pattern, context=context)) or ()
            ):
                found[component.id] = component
        return tuple(found.values())

    def attempt(self, path: KeyPath, look: Callable[[], T]) -> T | None:
        """What ``look`` finds, or None with its problems written down at ``path``, or at the plugin author's line."""
        try:
            return look()
        except EsperError as error:
            own = self.faults if isinstance(error, PluginError) else self.problems
            for problem in error.problems:
                here = self.loaded.problem(problem.code, path, problem.message, problem.hint)
                own.append(here if problem.file is None else replace(problem, path=here.where()))
            return None


def rewards_of(config: RunConfig) -> list[tuple[Use, KeyPath]]:
    """The rewards that the file names, each with its place: the one, or those that stand in its place."""
    return [(use, ("rewards", index)) for index, use in enumerate(config.rewards)] or [(config.reward, ("reward",))]


def _policies(loaded: LoadedConfig) -> dict[str, tuple[Use, KeyPath]]:
    config = loaded.config
    if config.policy is not None:
        name = config.policy.use.rpartition("/")[2]
        return {"grown" if name in (TWIN, CAPACITY, "static") else name: (config.policy, ("policy",))}
    return {arm: (own.policy, ("arms", arm, "policy")) for arm, own in config.arms.items()}
