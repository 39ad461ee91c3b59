"""Hook specifications: every hook that a plugin can implement. The docstrings are the reference manual.

    About the plugin        esper_plugin_info()                        -> PluginInfo
                            esper_settings_model()                     -> type[BaseModel]
    Components              esper_register_blueprints(registry)
                            esper_register_hosts(registry)
                            esper_register_tasks(registry)
                            esper_register_policies(registry)
                            esper_register_rewards(registry)
                            esper_register_schedules(registry)
                            esper_register_sinks(registry)
                            esper_component_missing(kind, name)        -> str | None
    Observing a run         esper_configured(config)
                            esper_run_started(run)
                            esper_step_finished(events)
                            esper_stage_changed(event)
                            esper_governor_acted(event)
                            esper_update_finished(event)
                            esper_run_finished(run, outcome)
    Taking part in a run    esper_check_health(snapshot)               -> Verdict | None
                            esper_run(context)                         wrapper
                            esper_report_sections(run)                 -> Sequence[ReportSection] | None

A plugin is a module or an object with functions that have these names and ``@esper_core.hookimpl`` above them. A
package declares it as an entry point in the group ``esper.plugins``; the name of the entry point is the plugin's id.

* Arguments are passed by name, and an implementation may leave out those that it does not need. New Esper versions
  may add arguments, and never remove one.
* All arguments are frozen. No hook is called during a forward pass.
* Plugins are called one after the other. An exception is attributed to its plugin's package, with the author's line.
* After an observer has raised, the observers of its plugin are not called again in that run; the run and the other
  plugins go on.
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
    """Describe the plugin.

    When: once, right after the plugin was imported. A plugin without this hook has API level 1.
    Returns: PluginInfo, with the API level that the plugin was written for.
    Errors: a plugin that raises, or returns another type, is broken and not loaded. One whose API level this
    esper-core does not support is rejected.

    Example::

        @hookimpl
        def esper_plugin_info():
            return PluginInfo(api=1, summary="Convolutions for small images.")
    """


@hookspec
def esper_settings_model() -> type[BaseModel]:  # type: ignore[empty-body]
    """Declare the settings of the plugin itself, which a configuration gives as ``plugins.settings: {PLUGIN-ID: {…}}``.

    When: once, while plugins are loaded. The validated instance is passed to ``esper_configured``.
    Returns: a class that derives from pydantic.BaseModel and is valid with its defaults alone. It becomes part of
    ``esper schema``.
    Errors: a plugin that raises, or returns something else, is broken and not loaded. Values that the model refuses
    are reported with their place in the file, before anything runs.

    Example::

        class Settings(BaseModel):
            folder: str = "traces"
        @hookimpl
        def esper_settings_model():
            return Settings
    """


@hookspec
def esper_register_blueprints(registry: Registrar[BlueprintSpec]) -> None:
    """Add blueprints: modules that seeds are grown from.

    When: once, after all plugins were imported. A target that is text, "module:attribute", is imported when a run
    first uses it, and is called as ``target(site)``.
    Returns: nothing.
    Errors: an invalid name, site kind, formula or target raises PluginError from ``registry.add``, and the plugin is
    broken, with the line that added it.

    Example::

        @hookimpl
        def esper_register_blueprints(registry):
            registry.add("tiny-conv", "my_package.blocks:TinyConv", BlueprintSpec(accepts="image", params="9*c*c"))
    """


@hookspec
def esper_register_hosts(registry: Registrar[HostSpec]) -> None:
    """Add hosts: networks with slots to grow in.

    When: as for blueprints. The target is called as ``target(shape, **settings)``.
    Returns: nothing.
    Errors: as for blueprints.

    Example::

        @hookimpl
        def esper_register_hosts(registry):
            registry.add("small-cnn", "my_package.hosts:SmallCNN", HostSpec(slots={"early": SlotPlace("stem")}))
    """


@hookspec
def esper_register_tasks(registry: Registrar[TaskSpec]) -> None:
    """Add tasks: data, loss and metric.

    When: as for blueprints. The target is called as ``target(**settings)``.
    Returns: nothing.
    Errors: as for blueprints.

    Example::

        @hookimpl
        def esper_register_tasks(registry):
            registry.add("my-images", "my_package.data:MyImages", TaskSpec("Images of mine."))
    """


@hookspec
def esper_register_policies(registry: Registrar[PolicySpec]) -> None:
    """Add policies: they choose the actions of an arm.

    When: as for blueprints. The target is called as ``target(space, **settings)``.
    Returns: nothing.
    Errors: as for blueprints.

    Example::

        @hookimpl
        def esper_register_policies(registry):
            registry.add("greedy", "my_package.policies:Greedy", PolicySpec("Always the largest gain."))
    """


@hookspec
def esper_register_rewards(registry: Registrar[RewardSpec]) -> None:
    """Add rewards: they score each step for policies that learn.

    When: as for blueprints. The target is called as ``target(metric=metric, **settings)``.
    Returns: nothing.
    Errors: as for blueprints.

    Example::

        @hookimpl
        def esper_register_rewards(registry):
            registry.add("frugal", "my_package.rewards:Frugal", RewardSpec("Accuracy, less a price for parameters."))
    """


@hookspec
def esper_register_schedules(registry: Registrar[ScheduleSpec]) -> None:
    """Add learning rate schedules.

    When: as for blueprints. The target is called as ``target(**settings)``.
    Returns: nothing.
    Errors: as for blueprints.

    Example::

        @hookimpl
        def esper_register_schedules(registry):
            registry.add("triangle", "my_package.schedules:Triangle", ScheduleSpec("Up, then down."))
    """


@hookspec
def esper_register_sinks(registry: Registrar[SinkSpec]) -> None:
    """Add sinks: they take the events of a run elsewhere.

    When: as for blueprints. The target is called as ``target(run, **settings)`` with the path of the run directory.
    Returns: nothing.
    Errors: as for blueprints.

    Example::

        @hookimpl
        def esper_register_sinks(registry):
            registry.add("csv", "my_package.sinks:CsvSink", SinkSpec("One line for each step."))
    """


@hookspec(firstresult=True)
def esper_component_missing(kind: ComponentKind, name: str) -> str | None:
    """Explain a name that no plugin provides: what it is called now, or which package has it.

    When: a configuration or a command names a component, or a pattern, that does not exist.
    Returns: one line for the error message, or None; the first line of any plugin is used. The name stays unknown.
    Errors: an exception is shown in that message, with the package; a value that is not text counts as None.

    Example::

        @hookimpl
        def esper_component_missing(kind, name):
            return "conv_old is called conv_light since 0.2." if name == "conv_old" else None
    """


@hookspec
def esper_configured(config: PluginConfig) -> None:
    """Receive the configuration of a run and the plugin's own settings.

    When: once, after the configuration was checked and the run directory created, before ``esper_run_started``.
    Returns: nothing.
    Errors: as for every observer: the plugin's observers are not called again in this run, after one warning (E228).

    Example::

        @hookimpl
        def esper_configured(config):
            tracer.open(config.settings.folder)
    """


@hookspec
def esper_run_started(run: RunInfo) -> None:
    """Observe the beginning of a run.

    When: once, before the first episode.
    Returns: nothing.
    Errors: as for ``esper_configured``.

    Example::

        @hookimpl
        def esper_run_started(run):
            print(run.id, run.device)
    """


@hookspec
def esper_run_finished(run: RunInfo, outcome: RunOutcome) -> None:
    """Observe the end of a run.

    When: once, however the run ended, after all its files were written.
    Returns: nothing.
    Errors: as for ``esper_configured``.

    Example::

        @hookimpl
        def esper_run_finished(run, outcome):
            notify(f"{run.id}: {outcome.status} {outcome.reason}")
    """


@hookspec
def esper_stage_changed(event: StageChanged) -> None:
    """Observe a seed that moves from one lifecycle stage to the next.

    When: at the end of the step in which it moved, and at the end of the episode.
    Returns: nothing.
    Errors: as for ``esper_configured``.

    Example::

        @hookimpl
        def esper_stage_changed(event):
            print(event.slot, event.blueprint, event.was, "->", event.now)
    """


@hookspec
def esper_step_finished(events: tuple[StepFinished, ...]) -> None:
    """Observe a step: what every environment of every arm measured and which action was chosen.

    When: after each step, once for all environments, when their events are in events.jsonl.
    Returns: nothing.
    Errors: as for ``esper_configured``. The run waits for this hook: keep it short, or use a sink.

    Example::

        @hookimpl
        def esper_step_finished(events):
            print(max(event.signals.train_loss for event in events))
    """


@hookspec
def esper_update_finished(event: UpdateFinished) -> None:
    """Observe a policy that has learnt from the episodes of a round.

    When: after each round, once for each arm whose policy is a ``Learner``.
    Returns: nothing.
    Errors: as for ``esper_configured``.

    Example::

        @hookimpl
        def esper_update_finished(event):
            print(event.arm, dict(event.figures))
    """


@hookspec
def esper_governor_acted(event: GovernorActed) -> None:
    """Observe the governor: a warning, an early stop of an episode, a rollback, or the stop of the run.

    When: after the step in which it acted; before the run stops.
    Returns: nothing.
    Errors: as for ``esper_configured``.

    Example::

        @hookimpl
        def esper_governor_acted(event):
            print(event.arm, event.seed, event.act, event.reason)
    """


@hookspec
def esper_check_health(snapshot: HealthSnapshot) -> Verdict | None:
    """Judge the health of one environment, in addition to the governor: a plugin can raise an alarm, not cancel one.

    When: after each step, for each environment.
    Returns: a Verdict, or None for no opinion; the most severe of all counts. PANIC rolls the environment back, or
    stops the run where that is impossible; ENOUGH ends the environment's episode.
    Errors: an exception (E231), or another type (E229), stops the run with the package named: a health check that
    fails must not go unnoticed.

    Example::

        @hookimpl
        def esper_check_health(snapshot):
            return Verdict(Level.PANIC, "loss above 100") if snapshot.signals.train_loss > 100 else None
    """


@hookspec
def esper_report_sections(run: RunInfo) -> Sequence[ReportSection] | None:
    """Add sections to the report of a run.

    When: once, after a run that ended well, when its events are written. Read them in ``run.path``.
    Returns: the sections in order, or None. They are printed at the end of ``esper run``, kept in summary.json, and
    shown in the report between "Governor and lost seeds" and "Provenance".
    Errors: an exception, or another type, is reported once with the package; the report does without these sections.

    Example::

        @hookimpl
        def esper_report_sections(run):
            return [ReportSection("Energy", "12.5 Wh")]
    """


@hookspec(firstresult=True)
def esper_run(context: RunContext) -> object:
    """Wrap the training of a run: time it, profile it, or hold a device.

    When: once, after ``esper_run_started``. Mark it with ``@hookimpl(wrapper=True)``; the run is trained at its one
    ``yield``.
    Returns: what the ``yield`` gave. The results of the run do not depend on it.
    Errors: an exception before the ``yield`` stops the run with the package named (E231); one after it is reported
    (E228), and the results stay. A failure of the run itself is raised at the ``yield`` and cannot be suppressed. A
    function without a ``yield`` is refused when the plugin is loaded.

    Example::

        @hookimpl(wrapper=True)
        def esper_run(context):
            with profiler(context.run.path / "profile.json"):
                return (yield)
    """
