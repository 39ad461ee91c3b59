"""Dispatch: call the hooks of a run: observers and health checks.

Each plugin is called on its own, so that what it raises is attributed to it and the others are still called. A fault of
an observer is reported once (E228) and the run goes on; a fault of a health check stops it (E229, E231).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.events import Event, GovernorActed, StageChanged, StepFinished, UpdateFinished
from esper_core.leyline.protocols import PluginConfig
from esper_core.leyline.signals import Level, Verdict, most_severe

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core.leyline.protocols import RunInfo, RunOutcome
    from esper_core.leyline.signals import HealthSnapshot
    from esper_core.plugins import PluginHook, Plugins

log = logging.getLogger("esper")

EVENT_HOOKS: Final[Mapping[type[Event], str]] = {
    StageChanged: "esper_stage_changed",
    UpdateFinished: "esper_update_finished",
    GovernorActed: "esper_governor_acted",
}
"""The events that are passed on as they are."""

OBSERVER_HOOKS: Final = (
    "esper_configured",
    "esper_run_started",
    "esper_run_finished",
    "esper_step_finished",
    *EVENT_HOOKS.values(),
)


def frozen(value: Any) -> Any:
    """Return a read-only copy of plain data: mapping views and tuples.

    >>> frozen({"slots": [1, 2]})["slots"]
    (1, 2)
    """
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(child) for key, child in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(child) for child in value)
    return value


class Observers:
    """The observers of the active plugins; as a listener of the event bus it passes on the events that have a hook."""

    def __init__(self, plugins: Plugins) -> None:
        self._hooks = {hook: plugins.hooks(hook) for hook in OBSERVER_HOOKS}
        self._steps: list[StepFinished] = []

    def configured(self, values: Mapping[str, Any]) -> None:
        """Call ``esper_configured`` with the values of the whole configuration."""
        self._call_all("esper_configured", config=PluginConfig(frozen(values)))

    def run_started(self, run: RunInfo) -> None:
        """Call ``esper_run_started``."""
        self._call_all("esper_run_started", run=run)

    def run_finished(self, run: RunInfo, outcome: RunOutcome) -> None:
        """Call ``esper_run_finished``."""
        self._call_all("esper_run_finished", run=run, outcome=outcome)

    def hear(self, event: Event) -> None:
        """Pass an event on; the steps of all environments are collected until ``settle``."""
        if isinstance(event, StepFinished):
            self._steps.append(event)
        elif (hook := EVENT_HOOKS.get(type(event))) is not None:
            self._call_all(hook, event=event)

    def settle(self) -> None:
        """Call ``esper_step_finished`` with the collected steps: every environment has finished."""
        events, self._steps = tuple(self._steps), []
        if events:
            self._call_all("esper_step_finished", events=events)

    def _call_all(self, hook: str, **arguments: Any) -> None:
        for plugin, observer in list(self._hooks[hook].items()):
            called = observer.attempt(partial(observer.call, **arguments))
            if called.error is not None:
                problem = observer.problem("E228", f"failed in {observer.hook}", called.error)
                message = f"{problem.message}; its observers are not called again in this run"
                log.warning("%s", replace(problem, message=message))
                for hooks in self._hooks.values():
                    hooks.pop(plugin, None)


def health_check(plugins: Plugins) -> Callable[[HealthSnapshot], Verdict]:
    """Return a function that calls the health checks of all plugins, and returns the most severe verdict."""
    hooks = plugins.hooks("esper_check_health").values()

    def check(snapshot: HealthSnapshot) -> Verdict:
        verdicts = []
        for hook in hooks:
            with hook.attributed():
                returned = hook.call(snapshot=snapshot)
            verdicts += [_signed(hook, verdict) for verdict in returned]
        return most_severe(verdicts)

    return check


def _signed(hook: PluginHook, returned: object) -> Verdict:
    """Return a plugin's verdict with the plugin named in its reason."""
    title = hook.record.title
    if isinstance(returned, Verdict) and isinstance(returned.level, Level):
        return replace(returned, reason=f"{returned.reason or 'no reason was given'}, reported by {title}")
    file, line = hook.definition
    message = f"{title} gives no verdict: {hook.hook} returned {returned!r}"
    hint = "Return Verdict(Level.PANIC, reason), Verdict(Level.CALM), or None."
    raise PluginError(Problem("E229", message, file=file, line=line, hint=hint))
