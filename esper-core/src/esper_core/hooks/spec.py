"""Hook specifications: every hook that a plugin can implement. The docstrings are the reference manual.

A plugin is a module or an object with functions that have these names and ``@esper_core.hookimpl`` above them. A
package declares it as an entry point in the group ``esper.plugins``; the name of the entry point is the plugin's id.

* Arguments are frozen and passed by name; leave out those that you do not need. New versions of Esper may add
  arguments, and never remove one.
* Plugins are called one after the other, never during a forward pass. Exceptions are reported with package and line.
* A plugin whose registration hook raises, or returns something else than stated here, is broken and not loaded.
* Registration hooks, ``esper_register_…``, are called once, after all plugins were imported, and return nothing.
  The target of ``registry.add(name, target, spec)`` builds the component, or is the text "module:attribute", which is
  imported when a run first uses it. PluginError is raised for an invalid name, target or spec.
* Observers, from ``esper_configured`` to ``esper_governor_acted``, return nothing. If one raises, this is
  reported once (E228), and the plugin's observers are not called again in that run. The run waits for observers: keep
  them short, or use a sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from esper_core.leyline.events import GovernorActed, StageChanged, StepFinished, UpdateFinished
    from esper_core.leyline.protocols import PluginConfig, Registrar, RunInfo, RunOutcome
    from esper_core.leyline.signals import HealthSnapshot, Verdict
    from esper_core.leyline.specs import (
        BlueprintSpec,
        HostSpec,
        PolicySpec,
        RewardSpec,
        ScheduleSpec,
        SinkSpec,
        TaskSpec,
    )


PROJECT: Final = "esper"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator: the function implements the hook of the same name. Functions without it are not called."""


@hookspec
def esper_register_blueprints(registry: Registrar[BlueprintSpec]) -> None:
    """Add blueprints, the modules that seeds are grown from. Their targets are called as ``target(site)``.

    @hookimpl
    def esper_register_blueprints(registry):
        registry.add("tiny-conv", "my_package.blocks:TinyConv", BlueprintSpec("image"))
    """


@hookspec
def esper_register_hosts(registry: Registrar[HostSpec]) -> None:
    """Add hosts, the networks with slots to grow in. Their targets are called as ``target(shape, **settings)``.

    @hookimpl
    def esper_register_hosts(registry):
        registry.add("small-cnn", "my_package.hosts:SmallCNN", HostSpec(slots={"early": SlotPlace("stem")}))
    """


@hookspec
def esper_register_tasks(registry: Registrar[TaskSpec]) -> None:
    """Add tasks: data, loss and metric. Their targets are called as ``target(**settings)``."""


@hookspec
def esper_register_policies(registry: Registrar[PolicySpec]) -> None:
    """Add policies, which choose the actions of an arm. Their targets are called as ``target(space, **settings)``."""


@hookspec
def esper_register_rewards(registry: Registrar[RewardSpec]) -> None:
    """Add rewards, which score each step. Their targets are called as ``target(metric=metric, **settings)``."""


@hookspec
def esper_register_schedules(registry: Registrar[ScheduleSpec]) -> None:
    """Add learning-rate schedules. Their targets are called as ``target(**settings)``."""


@hookspec
def esper_register_sinks(registry: Registrar[SinkSpec]) -> None:
    """Add sinks, which write the events of a run elsewhere.

    Their targets are called as ``target(run, **settings)`` with the path of the run directory.
    """


@hookspec
def esper_configured(config: PluginConfig) -> None:
    """Receive the configuration of a run.

    Called once, after the configuration was checked and the run directory was created.
    """


@hookspec
def esper_run_started(run: RunInfo) -> None:
    """Observe the beginning of a run, before its first episode."""


@hookspec
def esper_run_finished(run: RunInfo, outcome: RunOutcome) -> None:
    """Observe the end of a run, however it ended, after all its files were written.

    @hookimpl
    def esper_run_finished(run, outcome):
        notify(f"{run.id}: {outcome.status} {outcome.reason}")
    """


@hookspec
def esper_stage_changed(event: StageChanged) -> None:
    """Observe a seed that moves from one lifecycle stage to the next, at the end of its step or episode."""


@hookspec
def esper_step_finished(events: tuple[StepFinished, ...]) -> None:
    """Observe a step: what every environment of every arm measured, and which action was chosen.

    Called after each step, once for all environments, when their events are in events.jsonl.

        @hookimpl
        def esper_step_finished(events):
            print(max(event.signals.train_loss for event in events))
    """


@hookspec
def esper_update_finished(event: UpdateFinished) -> None:
    """Observe a policy that has learnt from the episodes of a round; only policies that are a ``Learner`` do."""


@hookspec
def esper_governor_acted(event: GovernorActed) -> None:
    """Observe a warning, early stop, rollback or stop of the governor, after the step in which it acted."""


@hookspec
def esper_check_health(snapshot: HealthSnapshot) -> Verdict | None:
    """Return a verdict on the health of one environment, in addition to the governor's; None for no opinion.

    Called after each step, for each environment. The most severe verdict counts: a plugin can raise an alarm, not
    cancel one. PANIC rolls the environment back, or stops the run where that is impossible; ENOUGH ends the
    environment's episode. An exception (E231), or a value of another type (E229), stops the run.

        @hookimpl
        def esper_check_health(snapshot):
            return Verdict(Level.PANIC, "loss above 100") if snapshot.signals.train_loss > 100 else None
    """
