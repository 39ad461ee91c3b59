"""Find the components of plugins, and yield the checks for each of them.

Settings of components come as mappings, or as ``NAME.path=value`` from the command line; the component's own settings
model validates the latter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from esper_core import BlueprintSpec, HostSpec
from esper_core.leyline import ConfigError, PluginError, Problem
from esper_core.leyline.errors import suggestion
from esper_core.plugins import Component, load_plugins
from esper_testing import suites
from esper_testing.checks import Check, NotApplicable, run_checks
from esper_testing.fakes import fake_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from esper_core.plugins import Plugins
    from esper_testing.checks import CheckResult


_GRAMMAR: Final = "Write a component, a path, an equals sign and a value: --set 'schedule.plan=[]'"
_SETTING: Final = re.compile(r"(?P<name>[^\s.\[\]=]+)(?P<path>(\.[^\s.\[\]=]+|\[\d+\])*)=(?P<value>.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_BOOL: Final = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans, as in configurations."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("(true|false)$"), ["t", "f"])


def read_settings(texts: Sequence[str], components: Sequence[Component]) -> dict[str, dict[str, Any]]:
    """Return, by the full id of each component that the texts name, everything that it is built with.

    Args:
        texts: ``schedule.plan=[]``, with the component's short name or full id and a YAML value.
        components: the components that may be named. Settings that no text gives have their defaults.

    Raises:
        ConfigError: everything that is wrong: a text that cannot be read (E115), an unknown component (E200), a value
            that the component's model refuses (E110 to E113), settings for a component without any (E121).
    """
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    problems: list[Problem] = []
    for text in texts:
        try:
            name = _assign(text, values)
        except (yaml.YAMLError, ValueError, TypeError, LookupError) as error:
            message = f'expected path=value, received "{text}": {" ".join(str(error).split())}'
            problems.append(Problem("E115", message, f"--set {text}", hint=_GRAMMAR))
        else:
            labels[name] = f"--set {text}"
    settings: dict[str, dict[str, Any]] = {}
    for name, given in values.items():
        named = [component for component in components if name in (component.id, component.short)]
        if not named:
            hint = suggestion(name, [component.short for component in components])
            problems.append(Problem("E200", f'unknown component "{name}"', labels.get(name), hint=hint))
        for component in named:
            if component.id in settings:
                message = f'"{component.id}" is named in two ways'
                problems.append(Problem("E115", message, labels.get(name), path=name))
            settings[component.id], found = _validated(component, name, given)
            problems += [problem.at(file=labels.get(name), line=None, column=None) for problem in found]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return settings


def _assign(text: str, values: dict[str, Any]) -> str:
    """Put the value of a text into ``values``; return the component's name. Any error means that it does not fit."""
    if (match := _SETTING.fullmatch(text)) is None:
        msg = "it has no =" if "=" not in text else "the path is invalid"
        raise ValueError(msg)
    keys: list[str | int] = [int(index) if index else key for key, index in _STEP.findall(match["path"])]
    *parents, last = [match["name"], *keys]
    here: Any = values
    for key in parents:
        _check_key(here, key)
        here = here.setdefault(key, {}) if isinstance(here, dict) else here[key]
    _check_key(here, last)
    here[last] = _Loader(match["value"]).get_single_data()
    return match["name"]


def _check_key(here: Any, key: str | int) -> None:
    """Refuse an index into a mapping, and a key of a list or a plain value."""
    if not isinstance(here, list if isinstance(key, int) else dict):
        msg = f"{key!r} does not fit a {type(here).__name__}"
        raise TypeError(msg)


