"""Measure seeds that are kept regardless of their gain: in the shadow and on a branch, at three places and steps.

``python -m benchmarks.science.incubation`` runs every study that is not in the folder yet, about an hour on one core,
and writes ``results.json`` there. The published results are ``incubation.json`` beside this module. Each arm grows one
seed, advances it after five steps and fossilises it after fifteen. Reported are its gain while it trains, its effect on
loss and accuracy in the end against the twin, and the operations of its episode relative to the twin's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.flop_counter import FlopCounterMode

from esper_core.leyline.events import EpisodeFinished, StepFinished
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import CALM
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.loop import run_study
from esper_core.trainer.study_position import StudyPosition
from esper_run.app.compose import StudyContext, prepare
from esper_run.app.run import run
from esper_run.runs.statistics import paired_comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline.events import Event

BLUEPRINTS: Final = ("conv_light", "pointwise", "mlp")
TWIN: Final = "twin"


@dataclass(frozen=True, slots=True)
class Place:
    """A host on a task. slots: where each blueprint grows. share: of the batches of a step, for slower hosts."""

    name: str
    task: str
    host: Mapping[str, Any]
    slots: Mapping[str, str]
    share: float = 1.0


_POINTWISE: Final = {"conv_light": "early", "pointwise": "early", "mlp": "late"}
_WIDE: Final = {"conv_light": "early", "pointwise": "early", "mlp": "features"}
PLACES: Final = (
    Place("plain", "mnist1d", {"use": "pointwise-mlp"}, _POINTWISE),
    Place("shuffled", "mnist1d-shuffled", {"use": "pointwise-mlp"}, _POINTWISE),
    Place("no deficit", "mnist1d", {"use": "cnn1d", "settings": {"channels": 25}}, _WIDE, share=3 / 8),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained, and when seeds germinate, advance and are kept."""

    seeds: int = 8
    steps: int = 40
    batches: int = 32
    germinations: tuple[int, ...] = (0, 5, 15)
    advance: int = 5
    keep: int = 15


QUICK: Final = Size(seeds=1, steps=9, batches=2, germinations=(0,), advance=2, keep=7)


@dataclass(frozen=True, slots=True)
class Study:
    """One run: arms with each blueprint and germination step at one place, and the twin."""

    place: Place
    incubation: str

    @property
    def name(self) -> str:
        """The name of the run."""
        return f"{self.place.name} {self.incubation}"

    def arms(self, size: Size) -> dict[str, tuple[str, int]]:
        """Return blueprint and germination step of each arm but the twin."""
        return {f"{name}-{step}": (name, step) for name, step in product(BLUEPRINTS, size.germinations)}

    def config(self, size: Size) -> dict[str, Any]:
        """Return the configuration, as ``esper run`` takes it."""
        slots: dict[str, Any] = {}
        for blueprint, slot in self.place.slots.items():
            slots.setdefault(slot, {"blueprints": []})["blueprints"].append(blueprint)
        arms = {}
        for name, (blueprint, step) in self.arms(size).items():
            slot = self.place.slots[blueprint]
            plan = [
                {"step": step, "op": "germinate", "slot": slot, "blueprint": blueprint},
                {"step": step + size.advance, "op": "advance", "slot": slot},
                {"step": step + size.keep, "op": "fossilise", "slot": slot},
            ]
            arms[name] = {"policy": {"use": "schedule", "settings": {"plan": plan}}}
        return {
            "task": self.place.task,
            "host": dict(self.place.host),
            "slots": slots,
            "arms": arms,
            "environments": size.seeds,
            "episode": {"steps": size.steps, "batches": max(1, round(size.batches * self.place.share))},
            "growth": {"incubation": self.incubation, "gates": "off"},
            "device": "cpu",
        }


@dataclass(slots=True)
class Episodes:
    """A listener that keeps the end of each episode, and the last gain of a seed in training."""

    ended: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    gains: dict[tuple[str, int], float] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, StepFinished):
            for seed in event.signals.seeds:
                self.added[event.arm] = seed.parameters
                if seed.stage is Stage.TRAINING and seed.gain is not None:
                    self.gains[event.arm, event.seed] = seed.gain.mean
        elif isinstance(event, EpisodeFinished):
            end = {"loss": event.test_loss, "metric": event.test_metric, "host_parameters": event.host_parameters}
            self.ended.setdefault(event.arm, {})[event.seed] = end

    def settle(self) -> None:
        """Do nothing at the end of a step."""


class OperationCounter(Clock):
    """A clock that counts the operations of matrix products and convolutions in the region ``train``."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Count a block."""
        with super().region(name):
            if name != "train":
                yield
                return
            with FlopCounterMode(display=False) as counter:
                yield
            self.operations += counter.get_total_flops()


