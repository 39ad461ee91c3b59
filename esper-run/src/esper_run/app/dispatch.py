"""Dispatch: call the hooks of a run: observers, health checks, report sections and ``esper_run``.

Each plugin is called on its own, so that what it raises is attributed to it and the others are still called. A fault of
an observer or of a report section is reported once (E228) and the run goes on; a fault of a health check, or of
``esper_run`` before the run began, stops it (E229, E231).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, TypeVar

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.events import Event, GovernorActed, StageChanged, StepFinished, UpdateFinished
from esper_core.leyline.protocols import PluginConfig, ReportSection, frozen
from esper_core.leyline.signals import Level, Verdict, most_severe
from esper_core.plugins import PluginHook, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.leyline.protocols import RunContext, RunInfo, RunOutcome
    from esper_core.leyline.signals import HealthSnapshot
    from esper_core.plugins import Plugins

T = TypeVar("T")

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


def _warn(hook: PluginHook, error: BaseException, consequence: str) -> None:
    """Report an error of a plugin in a hook that does not stop the run."""
    problem = hook.problem("E228", f"failed in {hook.hook}", error)
    log.warning("%s", replace(problem, message=f"{problem.message}; {consequence}"))


class Observers:
    """The observers of the active plugins; as a listener of the event bus it passes on the events that have a hook."""

    def __init__(self, plugins: Plugins) -> None:
        self._hooks = {hook: plugins.hooks(hook) for hook in OBSERVER_HOOKS}
        self._steps: list[StepFinished] = []

    def configured(self, settings: Mapping[str, Any], values: Any) -> None:
        """Call ``esper_configured`` with each plugin's own settings and the values of the whole configuration."""
        for plugin in list(self._hooks["esper_configured"]):
            self._call("esper_configured", plugin, config=PluginConfig(settings.get(plugin), frozen(values)))

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
        for plugin in list(self._hooks[hook]):
            self._call(hook, plugin, **arguments)

    def _call(self, hook: str, plugin: str, **arguments: Any) -> None:
        observer = self._hooks[hook][plugin]
        called = observer.attempt(lambda: observer.call(**arguments))
        if called.error is not None:
            _warn(observer, called.error, "its observers are not called again in this run")
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


@dataclass(frozen=True, slots=True)
class PluginSection:
    """A section of a run's report and the plugin that it comes from."""

    plugin: str
    section: ReportSection

    def as_json(self) -> dict[str, str]:
        """Return the section as summary.json holds it."""
        return {"plugin": self.plugin, "title": self.section.title, "text": self.section.text}


def collect_sections(plugins: Plugins, run: RunInfo) -> tuple[PluginSection, ...]:
    """Return the report sections of every plugin, in loading order; a plugin that fails is reported and left out."""
    sections: list[PluginSection] = []
    for plugin, hook in plugins.hooks("esper_report_sections").items():
        called = hook.attempt(partial(_sections_of, hook, run))
        if called.error is not None:
            _warn(hook, called.error, "the report does without its sections")
        sections += [PluginSection(plugin, section) for section in called.value or ()]
    return tuple(sections)


def _sections_of(hook: PluginHook, run: RunInfo) -> list[ReportSection]:
    return [_checked(section) for returned in hook.call(run=run) for section in returned]


def _checked(section: Any) -> ReportSection:
    is_section = isinstance(section, ReportSection) and isinstance(section.title, str) and isinstance(section.text, str)
    if is_section and len(section.title.splitlines()) == 1:
        return section  # type: ignore[no-any-return]
    msg = f"a report is made of ReportSection(title, text) with a title of one line. Received: {section!r}"
    raise TypeError(msg)


def run_wrapped(plugins: Plugins, context: RunContext, train: Callable[[], T]) -> T:
    """Call ``train`` inside the ``esper_run`` wrappers of all plugins; return what it returns, or raise what it raises.

    A wrapper that raises before the run begins stops it (E231); what one raises afterwards is reported.
    """
    results: list[T] = []
    failures: list[BaseException] = []
    wrappers = list(plugins.hooks("esper_run").values())
    outside = PluginHook.guard(wrappers)

    def esper_run(context: RunContext) -> object:
        outside.__exit__(None, None, None)
        try:
            results.append(train())
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            outside.__enter__()
        return results

    def call_wrappers() -> None:
        with outside:
            plugins.manager.hook.esper_run.call_extra([esper_run], {"context": context})

    error = attempt(call_wrappers).error  # a wrapper may raise CancelledError, too
    if error is not None and error not in failures:
        wrapper = _wrapper_at_fault(wrappers, error)
        if not results and not failures:
            problem = wrapper.problem("E231", "raised before the run began, in esper_run", error)
            raise PluginError(problem) from error
        _warn(wrapper, error, "the run had finished, and its results stand")
    if failures:
        raise failures[0]
    return results[0]


def _wrapper_at_fault(wrappers: Sequence[PluginHook], error: BaseException) -> PluginHook:
    """Return the wrapper whose frame is the innermost in the traceback; outer wrappers are in it, too."""
    owners = {_top_package(wrapper.label.target): wrapper for wrapper in wrappers}
    packages = [_top_package(str(frame.f_globals.get("__name__", ""))) for frame, _ in walk_tb(error.__traceback__)]
    return [*wrappers, *(owners[package] for package in packages if package in owners)][-1]


def _top_package(module: str) -> str:
    return module.replace(":", ".").partition(".")[0]
