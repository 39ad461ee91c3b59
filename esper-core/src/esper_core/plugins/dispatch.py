"""How is a hook called so that each plugin answers for itself? One plugin at a time, by name.

Who among the plugins is told what happens in a run? Every observer, each by itself, until it raises.

Nothing is caught for good: what a plugin raises is told once, with its package and line, in the log and on stderr.

What do plugins say of an environment's health? The most severe verdict, with the name of who gave it.

What do plugins add to the report of a run? Sections of their own, each under the plugin's name.

What do plugins put around a run? Timers, profilers, locks: never anything in its place.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, TypeVar

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.events import GovernorActed, StageChanged, StepFinished, UpdateFinished
from esper_core.leyline.protocols import PluginConfig, ReportSection, frozen
from esper_core.leyline.signals import Level, Verdict, most_severe
from esper_core.plugins.isolation import (
    Label,
    answerable,
    attempt,
    blame,
    callers,
    contained,
    fault_in,
    is_ctrl_c,
    place_of,
    root_of,
    summary_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from esper_core.leyline.events import Event
    from esper_core.leyline.protocols import RunContext, RunInfo, RunOutcome
    from esper_core.leyline.signals import HealthSnapshot
    from esper_core.plugins.loader import Plugins


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


HEALTH_HOOK = "esper_check_health"


def health_check(plugins: Plugins) -> Callable[[HealthSnapshot], Verdict]:
    """Asks every plugin that looks after health. PluginError where one raises, or gives something else."""
    calls = callers(plugins.manager, HEALTH_HOOK)
    sources = {
        record.id: Label(
            f'plugin "{record.id}" ({record.source})', f"{module_of(plugins, record.id, HEALTH_HOOK)}:{HEALTH_HOOK}"
        )
        for record in plugins.records
        if record.id in calls
    }

    def check(snapshot: HealthSnapshot) -> Verdict:
        verdicts = []
        for plugin, call in calls.items():
            with answerable(sources[plugin], f"in {HEALTH_HOOK}"):
                given = call(snapshot=snapshot)
            verdicts += [_signed(plugins, plugin, sources[plugin], verdict) for verdict in given]
        return most_severe(verdicts)

    return check


def _signed(plugins: Plugins, plugin: str, source: str, given: object) -> Verdict:
    if isinstance(given, Verdict) and isinstance(given.level, Level):
        return replace(given, reason=f"{given.reason or 'no reason was given'}, says {source}")
    file, line = place_of(getattr(plugins.manager.get_plugin(plugin), HEALTH_HOOK))
    received = f"level={given.level!r}" if isinstance(given, Verdict) else type(given).__name__
    package = source.partition("(")[2].rpartition(" ")[0]
    message = f"{source} gives no verdict: {HEALTH_HOOK} returned {received}"
    hint = f"It returns Verdict(Level.PANIC, reason), Verdict(Level.CALM), or None. {blame(package, plugin)}"
    raise PluginError(Problem("E229", message, file=file, line=line, hint=hint))


SECTIONS_HOOK = "esper_report_sections"


@dataclass(frozen=True, slots=True)
class OwnSection:
    """A section, and the plugin whose word it is."""

    plugin: str
    section: ReportSection

    def as_json(self) -> dict[str, str]:
        """The section as summary.json has it."""
        return {"plugin": self.plugin, "title": self.section.title, "text": self.section.text}


def collected_sections(plugins: Plugins, run: RunInfo) -> tuple[OwnSection, ...]:
    """The sections of every plugin, in the order in which the plugins were loaded; one that raises is told, once."""
    found: list[OwnSection] = []
    for plugin, call in callers(plugins.manager, SECTIONS_HOOK).items():
        with contained() as caught:
            found += [OwnSection(plugin, section) for section in _sections(call(run=run))]
        if caught.error is not None:
            warn_of(plugins, plugin, SECTIONS_HOOK, caught.error, "the report does without its sections")
    return tuple(found)


def _sections(given: list[Any]) -> list[ReportSection]:
    """What a plugin gave, TypeError or ValueError where it is something else. pluggy puts it into a list, without None.

    Plain copies: whatever the plugin does to its own later, the report stays as it was read.
    """
    return [_plain(section) for one in given for section in one]


def _plain(section: Any) -> ReportSection:
    if not isinstance(section, ReportSection):
        msg = f"a report is made of ReportSection(title, text). Received: {section!r}"
        raise TypeError(msg)
    for name, value in (("title", section.title), ("text", section.text)):
        if not isinstance(value, str):
            msg = f"the {name} of a ReportSection is a text. Received: {value!r}"
            raise TypeError(msg)
    if len(section.title.splitlines()) != 1:
        msg = f"the title of a ReportSection is one line. Received: {section.title!r}"
        raise ValueError(msg)
    return ReportSection(str(section.title), str(section.text))


T = TypeVar("T")

RUN_HOOK = "esper_run"


def surrounded(plugins: Plugins, context: RunContext, train: Callable[[], T]) -> T:
    """What ``train`` gives, or raises, whatever the plugins around it make of that.

    PluginError where one of them raises before the training began; what one raises after it is told, no more.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def esper_run(context: RunContext) -> object:
        try:
            results.append(train())
        except BaseException as error:
            failures.append(error)
            raise
        return results

    try:
        plugins.manager.hook.esper_run.call_extra([esper_run], {"context": context})
    except BaseException as error:  # a CancelledError, or a KeyboardInterrupt of its own, is a fault like any other
        if is_ctrl_c(error):
            raise
        if not results and not failures:
            raise _at_fault(plugins, error) from error
        if error not in failures:
            _tell(plugins, error)
    if failures:
        raise failures[0]
    return results[0]


def _at_fault(plugins: Plugins, error: BaseException) -> PluginError:
    plugin = _culprit(plugins, error)
    fault = fault_in(error, module_of(plugins, plugin, RUN_HOOK))
    record = next(record for record in plugins.records if record.id == plugin)
    message = f'plugin "{plugin}" ({record.source}) raised before the run began, in {RUN_HOOK}: {summary_of(error)}'
    hint = blame(record.package, plugin)
    return PluginError(Problem("E231", message, file=fault.file, line=fault.line, hint=hint))


def _tell(plugins: Plugins, error: BaseException) -> None:
    warn_of(plugins, _culprit(plugins, error), RUN_HOOK, error, "the run was over by then, and its results stand")


def _culprit(plugins: Plugins, error: BaseException) -> str:
    """The plugin that the error came from: on its way out it passes through those around it, too."""
    around = list(callers(plugins.manager, RUN_HOOK))
    owners = {module_of(plugins, name, RUN_HOOK): name for name in around}
    passed = (root_of(str(frame.f_globals.get("__name__", ""))) for frame, _ in walk_tb(error.__traceback__))
    return [around[-1], *(owners[module] for module in passed if module in owners)][-1]
