"""The checks of each kind of component, and of the components of a plugin.

``<kind>_checks`` yields a ``Check`` for each promise and case, ``check_<kind>`` runs them and returns the results. The
modules with the checks import torch and the core, so they are imported only when their checks are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from packaging.utils import canonicalize_name

from esper_core import BlueprintSpec
from esper_core.leyline import ConfigError, PluginError, Problem
from esper_core.leyline.errors import suggestion
from esper_core.leyline.specs import SITE_KINDS
from esper_core.plugins import Component, load_plugins
from esper_testing.checks import Check, NotApplicable, is_applicable, run_checks
from esper_testing.fakes import fake_plugin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from esper_core import HostSpec
    from esper_core.plugins import Plugins
    from esper_testing.checks import CheckResult
    from esper_testing.policies import PolicySettings
    from esper_testing.sites import Factory

POLICY_SLOTS: Final = (1, 2, 3, 7)
"""Numbers of slots that a policy is checked with."""


def blueprint_checks(factory: Factory, spec: BlueprintSpec, *, name: str | None = None) -> Iterator[Check]:
    """Yield the checks for a blueprint, each for every kind of site that it accepts.

    The block is built by ``factory(site)``; ``spec`` is what the blueprint is registered with. ``name`` is shown in
    results.
    """
    from esper_core.growth import Variety
    from esper_testing import blueprint_trials, blueprints

    name = name or _name_of(factory)
    yield Check(name, "is_well_declared", partial(blueprints.is_well_declared, name, spec))
    if spec.reads_layer:
        factory = Variety(name, spec, factory).build_alone
    cases = {kind: (factory, spec, kind) for kind in SITE_KINDS if kind in spec.kinds}
    yield from _each(name, (*blueprints.CHECKS, *blueprint_trials.CHECKS), cases)


def reward_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a reward, each with a metric to maximise (``up``) and one to minimise (``down``).

    The reward is built by ``factory(metric=metric, **settings)``.
    """
    from esper_testing import rewards

    make = partial(factory, **(settings or {}))
    cases = {direction: (make, metric) for direction, metric in rewards.METRICS.items()}
    return _each(name or _name_of(factory), rewards.CHECKS, cases)


