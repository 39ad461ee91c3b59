"""Count the floating-point operations of each training step of an arm.

One seed of each arm, with one batch to a step: the operations of a step are those of its batches, all alike. Matrix
products and convolutions are counted, forward and backward, which is nearly all there is.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.flop_counter import FlopCounterMode

from benchmarks.science.incubation.cells import TWIN
from esper_core.app.compose import StudyContext, prepare
from esper_core.leyline.signals import CALM
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.loop import run_study
from esper_core.trainer.progress import StudyProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.science.incubation.cells import Size, Study


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations of one batch in each step of an episode."""

    study: str
    blueprint: str
    germination: int
    steps: tuple[int, ...]


class Counter(Clock):
    """A clock that also counts the operations in the region ``train``."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Count a block."""
        with super().region(name):
            if name != "train":
                yield
                return
            with FlopCounterMode(display=False) as counted:
                yield
            self.steps.append(counted.get_total_flops())


def costs_of(study: Study, size: Size) -> Iterator[Cost]:
    """Yield the operations of each arm of ``study``, the twin last, counted in one episode of one batch per step."""
    config = study.config(size)
    whole = {"environments": 1, "episode": {**config["episode"], "batches": 1}, "twin": False}
    for name, blueprint, germination in [*study.arms(size), (TWIN, "", -1)]:
        arms = {"alone": config["arms"].get(name, {"policy": "static"})}
        counter = Counter()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "study.yaml"
            file.write_text(json.dumps({**config, **whole, "arms": arms}), encoding="utf-8")
            composition = prepare(file)
        around = StudyContext(Bus(), counter, lambda snapshot: CALM)
        run_study(StudyProgress(composition.study(around)))
        yield Cost(study.name, blueprint, germination, tuple(counter.steps))
