"""Does what is installed conform? A plugin's components are looked up, and each checked as its kind demands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from esper_core import BlueprintSpec, HostSpec
from esper_core.leyline import ConfigError, PluginError, Problem
from esper_core.leyline.errors import suggestion
from esper_core.plugins import Component, load_plugins
from esper_testing import suites
from esper_testing.checks import Check, NotApplicable, run_checks
from esper_testing.fakes import fake_plugin
from esper_testing.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from esper_core.plugins import Plugins
    from esper_testing.checks import CheckResult

Target = str | ModuleType | Component | Sequence["str | ModuleType | Component"]
"""A plugin's id, one component's (``plugin/component``), a package, a module with hooks, a component, or several."""

Settings = Mapping[str, Any]
"""For each component, by its short name or full id, the settings to build it with."""


def component_checks(component: Component, settings: Any = None) -> Iterator[Check]:
    """The checks for a component of any kind. Nothing of it is imported until a check runs.

    settings: to build it with; without any its defaults, and where it has none the checks are skipped.
    """
    if isinstance(component.spec, BlueprintSpec):
        module = component.target.partition(":")[0] if isinstance(component.target, str) else None
        yield from suites.blueprint_checks(_late(component), component.spec, name=component.short, module=module)
        return
    makers: dict[str, Callable[..., Iterator[Check]]] = {
        "policy": suites.policy_checks,
        "reward": suites.reward_checks,
        "schedule": suites.schedule_checks,
        "sink": suites.sink_checks,
        "task": suites.task_checks,
    }
    make = makers.get(component.kind)
    if isinstance(component.spec, HostSpec):
        make = partial(_host_checks, component.spec)
    if make is None:
        yield Check(component.short, f"is_a_good_{component.kind}", lambda: _no_checks(component))
        return
    for check in make(_late(component), settings=settings, name=component.short):
        yield check if settings is not None else replace(check, run=partial(_by_default, component, check))


def check_component(
    component: Component, *, settings: Any = None, expected_failures: Mapping[str, str] | None = None
) -> list[CheckResult]:
    """Run every check for a component. Arguments as for ``component_checks`` and ``run_checks``."""
    return run_checks(component_checks(component, settings), expected_failures)


def check_plugin(
    plugin: Target, *, settings: Settings | None = None, expected_failures: Mapping[str, str] | None = None
) -> list[CheckResult]:
    """Run every check for every component of a plugin.

    plugin: its id, its package, or a module with hooks. settings: by component. expected_failures: by name of the
    check, or for one component ``tiny-conv-keeps_shape``.
    Raises ConfigError where there is no such plugin, PluginError where it is broken.
    """
    return run_checks(plugin_checks(plugin, settings), expected_failures)


def plugin_checks(plugin: Target, settings: Settings | None = None, *, given: Sequence[str] = ()) -> list[Check]:
    """The checks for every component of a plugin, or of several.

    given: settings as ``NAME.path=value``, where NAME is a component's, in the place of ``settings`` for it.
    """
    components = components_of(plugin)
    chosen = dict(settings or {})
    known = {name for component in components for name in (component.id, component.short)}
    if strange := sorted(set(chosen) - known):
        msg = f"settings are given by component: {', '.join(sorted(known))}. Received: {', '.join(strange)}"
        raise ValueError(msg)
    said = read_settings(given, components)
    return [
        check
        for component in components
        for check in component_checks(
            component, said.get(component.id, chosen.get(component.id, chosen.get(component.short)))
        )
    ]


def components_of(target: Target, local: Sequence[Path] = ()) -> tuple[Component, ...]:
    """The components that are meant: of a plugin, of a package, of a module with hooks, or of several of these.

    local: files of one-file plugins, whose ids can be named, too.
    """
    if isinstance(target, Component):
        return (target,)
    if isinstance(target, str):
        return _of_name(target, load_plugins(local=local))
    if isinstance(target, ModuleType):
        return _of_module(target)
    return tuple(component for one in target for component in components_of(one, local))


def _of_name(name: str, plugins: Plugins) -> tuple[Component, ...]:
    """Of a plugin, of a package, or the one that is named ``plugin/component``."""
    plugin, _, short = name.partition("/")
    components = _of_plugin(plugin, plugins)
    if not short:
        return components
    found = tuple(one for one in components if one.short == short)
    if not found:
        known = [one.short for one in components]
        hint = f"{suggestion(short, known)}\nAll of them:  esper components"
        raise ConfigError(Problem("E200", f'unknown component "{short}" in plugin "{plugin}"', hint=hint))
    return found


def _of_plugin(name: str, plugins: Plugins) -> tuple[Component, ...]:
    records = [record for record in plugins.records if record.id == name]
    if not records:
        own = _normal(name)
        records = [one for one in plugins.records if own in (_normal(one.package), _normal(_root(one.origin)))]
    if not records and (
        unfit := [replace(one, path=None, hint=None) for one in plugins.problems if one.code == "E227"]
    ):
        raise ConfigError(unfit)
    if not records:
        message, known = f'unknown plugin "{name}"', [record.id for record in plugins.records]
        hint = f"{suggestion(name, known)}\nAll plugins:  esper plugins list"
        raise ConfigError(Problem("E208", message, hint=hint))
    _demand_sound(plugins, [record.id for record in records])
    ids = {record.id for record in records}
    return tuple(component for component in plugins.registry.components() if component.plugin in ids)


def _of_module(module: ModuleType) -> tuple[Component, ...]:
    """Of a package that is installed, or else of a module with hooks, as if one brought it."""
    if not any(name.startswith("esper_") and callable(thing) for name, thing in vars(module).items()):
        return _of_name(module.__name__, load_plugins())
    plugins = load_plugins(distributions=[fake_plugin(module)], safe_mode=False)
    _demand_sound(plugins, [record.id for record in plugins.records])
    return plugins.registry.components()


def _demand_sound(plugins: Plugins, ids: Sequence[str]) -> None:
    fallen = [record for record in plugins.records if record.id in ids and record.status != "active"]
    problems = [problem for record in fallen for problem in record.problems]
    if fallen and not problems:
        names = ", ".join(f"{record.id} is {record.status}" for record in fallen)
        problems = [Problem("E208", f"not active: {names}", hint="See: esper plugins list")]
    if problems:
        raise PluginError(problems)


def _late(component: Component) -> Callable[..., Any]:
    """Builds the component; its code is imported when that is first asked for."""

    def build(*arguments: Any, **settings: Any) -> Any:
        return component.load()(*arguments, **settings)

    build.__module__ = getattr(component.target, "__module__", build.__module__)
    return build


def _host_checks(spec: HostSpec, factory: Callable[..., Any], **more: Any) -> Iterator[Check]:
    return suites.host_checks(factory, spec, **more)


def _by_default(component: Component, check: Check) -> None:
    model = component.settings_model()
    needed = [name for name, field in model.model_fields.items() if field.is_required()] if model else []
    if needed:
        name = component.short
        reason = (
            f"it needs settings ({', '.join(needed)}): give them with  --set '{name}.{needed[0]}=…'  "
            f'(of pytest: --esper-set), or in Python as settings={{"{name}": …}}'
        )
        raise NotApplicable(reason)
    check.run()


def _no_checks(component: Component) -> None:
    reason = f"there are no checks for a {component.kind} yet"
    raise NotApplicable(reason)


def _root(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
