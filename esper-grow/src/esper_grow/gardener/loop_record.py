"""The run directory of a loop: manifest, settings, events, growth and results, as ``esper run`` writes them.

With it the report, the live view and ``esper runs`` show the user's own loop. It has one environment, whose arm is
named after the policy. There is no test split, so there is no test result.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.growth import Host
from esper_core.leyline.events import RunFinished, RunStarted
from esper_core.telemetry import EventFile
from esper_core.trainer import Ending
from esper_grow.gardener.validation import METRIC
from esper_run.config.yaml import dump
from esper_run.runs import RunDirectory
from esper_run.runs.directory import run_lock
from esper_run.runs.records import PYTHON
from esper_run.runs.statistics import results

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from torch import nn

    from esper_core.leyline.lifecycle import ActionSpace
    from esper_core.leyline.protocols import RunStatus
    from esper_core.plugins import Plugins
    from esper_core.settings import GovernorConfig, GrowthConfig
    from esper_grow.gardener.loop_environment import LoopEnvironment


class LoopRecord:
    """Writes the run directory of one loop; a listener of its events.

    Args:
        root: Where the run directory is made.
        name: Part of the directory's name; None: two random words.
        model: The grafted model.
        space: What may grow in it.
        settings: Those of the Gardener, as plain data.
        closing: Closes the files at the end.
    """

    def __init__(
        self,
        root: Path | str,
        name: str | None,
        model: nn.Module,
        space: ActionSpace,
        settings: dict[str, Any],
        plugins: Plugins,
        closing: ExitStack,
    ) -> None:
        self._directory = RunDirectory.create(Path.cwd() / root, name=name, argv=[PYTHON, *sys.argv])
        self.path = self._directory.path
        closing.enter_context(run_lock(self.path))
        text = dump(settings)
        active = [record for record in plugins.records if record.status == "active"]
        self._directory.begin(
            config=text,
            source=text.encode(),
            overrides=[],
            seeds={"first": settings["seed"], "count": 1},
            plugins=[{"id": plugin.id, "package": plugin.package, "version": plugin.version} for plugin in active],
        )
        self._events = EventFile(self.path / "events.jsonl")
        self.hear, self.settle = self._events.hear, self._events.settle
        closing.callback(self._events.close)
        started = RunStarted(
            run=self.path.name,
            arms=(settings["policy"],),
            rounds=1,
            environments=1,
            steps=settings["steps"],
            metric=METRIC,
            host=Host(model).layers,
            choices=dict(space.blueprints),
        )
        self._events.hear(started)
        self._events.settle()

    def finish(
        self, environment: LoopEnvironment, seconds: Mapping[str, float], concluded: str, error: BaseException | None
    ) -> None:
        """Record how the loop ended, with results if ``tend`` was called.

        ``seconds`` says where the time went, and ``concluded`` what the policy concludes.
        """
        status: RunStatus = "done" if error is None else "failed"
        reason = "" if error is None else f"{type(error).__name__}: {error}"
        ended, grown = None, Host(environment.network.model).network.grown if error is None else ()
        if environment.signals is not None and error is None:
            ended = Ending(environment.signals, math.nan, math.nan, grown).event(environment, None, None, concluded)
            self._events.hear(ended)
        self._events.hear(RunFinished(status=status, reason=reason))
        self._events.settle()
        if ended is not None:
            seeds = [asdict(seed) for seed in grown]
            episode = {"round": 0, "arm": environment.arm, "seed": environment.seed, "grown": seeds}
            summary = {
                "run": str(self.path),
                "status": status,
                "results": results(METRIC, [environment.arm], [ended]),
                "timing": {region: round(duration, 4) for region, duration in seconds.items()},
                "warnings": [],
                "events": self._events.checksum,
            }
            self._directory.write_results([episode], summary)
        self._directory.finish(status=status, exit_code=0 if error is None else 1, reason=reason)


def plain_settings(
    gardener: Any, space: ActionSpace, growth: GrowthConfig, governor: GovernorConfig, seed: int
) -> dict[str, Any]:
    """Return what the Gardener was made with, as plain data for the run directory."""
    places = Host(gardener.model).slots.places()
    return {
        "model": type(gardener.model).__name__,
        "optimizer": type(gardener.optimizer).__name__,
        "slots": {name: {"at": at, "blueprints": list(space.blueprints[name])} for name, at in places.items()},
        "policy": gardener.arm,
        "steps": gardener.steps,
        "seed": seed,
        "growth": growth.model_dump(mode="json"),
        "governor": governor.model_dump(mode="json"),
    }