def operations(config: Mapping[str, Any], arm: str) -> int:
    """Return the operations of one episode of an arm, with one batch per step: all batches of a step are alike."""
    only = {"alone": config["arms"].get(arm, {"policy": "static"})}
    small = {"environments": 1, "episode": {**config["episode"], "batches": 1}, "twin": False, "arms": only}
    counter = OperationCounter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(json.dumps({**config, **small}), encoding="utf-8")
        composition = prepare(file)
    run_study(StudyPosition(composition.study(StudyContext(Bus(), counter, lambda snapshot: CALM))))
    return counter.operations


def run_one(study: Study, size: Size) -> dict[str, Any]:
    """Run a study; return its episodes and operations by arm."""
    config, episodes = study.config(size), Episodes()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        run(prepare(file), runs_dir=Path(folder) / "runs", listeners=[episodes], on_warning=lambda warning: None)
    arms = {}
    for arm in (TWIN, *study.arms(size)):
        ended = [end for _, end in sorted(episodes.ended[arm].items())]
        gains = [gain for (of, _), gain in episodes.gains.items() if of == arm]
        arms[arm] = {"episodes": ended, "gain": fmean(gains) if gains else None, "added": episodes.added.get(arm, 0)}
        arms[arm]["operations"] = operations(config, arm)
    return {"study": study.name, "arms": arms}


def summarise(lines: Mapping[str, Mapping[str, Any]], studies: Sequence[Study], size: Size) -> dict[str, Any]:
    """Return every arm against its twin, and branch against shadow."""
    forced, between = [], []
    for study in studies:
        arms = lines[study.name]["arms"]
        twin = arms[TWIN]
        for name, (blueprint, germination) in study.arms(size).items():
            arm = arms[name]
            condition = {"place": study.place.name, "blueprint": blueprint, "germination": germination}
            forced.append(
                {
                    **condition,
                    "incubation": study.incubation,
                    "metric": _mean_metric(arm),
                    **_compared(arm, twin),
                    "added": arm["added"],
                    "host_parameters": arm["episodes"][0]["host_parameters"],
                    "cost": _short(arm["operations"] / twin["operations"]),
                    "gain_in_training": None if arm["gain"] is None else _short(arm["gain"]),
                }
            )
            shadow = lines.get(f"{study.place.name} shadow")
            if study.incubation == "branch" and shadow is not None:
                between.append({**condition, **_compared(arm, shadow["arms"][name])})
    twins = {study.place.name: _mean_metric(lines[study.name]["arms"][TWIN]) for study in studies}
    return {
        "torch": torch.__version__,
        "size": {key: value for key, value in asdict(size).items() if key in ("seeds", "steps", "batches")},
        "twins": [{"place": place, "metric": metric} for place, metric in twins.items()],
        "forced": forced,
        "between": between,
    }


def _compared(arm: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return the paired differences with their intervals, in points of accuracy and in nats of loss."""
    differences = {}
    for unit, key, scale, better in (("points", "metric", 100.0, "up"), ("nats", "loss", 1.0, "down")):
        sides = [[scale * episode[key] for episode in side["episodes"]] for side in (arm, baseline)]
        comparison = paired_comparison(*sides, direction=better)  # type: ignore[arg-type]
        differences[unit] = [
            None if end is None else _short(end) for end in (comparison.difference, comparison.low, comparison.high)
        ]
    return differences


def _mean_metric(arm: Mapping[str, Any]) -> float:
    return _short(fmean(100 * episode["metric"] for episode in arm["episodes"]))


def _short(value: float) -> float:
    return round(value, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every study that is not in the folder yet, and write the results of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.incubation")
    parser.add_argument("--quick", action="store_true", help="Tiny episodes, to see that it runs: a minute.")
    parser.add_argument("--only", default="", metavar="TEXT", help="Only the studies with TEXT in their name.")
    parser.add_argument("--into", type=Path, default=Path("runs/incubation"), metavar="FOLDER")
    parsed = parser.parse_args(arguments)
    size, file = QUICK if parsed.quick else Size(), parsed.into / "studies.jsonl"
    parsed.into.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    studies = [Study(place, way) for place in PLACES for way in ("shadow", "branch")]
    studies = [study for study in studies if parsed.only in study.name]
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = {line["study"]: line for line in map(json.loads, (row for row in text.splitlines() if row.endswith("}")))}
    for study in studies:
        if study.name not in lines:
            begin = time.monotonic()
            lines[study.name] = run_one(study, size)
            with file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(lines[study.name]) + "\n")
            sys.stderr.write(f"{study.name}: {time.monotonic() - begin:.0f} s\n")
    results = parsed.into / "results.json"
    results.write_text(json.dumps(summarise(lines, studies, size), indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"written: {results}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