def host_checks(
    factory: Callable[..., Any], spec: HostSpec, *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a host, each for every kind of data that the host accepts.

    The host is built by ``factory(shape, **settings)``; ``spec`` is what it is registered with.
    """
    from esper_testing import hosts

    name, make = name or _name_of(factory), partial(factory, **(settings or {}))
    yield Check(name, "is_well_declared", partial(hosts.is_well_declared, spec))
    yield Check(name, "accepts_some_data", partial(hosts.accepts_some_data, make))
    cases = {kind: (make, spec, kind) for kind in hosts.GRID}
    yield from _each(name, [hosts.builds_or_says_why_not], cases)
    accepted = {kind: arguments for kind, arguments in cases.items() if hosts.accepts(make, kind)}
    yield from _each(name, hosts.CHECKS, accepted)


def policy_checks(
    factory: Callable[..., Any], *, settings: PolicySettings | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a policy, each with 1, 2, 3 and 7 slots; those of learning only if it learns.

    The policy is built by ``factory(space, **settings)``; ``settings`` may be a function of the action space.
    """
    from esper_testing import policies

    make = policies.maker(factory, settings)
    cases = {f"{slots} slot{'s' if slots > 1 else ''}": (make, slots) for slots in POLICY_SLOTS}
    return _each(name or _name_of(factory), policies.CHECKS, cases)


def task_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a task. ``factory(**settings)`` is called twice for all checks together."""
    from esper_testing import tasks

    builds = tasks.TaskBuilds(partial(factory, **(settings or {})))
    return _each(name or _name_of(factory), tasks.TASK_CHECKS, {None: (builds,)})


def schedule_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a schedule of learning rates. It is built by ``factory(**settings)``."""
    from esper_testing import tasks

    make = partial(factory, **(settings or {}))
    return _each(name or _name_of(factory), tasks.SCHEDULE_CHECKS, {None: (make,)})


def sink_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a sink. It is built by ``factory(run, **settings)``, where ``run`` is an empty folder."""
    from esper_testing import sinks

    make = partial(factory, **(settings or {}))
    return _each(name or _name_of(factory), sinks.CHECKS, {None: (make,)})


def _each(name: str, checks: Iterable[Callable[..., None]], cases: Mapping[Any, tuple[Any, ...]]) -> Iterator[Check]:
    """Yield every check with the arguments of every case in which it applies."""
    for check in checks:
        for case, arguments in cases.items():
            if is_applicable(check, *arguments):
                is_decisive = vars(check).get("is_decisive", False)
                yield Check(name, check.__name__, partial(check, *arguments), case, is_decisive)


def _runner(checks: Callable[..., Iterable[Check]]) -> Callable[..., list[CheckResult]]:
    """Return a function that takes the arguments of ``checks``, and runs the checks."""

    @wraps(checks)
    def run(*arguments: Any, **options: Any) -> list[CheckResult]:
        return run_checks(checks(*arguments, **options))

    run.__doc__ = f"Run every check of ``{checks.__name__}``, which has the same arguments, and return the results."
    return run


check_blueprint = _runner(blueprint_checks)
check_host = _runner(host_checks)
check_policy = _runner(policy_checks)
check_reward = _runner(reward_checks)
check_schedule = _runner(schedule_checks)
check_sink = _runner(sink_checks)
check_task = _runner(task_checks)


def _name_of(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__name__", type(factory).__name__))


Target = str | ModuleType | Component | Sequence["str | ModuleType | Component"]
"""A plugin's id, ``plugin/component``, a package, a module with hooks, a component, or a sequence of these."""

Settings = Mapping[str, Any]
"""Settings of components, by short name or full id."""


def component_checks(component: Component, settings: Any = None) -> Iterator[Check]:
    """Yield the checks for a component of any kind, without those that cannot apply to it.

    ``settings`` are keyword arguments of the factory. Without them the checks run with the defaults; if the component
    requires settings, there is one check, which is skipped with the reason.
    """
    if isinstance(component.spec, BlueprintSpec):
        text = ",".join(f"{name}={value}" for name, value in (settings or {}).items())
        component = component.configured(text and f"{text})")

    def build(*arguments: Any, **options: Any) -> Any:
        return component.load()(*arguments, **options)

    name, spec = component.short, component.spec
    if isinstance(spec, BlueprintSpec):
        yield from blueprint_checks(build, spec, name=name)
        return
    if settings is None and _lacks_settings(component):
        yield Check(name, "has_its_settings", partial(has_its_settings, component))
        return
    makers: dict[str, Callable[..., Iterator[Check]]] = {
        "host": partial(host_checks, spec=cast("HostSpec", spec)),
        "policy": policy_checks,
        "reward": reward_checks,
        "schedule": schedule_checks,
        "sink": sink_checks,
        "task": task_checks,
    }
    yield from makers[component.kind](build, settings=settings, name=name)


def _lacks_settings(component: Component) -> bool:
    """Return whether the component requires settings; also if its model cannot be loaded, which the check reports."""
    try:
        has_its_settings(component)
    except Exception:  # importing a plugin raises anything
        return True
    return False


def has_its_settings(component: Component) -> None:
    """Raise NotApplicable if the component has required settings, since nobody passed them."""
    model, name = component.settings_model(), component.short
    needed = [key for key, field in model.model_fields.items() if field.is_required()] if model else []
    if needed:
        reason = f'it requires settings ({", ".join(needed)}): pass them in Python, settings={{"{name}": …}}'
        raise NotApplicable(reason)


def plugin_checks(plugin: Target, settings: Settings | None = None) -> list[Check]:
    """Return the checks for every component of a plugin, which is given by its id, its package or a module with hooks.

    ``settings`` are by component.

    Raises:
        ConfigError: there is no such plugin.
        PluginError: the plugin cannot be loaded.
    """
    components = components_of(plugin)
    chosen = dict(settings or {})
    names = {name for component in components for name in (component.id, component.short)}
    if unknown := sorted(set(chosen) - names):
        msg = f"settings must be keyed by component: {', '.join(sorted(names))}. Received: {', '.join(unknown)}"
        raise ValueError(msg)
    return [
        check
        for component in components
        for check in component_checks(component, chosen.get(component.id, chosen.get(component.short)))
    ]


check_component = _runner(component_checks)
check_plugin = _runner(plugin_checks)


def components_of(target: Target, local: Sequence[Path] = ()) -> tuple[Component, ...]:
    """Return the components of a plugin, a package, a module with hooks, or of several of these.

    ``local`` are files of one-file plugins to load as well.
    """
    if isinstance(target, Component):
        return (target,)
    if isinstance(target, str):
        return _of_name(target, load_plugins(local=local))
    if not isinstance(target, ModuleType):
        return tuple(component for member in target for component in components_of(member, local))
    if not any(name.startswith("esper_") and callable(value) for name, value in vars(target).items()):
        return _of_name(target.__name__, load_plugins())
    plugins = load_plugins(distributions=[fake_plugin(target)], safe_mode=False)
    _require_active(plugins, [record.id for record in plugins.records])
    return plugins.registry.components()


def _of_name(name: str, plugins: Plugins) -> tuple[Component, ...]:
    """Return the components of a plugin or package, or the one named ``plugin/component``."""
    plugin, _, short = name.partition("/")
    package = canonicalize_name(plugin)
    ids = [record.id for record in plugins.records if record.id == plugin] or [
        record.id
        for record in plugins.records
        if package in (canonicalize_name(record.package), canonicalize_name(re.split("[:.]", record.origin)[0]))
    ]
    if not ids and (
        unfit := [replace(problem, path=None, hint=None) for problem in plugins.problems if problem.code == "E227"]
    ):
        raise ConfigError(unfit)
    if not ids:
        similar = suggestion(plugin, [record.id for record in plugins.records])
        hint = f"{similar}\nA package is found once it is installed, from its folder:  pip install --editable ."
        raise ConfigError(Problem("E208", f'unknown plugin "{plugin}"', hint=hint))
    _require_active(plugins, ids)
    own_records = [record for record in plugins.records if record.id in ids]
    if unmarked := [problem for record in own_records for problem in record.problems if problem.code == "E222"]:
        raise PluginError(unmarked)
    components = tuple(component for component in plugins.registry.components() if component.plugin in ids)
    if short and short not in (available := [component.short for component in components]):
        hint = suggestion(short, available)
        raise ConfigError(Problem("E200", f'unknown component "{short}" in plugin "{plugin}"', hint=hint))
    return tuple(component for component in components if short in ("", component.short))


def _require_active(plugins: Plugins, ids: Sequence[str]) -> None:
    inactive = [record for record in plugins.records if record.id in ids and record.status != "active"]
    problems = [problem for record in inactive for problem in record.problems]
    if inactive and not problems:
        names = ", ".join(f"{record.id} is {record.status}" for record in inactive)
        hint = "esper plugins list  shows the reason (pip install esper-run)."
        problems = [Problem("E208", f"not active: {names}", hint=hint)]
    if problems:
        raise PluginError(problems)