def _validated(component: Component, name: str, given: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Validate settings with the component's own model; return them complete, or what is wrong."""
    model = component.settings_model()
    if not isinstance(given, dict):
        return {}, [Problem("E115", f"expected settings, {name}.NAME=value, received {given!r}", path=name)]
    if model is None:
        message = f'{component.kind} "{name}" has no settings'
        return {}, [Problem("E121", message, path=name)] if given else []
    try:
        settings = model.model_validate(given)
    except ValidationError as error:
        problems = []
        for details in error.errors(include_url=False):
            *parents, last = (name, *details["loc"])
            path = ".".join(map(str, [*parents, last]))
            code, message, hint = "E112", f"{details['msg']}, received {details['input']!r:.80}", None
            if details["type"] == "extra_forbidden":
                hint = suggestion(str(last), model.model_fields) if len(parents) == 1 else None
                code, message = "E110", f'unknown key "{last}"'
            elif details["type"] == "missing":
                code, message = "E113", f'the key "{last}" is missing'
            elif details["type"].endswith(("_type", "_parsing")):
                code = "E111"
            problems.append(Problem(code, message, path=path, hint=hint))
        return {}, problems
    return {field: getattr(settings, field) for field in model.model_fields}, []


Target = str | ModuleType | Component | Sequence["str | ModuleType | Component"]
"""A plugin's id, ``plugin/component``, a package, a module with hooks, a component, or a sequence of these."""

Settings = Mapping[str, Any]
"""Settings of components, by short name or full id."""


def component_checks(component: Component, settings: Any = None) -> Iterator[Check]:
    """Yield the checks for a component of any kind. Its code is imported when the first check runs.

    Args:
        component: to check.
        settings: keyword arguments of the factory. Without them the checks run with the defaults, and are skipped if
            the component requires settings.
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
        yield check if settings is not None else replace(check, run=partial(_run_with_defaults, component, check))


def check_component(
    component: Component, *, settings: Any = None, expected_failures: Mapping[str, str] | None = None
) -> list[CheckResult]:
    """Run every check for a component. Arguments are those of ``component_checks`` and ``run_checks``."""
    return run_checks(component_checks(component, settings), expected_failures)


def check_plugin(
    plugin: Target, *, settings: Settings | None = None, expected_failures: Mapping[str, str] | None = None
) -> list[CheckResult]:
    """Run every check for every component of a plugin.

    Args:
        plugin: its id, its package, or a module with hooks.
        settings: by component.
        expected_failures: by name of the check, or for one component as ``tiny-conv-keeps_shape``.

    Raises:
        ConfigError: there is no such plugin.
        PluginError: the plugin cannot be loaded.
    """
    return run_checks(plugin_checks(plugin, settings), expected_failures)


def plugin_checks(plugin: Target, settings: Settings | None = None, *, given: Sequence[str] = ()) -> list[Check]:
    """Return the checks for every component of one or several plugins.

    Args:
        plugin: whose components to check.
        settings: by component.
        given: settings as ``NAME.path=value``, where NAME is a component's; they replace ``settings`` for it.
    """
    components = components_of(plugin)
    chosen = dict(settings or {})
    known = {name for component in components for name in (component.id, component.short)}
    if unknown := sorted(set(chosen) - known):
        msg = f"settings must be keyed by component: {', '.join(sorted(known))}. Received: {', '.join(unknown)}"
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
    """Return the components of a plugin, a package, a module with hooks, or of several of these.

    Args:
        target: what to look up.
        local: files of one-file plugins to load as well.
    """
    if isinstance(target, Component):
        return (target,)
    if isinstance(target, str):
        return _of_name(target, load_plugins(local=local))
    if isinstance(target, ModuleType):
        return _of_module(target)
    return tuple(component for one in target for component in components_of(one, local))


def _of_name(name: str, plugins: Plugins) -> tuple[Component, ...]:
    """Return the components of a plugin or package, or the one named ``plugin/component``."""
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
    _require_active(plugins, [record.id for record in records])
    ids = {record.id for record in records}
    return tuple(component for component in plugins.registry.components() if component.plugin in ids)


def _of_module(module: ModuleType) -> tuple[Component, ...]:
    """Return the components of a module with hooks, or of the installed package that the module belongs to."""
    if not any(name.startswith("esper_") and callable(thing) for name, thing in vars(module).items()):
        return _of_name(module.__name__, load_plugins())
    plugins = load_plugins(distributions=[fake_plugin(module)], safe_mode=False)
    _require_active(plugins, [record.id for record in plugins.records])
    return plugins.registry.components()


def _require_active(plugins: Plugins, ids: Sequence[str]) -> None:
    inactive = [record for record in plugins.records if record.id in ids and record.status != "active"]
    problems = [problem for record in inactive for problem in record.problems]
    if inactive and not problems:
        names = ", ".join(f"{record.id} is {record.status}" for record in inactive)
        problems = [Problem("E208", f"not active: {names}", hint="See: esper plugins list")]
    if problems:
        raise PluginError(problems)


def _late(component: Component) -> Callable[..., Any]:
    """Return a factory that imports the component when it is first called."""

    def build(*arguments: Any, **settings: Any) -> Any:
        return component.load()(*arguments, **settings)

    build.__module__ = getattr(component.target, "__module__", build.__module__)
    return build


def _host_checks(spec: HostSpec, factory: Callable[..., Any], **more: Any) -> Iterator[Check]:
    return suites.host_checks(factory, spec, **more)


def _run_with_defaults(component: Component, check: Check) -> None:
    model = component.settings_model()
    needed = [name for name, field in model.model_fields.items() if field.is_required()] if model else []
    if needed:
        name = component.short
        reason = (
            f"it requires settings ({', '.join(needed)}): pass  --set '{name}.{needed[0]}=…'  "
            f'(with pytest: --esper-set), or in Python settings={{"{name}": …}}'
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
