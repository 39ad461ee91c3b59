"""What stands in for an installed package, and for the folder of a run?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.events import RunStarted
from esper_testing.event_samples import recorded_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import ModuleType

    from esper_core.leyline.events import Event


@dataclass(frozen=True, slots=True)
class FakeDistribution:
    """What discovery asks of an installed package."""

    name: str
    version: str = "1.0"
    requires: Sequence[str] | None = ()
    entry_points: Sequence[EntryPoint] = ()


def fake_plugin(
    module: ModuleType | str, *, id: str | None = None, version: str = "1.0", requires: Sequence[str] = ()
) -> FakeDistribution:
    """A package that brings one plugin: a module with hooks, or its name, or "module:attribute".

    id: of the plugin; without one it is called after the module.
    """
    target = module if isinstance(module, str) else module.__name__
    own = id or target.partition(":")[0].rpartition(".")[2].lower().strip("_").replace("_", "-")
    return FakeDistribution(f"fake-{own}", version, requires, (EntryPoint(own, target, "esper.plugins"),))


def write_run(folder: Path, events: Iterable[Event] | None = None) -> Path:
    """The folder of a finished run in ``folder``: manifest.json, config.yaml, events.jsonl and growth.json, no figures.

    events: what happened; without any, ``recorded_events``.
    """
    told = recorded_events() if events is None else list(events)
    folder.mkdir(parents=True, exist_ok=True)
    name = next((event.run for event in told if isinstance(event, RunStarted)), folder.name)
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
    folder.joinpath("manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    folder.joinpath("config.yaml").write_text("task: stripes\n", encoding="utf-8")
    folder.joinpath("growth.json").write_text(json.dumps({"format": 1, "episodes": []}), encoding="utf-8")
    lines = [TypeAdapter(type(event)).dump_json(event).decode() for event in told]
    folder.joinpath("events.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder
