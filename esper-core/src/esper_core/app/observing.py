"""Who among the plugins is told what happens in a run? Every observer, each by itself, until it raises.

Nothing is caught for good: what a plugin raises is told once, with its package and line, in the log and on stderr.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import Problem
from esper_core.leyline.events import GovernorActed, StageChanged, StepFinished, UpdateFinished
from esper_core.leyline.protocols import PluginConfig, frozen
from esper_core.plugins.calling import callers
from esper_core.plugins.faults import attempt, fault_in, root_of
from esper_core.plugins.loading import blame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from esper_core.leyline.events import Event
    from esper_core.leyline.protocols import RunInfo, RunOutcome
    from esper_core.plugins import Plugins

log = logging.getLogger("esper")

OBSERVERS: Final = (
    "esper_configured",
    "esper_run_started",
    "esper_run_finished",
    "esper_stage_changed",
    "esper_step_finished",
    "esper_update_finished",
    "esper_governor_acted",
)


class Observers:
    """Calls the observers of the active plugins. As a listener it hears the events that some of them are told of."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._callers = {hook: callers(plugins.manager, hook) for hook in OBSERVERS}
        self._steps: list[StepFinished] = []

    def configured(self, settings: Mapping[str, Any], values: Callable[[], Any]) -> None:
        """Each plugin is told its own ``settings`` and what the whole configuration says."""
        calls = self._callers["esper_configured"]
        said = frozen(values()) if calls else {}
        for plugin in list(calls):
            self._tell(plugin, "esper_configured", config=PluginConfig(settings.get(plugin), said))

    def run_started(self, run: RunInfo) -> None:
        """A run begins."""
        self._tell_all("esper_run_started", run=run)

    def run_finished(self, run: RunInfo, outcome: RunOutcome) -> None:
        """A run is over, and everything is written."""
        self._tell_all("esper_run_finished", run=run, outcome=outcome)

    def hear(self, event: Event) -> None:
        """Pass on what is told at once; the steps of all environments wait for each other."""
        if isinstance(event, StepFinished):
            self._steps.append(event)
        elif isinstance(event, StageChanged):
            self._tell_all("esper_stage_changed", event=event)
        elif isinstance(event, UpdateFinished):
            self._tell_all("esper_update_finished", event=event)
        elif isinstance(event, GovernorActed):
            self._tell_all("esper_governor_acted", event=event)

    def settle(self) -> None:
        """A step is over: its events go out together."""
        events, self._steps = tuple(self._steps), []
        if events:
            self._tell_all("esper_step_finished", events=events)

    def _tell_all(self, hook: str, **arguments: Any) -> None:
        for plugin in list(self._callers[hook]):
            self._tell(plugin, hook, **arguments)

    def _tell(self, plugin: str, hook: str, **arguments: Any) -> None:
        tried = attempt(lambda: self._callers[hook][plugin](**arguments))
        if tried.error is not None:
            for calls in self._callers.values():
                calls.pop(plugin, None)
            warn_of(self._plugins, plugin, hook, tried.error, "it is told no more of this run")


def warn_of(plugins: Plugins, plugin: str, hook: str, error: BaseException, consequence: str) -> None:
    """Says, once and in the log too, that a plugin raised and what becomes of it."""
    record = next(record for record in plugins.records if record.id == plugin)
    fault = fault_in(error, module_of(plugins, plugin, hook))
    log.warning(
        "%s",
        Problem(
            "E228",
            f'plugin "{plugin}" ({record.source}) failed in {hook}: {fault.summary}; {consequence}',
            file=fault.file,
            line=fault.line,
            hint=blame(record.package, plugin),
        ),
    )


def module_of(plugins: Plugins, plugin: str, hook: str) -> str:
    """The top package that a plugin's hook is written in."""
    function = getattr(plugins.manager.get_plugin(plugin), hook)
    return root_of(str(getattr(function, "__module__", "")))
