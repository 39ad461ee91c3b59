"""What do plugins say of an environment's health? The most severe verdict, with the name of who gave it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from esper_core.app.observing import module_of
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.signals import Level, Verdict, most_severe
from esper_core.plugins.calling import callers
from esper_core.plugins.faults import Label, place_of
from esper_core.plugins.loading import blame
from esper_core.trainer.answerable import answerable

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core.leyline.signals import HealthSnapshot
    from esper_core.plugins import Plugins

HOOK = "esper_check_health"


def health_check(plugins: Plugins) -> Callable[[HealthSnapshot], Verdict]:
    """Asks every plugin that looks after health. PluginError where one raises, or gives something else."""
    calls = callers(plugins.manager, HOOK)
    sources = {
        record.id: Label(f'plugin "{record.id}" ({record.source})', f"{module_of(plugins, record.id, HOOK)}:{HOOK}")
        for record in plugins.records
        if record.id in calls
    }

    def check(snapshot: HealthSnapshot) -> Verdict:
        verdicts = []
        for plugin, call in calls.items():
            with answerable(sources[plugin], f"in {HOOK}"):
                given = call(snapshot=snapshot)
            verdicts += [_signed(plugins, plugin, sources[plugin], verdict) for verdict in given]
        return most_severe(verdicts)

    return check


def _signed(plugins: Plugins, plugin: str, source: str, given: object) -> Verdict:
    if isinstance(given, Verdict) and isinstance(given.level, Level):
        return replace(given, reason=f"{given.reason or 'no reason was given'}, says {source}")
    file, line = place_of(getattr(plugins.manager.get_plugin(plugin), HOOK))
    received = f"level={given.level!r}" if isinstance(given, Verdict) else type(given).__name__
    package = source.partition("(")[2].rpartition(" ")[0]
    message = f"{source} gives no verdict: {HOOK} returned {received}"
    hint = f"It returns Verdict(Level.PANIC, reason), Verdict(Level.CALM), or None. {blame(package, plugin)}"
    raise PluginError(Problem("E229", message, file=file, line=line, hint=hint))
