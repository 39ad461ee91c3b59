"""Which hooks are there? Their docstrings are the reference: when, what is returned, what goes wrong.

Only keyword arguments are ever added. What is passed is frozen. No hook is called inside a forward pass.

An observer is told of what happened, one plugin after the other; one that raises is told no more in that run, after one
message that names its package, and neither the run nor the other observers notice.

What is collected comes from every plugin, one after the other; what one of them raises is told, and the rest stays.

How does a function become a hook of Esper?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from esper_core.leyline.events import GovernorActed, StageChanged, StepFinished, UpdateFinished
    from esper_core.leyline.protocols import PluginConfig, Registrar, ReportSection, RunContext, RunInfo, RunOutcome
    from esper_core.leyline.signals import HealthSnapshot, Verdict
    from esper_core.leyline.specs import (
        BlueprintSpec,
        ComponentKind,
        HostSpec,
        PluginInfo,
        PolicySpec,
        RewardSpec,
        ScheduleSpec,
        SinkSpec,
        TaskSpec,
    )


PROJECT: Final = "esper"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def esper_plugin_info() -> PluginInfo:  # type: ignore[empty-body]
    """Says what this plugin is.

    When: once, right after the plugin was imported.
    Returns: PluginInfo, with the API level the plugin was written for.
    Errors: anything that is raised, or another type, makes the plugin a broken one; it is not loaded.
    """


@hookspec
def esper_settings_model() -> type[BaseModel]:  # type: ignore[empty-body]
    """Names the pydantic model of this plugin's own settings: ``plugins.settings: {plugin-id: {...}}`` in the file.

    When: once, while plugins are loaded. The instance that the file makes of it comes with ``esper_configured``.
    Returns: a class that derives from pydantic.BaseModel; it is part of ``esper schema``. With its defaults alone it
    must be valid, or every file that runs beside the plugin has to have settings for it.
    Errors: anything that is raised, or another type, makes the plugin a broken one. What the model says against the
    file's settings is told with their place, before anything runs.
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
def esper_register_schedules(registry: Registrar[ScheduleSpec]) -> None:
    """Adds schedules of learning rates: ``registry.add(name, target, ScheduleSpec(...))``; ``target(**settings)``.

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


@hookspec(firstresult=True)
def esper_component_missing(kind: ComponentKind, name: str) -> str | None:
    """Says what is known of a name that no plugin answers to: where it went, what it is called now, how to get it.

    When: a configuration, or a command, names a component of a kind (or a pattern) that is not there.
    Returns: one line for the message, or None; the first plugin that has one is heard. The name stays unknown.
    Errors: what is raised is told in that message, with the package; another type than text counts as None.
    """


@hookspec
def esper_configured(config: PluginConfig) -> None:
    """Tells how a run is set up, with this plugin's settings.

    When: a run is about to begin, its configuration is checked and its directory is there; before esper_run_started.
    Returns: nothing.
    Errors: an observer: after one that raises this plugin's observers are told no more in that run.
    """


@hookspec
def esper_run_started(run: RunInfo) -> None:
    """Tells that a run begins.

    When: once, before the first episode.
    Returns: nothing.
    Errors: as for esper_configured.
    """


@hookspec
def esper_run_finished(run: RunInfo, outcome: RunOutcome) -> None:
    """Tells that a run is over, and how it ended.

    When: once, however the run ended, when everything is written: the run directory is whole.
    Returns: nothing.
    Errors: as for esper_configured; the message is the only trace, the run has ended.
    """


@hookspec
def esper_stage_changed(event: StageChanged) -> None:
    """Tells that a seed moved from one stage to another.

    When: at the end of the step in which it did, and at the end of the episode.
    Returns: nothing.
    Errors: as for esper_configured.
    """


@hookspec
def esper_step_finished(events: tuple[StepFinished, ...]) -> None:
    """Tells that a step is over, with what every environment of every arm measured and decided.

    When: after each step, once for all environments, when their events are safe in events.jsonl.
    Returns: nothing.
    Errors: as for esper_configured. The time that it takes is the run's: keep it short.
    """


@hookspec
def esper_update_finished(event: UpdateFinished) -> None:
    """Tells that a policy has learnt from the episodes of a round, and what it said of it.

    When: after each round, once for each arm whose policy learns (``Learner``).
    Returns: nothing.
    Errors: as for esper_configured.
    """


@hookspec
def esper_governor_acted(event: GovernorActed) -> None:
    """Tells that an environment was judged to be in trouble.

    When: after the step, whatever it did: a warning, an episode that ends early, a rollback; right before a stop.
    Returns: nothing.
    Errors: as for esper_configured.
    """


@hookspec
def esper_check_health(snapshot: HealthSnapshot) -> Verdict | None:
    """Gives a second opinion on one environment: a plugin can raise the alarm, and not call it off.

    When: after each step, for each environment, beside the core's own check.
    Returns: a Verdict, or None where there is nothing to say. The most severe of all counts. PANIC brings the
    environment back to a sane state, and stops the run where there is none; ENOUGH ends its episode.
    Errors: anything that is raised, or another type, stops the run with the package named: a guard that fell asleep
    is not one to go on without.
    """


@hookspec
def esper_report_sections(run: RunInfo) -> Sequence[ReportSection] | None:
    """Adds sections to the report of a run: figures and words of the plugin's own.

    When: once, when a run ended well and its events are written; ``run.path`` is its directory, to be read.
    Returns: sections, in order, or None. They are shown at the end of ``esper run`` and stand in summary.json; in the
    report they come after "Governor and lost seeds" and before "Provenance".
    Errors: what is raised, or another type, is told once with the package; the report does without these sections.
    """


@hookspec(firstresult=True)
def esper_run(context: RunContext) -> object:
    """Goes around the whole training of a run: to time it, profile it, or hold a device.

    When: once, after esper_run_started; ``@hookimpl(wrapper=True)`` with one ``yield``, at which the run is trained.
    Returns: what the ``yield`` gave; whatever is returned, the run's results are its own.
    Errors: what is raised before the ``yield`` stops the run with the package named; what is raised after it is told,
    and the results stay. How the run itself ended can be seen at the ``yield`` and not be changed. A function without
    a ``yield`` is refused when the plugin is loaded: nobody takes the place of the run.
    """
