"""Fake packages, recorded events and run directories for tests."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from esper_core.leyline import Action, Cause, Op, Reason, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.events import (
    EpisodeFinished,
    GovernorActed,
    RunFinished,
    RunStarted,
    SeedLost,
    StageChanged,
    StepFinished,
    UpdateFinished,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import ModuleType

    from esper_core.leyline.events import Event


def recorded_events() -> list[Event]:
    """Return the events of a small run in which a seed germinates and is lost and the governor warns: every type."""
    arm, planted = "grown", Action(Op.GERMINATE, "early", "tried/blueprint")
    episode: dict[str, Any] = {"round": 0, "arm": arm, "seed": 7}
    place: dict[str, Any] = {"slot": planted.slot, "blueprint": planted.blueprint}
    born = StageChanged(
        **episode,
        **place,
        step=0,
        seed_id=0,
        was=None,
        now=Stage.GERMINATED,
        parameters=120,
        reason=Reason(Cause.POLICY),
    )
    return [
        RunStarted(run="tried", arms=(arm, "twin"), rounds=1, environments=1, steps=2),
        born,
        StepFinished(**episode, step=0, signals=_signals(0), action=planted),
        replace(born, step=1, was=Stage.GERMINATED, now=Stage.TRAINING, reason=Reason(Cause.STEP)),
        SeedLost(**episode, **place, step=1, package="tried 1.0", what="broke its loss", withdrawn=False),
        replace(born, step=1, was=Stage.TRAINING, now=Stage.PRUNED, reason=Reason(Cause.LOST, "broke its loss")),
        UpdateFinished(round=0, arm=arm, figures={"loss": 0.25}),
        GovernorActed(**episode, step=1, act="warn", verdict="warning", reason="the loss rose"),
        StepFinished(**episode, step=1, signals=_signals(1), reward={"improvement": 1.5}),
        StepFinished(round=0, arm="twin", seed=7, step=0, signals=replace(_signals(0), slots=())),
        StepFinished(round=0, arm="twin", seed=7, step=1, signals=replace(_signals(1), slots=())),
        EpisodeFinished(
            **episode,
            test_loss=1.0,
            test_metric=0.6,
            validation_metric=0.6,
            parameters=1000,
            host_parameters=1000,
            fossils=0,
            steps=2,
            reward=1.5,
        ),
        RunFinished(status="done"),
    ]


def sick_events() -> list[Event]:
    """Return events with NaN and infinite measurements, as those of a diverged run."""
    signals = replace(_signals(1), train_loss=math.nan, validation_loss=math.inf, validation_metric=-math.inf)
    *_, episode, end = recorded_events()
    assert isinstance(episode, EpisodeFinished)
    return [
        StepFinished(round=0, arm="grown", seed=7, step=1, signals=signals, reward={"improvement": math.nan}),
        replace(episode, test_loss=math.nan, test_metric=math.nan, reward=None),
        end,
    ]


def _signals(step: int) -> Signals:
    seed = SeedSignals("tried/blueprint", Stage.TRAINING, 0.0, 120, step, 1.9)
    slot = SlotSignals("early", SlotState.OCCUPIED, 0, (seed,))
    return Signals(step, 2.0 - step, 2.1 - step, 0.4 + 0.1 * step, 1120, 1000, (slot,))


@dataclass(frozen=True, slots=True)
class FakeDistribution:
    """What plugin discovery reads of an installed package."""

    name: str
    version: str = "1.0"
    requires: Sequence[str] | None = ()
    entry_points: Sequence[EntryPoint] = ()


def fake_plugin(
    module: ModuleType | str, *, id: str | None = None, version: str = "1.0", requires: Sequence[str] = ()
) -> FakeDistribution:
    """Return a fake package with one plugin, whose id is that of the module by default.

    ``module`` is the one with the hooks, its name, or ``module:attribute``; ``version`` and ``requires`` are the
    package's.
    """
    target = module if isinstance(module, str) else module.__name__
    plugin_id = id or target.partition(":")[0].rpartition(".")[2].lower().strip("_").replace("_", "-")
    return FakeDistribution(f"fake-{plugin_id}", version, requires, (EntryPoint(plugin_id, target, "esper.plugins"),))


def write_run(folder: Path, events: Iterable[Event] | None = None) -> Path:
    """Write the directory of a finished run with these events, by default ``recorded_events``; return the folder."""
    recorded = recorded_events() if events is None else list(events)
    folder.mkdir(parents=True, exist_ok=True)
    name = next((event.run for event in recorded if isinstance(event, RunStarted)), folder.name)
    manifest = {
        "format": RUN_FORMAT,
        "id": name,
        "status": "done",
        "argv": ["esper", "run", "plugins.yaml"],
        "started": "2026-01-01T12:00:00+00:00",
        "finished": "2026-01-01T12:00:01+00:00",
        "exit": 0,
        "machine": {},
        "seeds": {"first": 7, "count": 1},
        "plugins": [],
        "git": None,
        "reason": "",
    }
    files = {
        "manifest.json": json.dumps(manifest),
        "config.yaml": "task: stripes\n",
        "growth.json": json.dumps({"format": 1, "episodes": []}),
        "events.jsonl": "".join(f"{TypeAdapter(type(event)).dump_json(event).decode()}\n" for event in recorded),
    }
    for name, text in files.items():
        folder.joinpath(name).write_text(text, encoding="utf-8")
    return folder
