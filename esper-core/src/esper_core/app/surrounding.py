"""What do plugins put around a run? Timers, profilers, locks: never anything in its place."""

from __future__ import annotations

from traceback import walk_tb
from typing import TYPE_CHECKING, TypeVar

from esper_core.app.observing import module_of, warn_of
from esper_core.leyline.errors import PluginError, Problem
from esper_core.plugins.calling import callers
from esper_core.plugins.faults import fault_in, is_ctrl_c, root_of, summary_of
from esper_core.plugins.loading import blame

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core.leyline.protocols import RunContext
    from esper_core.plugins import Plugins

T = TypeVar("T")

HOOK = "esper_run"


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
    fault = fault_in(error, module_of(plugins, plugin, HOOK))
    record = next(record for record in plugins.records if record.id == plugin)
    message = f'plugin "{plugin}" ({record.source}) raised before the run began, in {HOOK}: {summary_of(error)}'
    hint = blame(record.package, plugin)
    return PluginError(Problem("E231", message, file=fault.file, line=fault.line, hint=hint))


def _tell(plugins: Plugins, error: BaseException) -> None:
    warn_of(plugins, _culprit(plugins, error), HOOK, error, "the run was over by then, and its results stand")


def _culprit(plugins: Plugins, error: BaseException) -> str:
    """The plugin that the error came from: on its way out it passes through those around it, too."""
    around = list(callers(plugins.manager, HOOK))
    owners = {module_of(plugins, name, HOOK): name for name in around}
    passed = (root_of(str(frame.f_globals.get("__name__", ""))) for frame, _ in walk_tb(error.__traceback__))
    return [around[-1], *(owners[module] for module in passed if module in owners)][-1]
