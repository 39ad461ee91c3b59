"""Run a command as ``esper run`` does, and keep the results of its summary."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.shown.runs import QUICK
from esper_core.app.compose import prepare
from esper_core.app.run import run
from esper_core.leyline.constants import CONFIDENCE
from esper_core.leyline.events import EpisodeFinished, StageChanged, StepFinished
from esper_core.leyline.lifecycle import Stage
from esper_core.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.science.shown.runs import Previews, Run
    from esper_core.leyline.events import Event

ROOT: Final = Path(__file__).parents[3]
PREVIEW: Final = 5
"""Steps of training after which a preview is read."""

OF_PREVIEWS: Final = "python -m benchmarks.science.shown --only previews"


class Notes:
    """A listener that keeps what the pages show.

    blended: seeds that were blended in, by arm. gains: of seeds in training, step by step.
    """

    def __init__(self) -> None:
        self.ended: dict[tuple[str, int], EpisodeFinished] = {}
        self.blended: Counter[str] = Counter()
        self.gains: dict[tuple[str, int], list[float | None]] = {}

    def hear(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, EpisodeFinished):
            self.ended[event.arm, event.seed] = event
        elif isinstance(event, StageChanged) and event.now is Stage.BLENDING:
            self.blended[event.arm] += 1
        elif isinstance(event, StepFinished):
            for seed in event.signals.seeds:
                if seed.stage is Stage.TRAINING:
                    gain = None if seed.gain is None else seed.gain.mean
                    self.gains.setdefault((event.arm, event.seed), []).append(gain)

    def settle(self) -> None:
        """Do nothing at the end of a step."""

    def kept(self, arm: str) -> dict[str, int]:
        """Return how many seeds of each blueprint an arm kept."""
        own = (seed for (of, _), end in self.ended.items() if of == arm for seed in end.grown)
        return dict(sorted(Counter(str(seed["blueprint"]).rpartition("/")[2] for seed in own).items()))


def carried_out(one: Run, *, quick: bool) -> dict[str, Any]:
    """Run a command of a page, and return its results."""
    return {
        "name": one.name,
        "command": one.command,
        "says": one.says,
        **_played(ROOT / one.file, (*one.changes, *(QUICK if quick else ())))[0],
    }


def previewed(one: Previews) -> dict[str, Any]:
    """Return the seeds' gains after their preview and at the end: by arm, over the environments.

    gain: on validation, after five steps in isolation. nats: by how much the test loss was below the twin's in the end.
    points: of test accuracy above the twin's.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "previews.yaml"
        file.write_text(json.dumps(one.config()), encoding="utf-8")
        found, notes = _played(file)
    twins = {seed: end for (arm, seed), end in notes.ended.items() if arm == "twin"}
    rows = []
    for name, blueprint, step in one.arms():
        own = {seed: end for (arm, seed), end in notes.ended.items() if arm == name}
        gains = [notes.gains[name, seed][PREVIEW - 1] for seed in own]
        rows.append(
            {
                "blueprint": blueprint,
                "slot": dict(one.where)[blueprint],
                "planted": step,
                "gain": _interval(gain for gain in gains if gain is not None),
                "nats": _interval(twins[seed].test_loss - end.test_loss for seed, end in own.items()),
                "points": _interval(100 * (end.test_metric - twins[seed].test_metric) for seed, end in own.items()),
            }
        )
    return {"name": one.name, "command": OF_PREVIEWS, "task": one.task, "rows": rows, **found}


def _interval(values: Iterable[float]) -> dict[str, Any]:
    found = mean_interval(list(values), CONFIDENCE)
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


def _played(file: Path, changes: Sequence[str] = ()) -> tuple[dict[str, Any], Notes]:
    notes, begin = Notes(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(file, changes)
        outcome = run(prepared, runs_dir=Path(folder), listeners=[notes], on_warning=lambda warning: None)
    arms: Mapping[str, Any] = outcome.results["arms"]
    found = {
        "seconds": round(time.monotonic() - begin, 1),
        "kept": {arm: notes.kept(arm) for arm in arms},
        "blended": {arm: notes.blended[arm] for arm in arms},
        "results": outcome.results,
    }
    return found, notes
