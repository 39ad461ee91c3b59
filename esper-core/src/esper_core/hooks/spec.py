"""Which hooks are there? Their docstrings are the reference: when, what is returned, what goes wrong.

Only keyword arguments are ever added. What is passed is frozen. No hook is called inside a forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.hooks.markers import hookspec

if TYPE_CHECKING:
    from esper_core.leyline.protocols import Registrar
    from esper_core.leyline.specs import BlueprintSpec, HostSpec, PluginInfo, PolicySpec, RewardSpec, SinkSpec, TaskSpec


@hookspec
def esper_plugin_info() -> PluginInfo:  # type: ignore[empty-body]
    """Says what this plugin is.

    When: once, right after the plugin was imported.
    Returns: PluginInfo, with the API level the plugin was written for.
    Errors: anything that is raised, or another type, makes the plugin a broken one; it is not loaded.
    """


@hookspec
def esper_register_blueprints(registry: Registrar[BlueprintSpec]) -> None:
    """Adds blueprints: ``registry.add(name, target, BlueprintSpec(...))``.

    When: once, after all plugins were imported. The target may be "module:attribute", imported when first used.
    Returns: nothing.
    Errors: a bad name, an unknown site kind, a formula that does not evaluate or a target that cannot be called
    is refused at once, and the plugin becomes a broken one.
    """


@hookspec
def esper_register_hosts(registry: Registrar[HostSpec]) -> None:
    """Adds hosts: ``registry.add(name, target, HostSpec(...))``; the target is called ``target(shape, **settings)``.

    When: as for blueprints.
    Returns: nothing.
    Errors: as for blueprints.
    """


@hookspec
def esper_register_tasks(registry: Registrar[TaskSpec]) -> None:
    """Adds tasks: ``registry.add(name, target, TaskSpec(...))``; the target is called ``target(**settings)``.

    When: as for blueprints.
    Returns: nothing.
    Errors: as for blueprints.
    """


@hookspec
def esper_register_policies(registry: Registrar[PolicySpec]) -> None:
    """Adds policies: ``registry.add(name, target, PolicySpec(...))``; called ``target(space, **settings)``.

    When: as for blueprints.
    Returns: nothing.
    Errors: as for blueprints.
    """


@hookspec
def esper_register_rewards(registry: Registrar[RewardSpec]) -> None:
    """Adds rewards: ``registry.add(name, target, RewardSpec(...))``; called ``target(metric=metric, **settings)``.

    When: as for blueprints.
    Returns: nothing.
    Errors: as for blueprints.
    """


@hookspec
def esper_register_sinks(registry: Registrar[SinkSpec]) -> None:
    """Adds sinks: ``registry.add(name, target, SinkSpec(...))``; the target is called ``target(run, **settings)``.

    When: as for blueprints.
    Returns: nothing.
    Errors: as for blueprints.
    """
