"""Run a command as ``esper run`` does, and keep the results of its summary."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.shown.runs import QUICK
from esper_core.app.compose import prepare
from esper_core.app.run import run
from esper_core.leyline.events import EpisodeFinished, StageChanged
from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.science.shown.runs import Run
    from esper_core.leyline.events import Event

ROOT: Final = Path(__file__).parents[3]


class Notes:
    """A listener that keeps what the pages show.

    blended: seeds that were blended in, by arm.
    """

    def __init__(self) -> None:
        self.ended: dict[tuple[str, int], EpisodeFinished] = {}
        self.blended: Counter[str] = Counter()

    def hear(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, EpisodeFinished):
            self.ended[event.arm, event.seed] = event
        elif isinstance(event, StageChanged) and event.now is Stage.BLENDING:
            self.blended[event.arm] += 1

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
        **_played(ROOT / one.file, (*one.changes, *(QUICK if quick else ()))),
    }


def _played(file: Path, changes: Sequence[str]) -> dict[str, Any]:
    notes, begin = Notes(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(file, changes)
        outcome = run(prepared, runs_dir=Path(folder), listeners=[notes], on_warning=lambda warning: None)
    arms: Mapping[str, Any] = outcome.results["arms"]
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "kept": {arm: notes.kept(arm) for arm in arms},
        "blended": {arm: notes.blended[arm] for arm in arms},
        "results": outcome.results,
    }
