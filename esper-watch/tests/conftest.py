"""Run directories of any size, and a browser."""

import json
import math
import re
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import Cause, Evidence, Finding, Gain, Metric, Opinion, Reason, SlotState, Stage
from esper_core.leyline.events import (
    EpisodeFinished,
    Event,
    GovernorActed,
    RunFinished,
    RunStarted,
    SeedLost,
    StepFinished,
    UpdateFinished,
)
from esper_core.leyline.signals import SeedSignals, Signals, SlotSignals
from esper_core.telemetry import encode
from esper_testing.pytest_plugin import Answer
from esper_watch.report import write_report
from tests.support import browser_driver
from tests.support.run_folders import stage_changed, write_run

__all__ = ["write_run"]

MakeRun = Callable[..., Path]


class RecordedRun:
    """The events of a run in which each environment of the first arm tries two seeds, and keeps the second."""

    blueprint, slot = "test/conv", "early"

    def __init__(self, *, environments: int, steps: int, arms: tuple[str, ...]) -> None:
        self.environments, self.steps, self.arms = environments, steps, arms

    def events(self) -> Iterator[Event]:
        sizes = {"rounds": 1, "environments": self.environments, "steps": self.steps}
        yield RunStarted(run="r", arms=self.arms, metric=Metric("accuracy", "up", "%"), **sizes)
        for step in range(self.steps):
            for arm in self.arms:
                for seed in range(self.environments):
                    yield from self._step(arm, seed, step)
        for arm in self.arms:
            yield from (self._episode(arm, seed) for seed in range(self.environments))
        yield UpdateFinished(round=0, arm=self.arms[0], figures={"loss": 0.5})
        yield RunFinished(status="done")

    def _step(self, arm: str, seed: int, step: int) -> Iterator[Event]:
        grows = arm == self.arms[0]
        if grows:
            names = {"arm": arm, "slot": self.slot, "blueprint": self.blueprint, "reason": Reason(Cause.POLICY)}
            for number, _, was, now in (change for change in self._plan() if change[1] == step):
                yield stage_changed(step, was, now, seed=seed, seed_id=number, **names)
        yield StepFinished(round=0, arm=arm, seed=seed, step=step, signals=self._signals(seed, step, grows=grows))
        if grows and seed == 1 and step == 3:
            place = {"round": 0, "arm": arm, "seed": seed, "step": step}
            yield GovernorActed(**place, act="roll-back", verdict="panic", reason="surge")
            lost = {"package": "esper-test", "what": "raised ValueError: no", "withdrawn": False}
            yield SeedLost(**place, slot=self.slot, blueprint=self.blueprint, **lost)

    def _plan(self) -> list[tuple[int, int, Stage | None, Stage]]:
        """Return seed id, step, and the stages before and after."""
        quarter = max(1, self.steps // 5)
        return [
            (0, 0, None, Stage.GERMINATED),
            (0, 1, Stage.GERMINATED, Stage.TRAINING),
            (0, quarter, Stage.TRAINING, Stage.PRUNED),
            (1, quarter, None, Stage.GERMINATED),
            (1, quarter + 1, Stage.GERMINATED, Stage.TRAINING),
            (1, 2 * quarter, Stage.TRAINING, Stage.BLENDING),
            (1, 3 * quarter, Stage.BLENDING, Stage.HOLDING),
            (1, 4 * quarter, Stage.HOLDING, Stage.FOSSILISED),
        ]

    def _signals(self, seed: int, step: int, *, grows: bool) -> Signals:
        value = (0.8 if grows else 0.5) * (1 - math.exp(-(step + 1) / (0.3 * self.steps))) + 0.01 * math.sin(seed)
        living = [planned for planned in self._plan() if planned[1] < step] if grows else []
        seeds: tuple[SeedSignals, ...] = ()
        if living and living[-1][3] not in (Stage.PRUNED, Stage.FOSSILISED):
            gain = Gain(800, 0.05 + 0.01 * seed, 0.4, 0.0, -1.0, 1.0)
            seen = Evidence(800, gain.mean, gain.standard_error, 0.01, gain.mean - 0.03, gain.mean + 0.03, 0.001, 1)
            opinion = Opinion(Finding.SHOWN, evidence=seen, price=0.02)
            judged = {"gain": gain, "opinion": opinion, "price": 0.02}
            seeds = (SeedSignals(self.blueprint, living[-1][3], 0.5, 72, age=1, **judged),)
        early = SlotSignals(self.slot, SlotState.OCCUPIED if seeds else SlotState.FREE, 0, seeds)
        slots = (early, SlotSignals("late", SlotState.FREE, 0))
        return Signals(step, 2.0 - value, 2.0 - value, value, 572, 500, slots)

    def _episode(self, arm: str, seed: int) -> EpisodeFinished:
        grows = arm == self.arms[0]
        kept = {"slot": self.slot, "blueprint": self.blueprint, "parameters": 72}
        return EpisodeFinished(
            round=0, arm=arm, seed=seed, test_loss=0.5, test_metric=(0.8 if grows else 0.5) + 0.01 * math.cos(seed),
            validation_metric=0.8, parameters=572 if grows else 500, host_parameters=500, fossils=int(grows),
            steps=self.steps, reward=12.0 if grows else 0.0, grown=(kept,) if grows else (),
        )  # fmt: skip


def summary(recorded: RecordedRun) -> dict[str, Any]:
    """Return the summary of these events."""
    grown, twin = recorded.arms[:2]
    comparison = {"a": grown, "b": twin, "difference": 0.3, "ci_low": 0.28, "ci_high": 0.32, "p": 0.0078}
    comparison |= {"p_holm": 0.0078, "n": recorded.environments, "verdict": "better", "why": None}
    metric = {"name": "accuracy", "direction": "up", "unit": "%"}
    return {
        "run": "runs/r",
        "status": "done",
        "results": {"metric": metric, "arms": {}, "comparisons": [comparison]},
        "timing": {"train": 38.0, "other": 2.0, "total": 40.0},
        "warnings": ["mind the gap"],
    }


def write_recorded_run(
    folder: Path, *, environments: int = 8, steps: int = 40, arms: tuple[str, ...] = ("grown", "twin")
) -> Path:
    """Write the directory of a finished run with the events of ``RecordedRun``."""
    recorded = RecordedRun(environments=environments, steps=steps, arms=arms)
    run = folder / "20261121-101512-quiet-otter"
    run.mkdir()
    (run / "events.jsonl").write_text("".join(f"{encode(event)}\n" for event in recorded.events()), encoding="utf-8")
    (run / "summary.json").write_text(json.dumps(summary(recorded)), encoding="utf-8")
    manifest = {
        "format": 1, "id": run.name, "status": "done", "started": "2026-11-21T10:15:12+00:00",
        "argv": ["/usr/bin/esper", "run", "plugins.yaml"], "machine": {"cores": "2"},
        "seeds": {"first": 0, "count": "8"}, "git": {"sha": "abc"},
        "plugins": [{"id": "own", "package": "own", "version": "1", "sha256": "f"}],
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (run / "config.yaml").write_text("task: mnist1d\n", encoding="utf-8")
    return run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """``make_run(environments=8, steps=40, arms=("grown", "twin"))``: write a finished run."""
    return partial(write_recorded_run, tmp_path)


@pytest.fixture(scope="session")
def usual_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an ordinary run, for tests that only read it."""
    return write_report(write_recorded_run(tmp_path_factory.mktemp("usual")))


@pytest.fixture(scope="session")
def change() -> Callable[..., None]:
    """``change(run, "events.jsonl", '"fossils":1', '"fossils":0')``: replace a pattern in a file of the run."""

    def replace(run: Path, name: str, pattern: str, text: str, count: int = 0) -> None:
        replaced, times = re.subn(pattern, text, (run / name).read_text(), count=count)
        assert times
        (run / name).write_text(replaced)

    return replace


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    yield from browser_driver.opened()


@pytest.fixture(scope="session")
def any_event() -> Any:
    """A hypothesis strategy for events of all types."""
    return runpy.run_path(str(Path(__file__).parents[2] / "esper-core/tests/telemetry/test_event_log.py"))["events"]


@pytest.fixture
def esper(esper_cli: Callable[..., Answer], tmp_path: Path) -> Callable[..., Answer]:
    """``esper("runs", "list")``: what the command answers, with the folder of ``write_run`` for its runs."""

    def call(*arguments: str | Path, runs_dir: Path | None = None) -> Answer:
        return esper_cli(*map(str, arguments), "--runs-dir", str(runs_dir or tmp_path / "runs"))

    return call
