"""Run directories and events that were written without a run, for tests of the core and of other members."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import Cause, Gain, Metric, Opinion, Reason, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.events import EpisodeFinished, StageChanged, StepFinished
from esper_run.runs.statistics import results

CONFIG = """\
name: null
task: {use: tasks/stripes, settings: {noise: 0.1}}
host: {use: tasks/pointwise-mlp, settings: {hidden: 32}}
policy: {use: policies/heuristic}
episode: {steps: 40, batches: 32}
growth: {gates: strict, price: 0.0001}
"""


NOISE = [0.30, 0.10, 0.50, 0.20, 0.40, 0.35, 0.15, 0.45]
BETTER = [value + 0.2 + 0.001 * place for place, value in enumerate(NOISE)]
"""Figures of eight networks, and of eight that are each better."""


def stage_changed(step: int, was: Stage | None, now: Stage, **more: Any) -> StageChanged:
    """Return a stage change of a seed in the slot early of the first environment of the arm grown."""
    place: dict[str, Any] = {"round": 0, "arm": "grown", "seed": 0, "slot": "early", "seed_id": 0}
    defaults = {"blueprint": "test/conv", "parameters": 72, "reason": Reason(Cause.POLICY)}
    return StageChanged(step=step, was=was, now=now, **place | defaults | more)


def step_finished(
    step: int, *, gain: float | None = None, opinion: Opinion | None = None, blueprint: str = "test/conv", **more: Any
) -> StepFinished:
    """Return a step of the first environment of the arm grown, in which a seed trains in the slot early.

    ``gain``: the mean over 100 examples; their standard deviation is 0.5.
    """
    measured = None if gain is None else Gain(100, gain, 0.5, 0.0, -1.0, 1.0)
    seed = SeedSignals(
        blueprint, Stage.TRAINING, 0.0, 120, gain=measured, opinion=opinion, price=opinion and opinion.price
    )
    slots = (SlotSignals("early", SlotState.OCCUPIED, 0, (seed,)),)
    place: dict[str, Any] = {"round": 0, "arm": "grown", "seed": 0}
    return StepFinished(step=step, signals=Signals(step, 2.0, 2.1, 0.4, 1120, 1000, slots), **place | more)


def episodes(arm: str, values: Sequence[float], first: int) -> list[EpisodeFinished]:
    """Return one episode for each value, with RNG seeds from ``first`` on."""
    return [
        EpisodeFinished(
            round=0, arm=arm, seed=seed, test_loss=1.0, test_metric=value, validation_metric=value,
            parameters=100, host_parameters=100, fossils=0, steps=4, reward=1.0,
        )
        for seed, value in enumerate(values, first)
    ]  # fmt: skip


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """``write_run("20261121-101512-quiet-otter", {"grown": [...], "twin": [...]})``: write a finished run.

    Without arms it has no summary.
    """

    def write(
        name: str,
        arms: Mapping[str, Sequence[float]] | None = None,
        *,
        first: int = 0,
        metric: Metric | None = None,
        config: str = CONFIG,
        **manifest: Any,
    ) -> Path:
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        defaults = {
            "format": 1,
            "id": name,
            "status": "done",
            "argv": ["esper", "run", "plugins.yaml"],
            "started": "2026-11-21T10:15:12+00:00",
            "finished": "2026-11-21T10:17:12+00:00",
            "exit": 0,
            "process": {"pid": 1},
            "machine": {"torch": "2.13.0", "esper-core": "0.1.0", "python": "3.11.7"},
            "seeds": {"first": first, "count": 8},
            "plugins": [{"id": "tasks", "package": "esper-tasks", "version": "0.1.0", "sha256": "ad55eeb6cc"}],
            "git": None,
            "reason": "",
        }
        (path / "manifest.json").write_text(json.dumps(defaults | manifest))
        (path / "config.yaml").write_text(config)
        if arms is not None:
            metric = metric or Metric("accuracy", "up", "%")
            finished = [episode for arm, values in arms.items() for episode in episodes(arm, values, first)]
            summary_results = results(metric, list(arms), finished)
            timing = {"reset": 1.0, "train": 8.0, "total": 10.0}
            summary = {"run": str(path), "status": "done", "results": summary_results, "timing": timing, "warnings": []}
            text = json.dumps(summary).replace("NaN", "null").replace("Infinity", "null")
            (path / "summary.json").write_text(text)
        return path

    return write
