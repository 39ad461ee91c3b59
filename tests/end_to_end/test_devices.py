"""Runs grow, learn and resume on every device and in every precision, and lose no seed on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_core.leyline.errors import Interrupted
from esper_core.leyline.events import Event, SeedLost, StepFinished
from esper_run.app.compose import prepare
from esper_run.app.run import resume, run
from esper_run.runs.records import read_run
from tests.support.studies import EventRecorder

RUN = """
task: {use: tasks/mnist1d, settings: {samples: 800, validation: 200}}
host: {use: tasks/pointwise-mlp}
slots: {early: {blueprints: [conv_light]}}
policy: {use: schedule, settings: {plan: [
  {step: 1, op: germinate, slot: early, blueprint: conv_light, speed: 2},
  {step: 4, op: advance, slot: early},
  {step: 7, op: fossilise, slot: early}]}}
environments: 2
capacity: false
growth: {gates: "off"}
episode: {steps: 10, batches: 8, batch_size: 100}
checkpoints: {every: 2}
"""
CHANCE = 0.1

MANY = """
task: {use: mnist1d, settings: {samples: 300, validation: 100}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
  late: {blueprints: [mlp]}
policy: random
growth: {nursery: 2, embargo: 1, gates: "off"}
environments: 4
episode: {steps: 12, batches: 2, batch_size: 20}
"""

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
PLACES = [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=ON_A_GPU)]
WAYS = ["{}", "{precision: bfloat16}", "{precision: float16}", "{micro_batches: 2}", "{data: streamed}"]


class Stopping(EventRecorder):
    """Ends a run after one of its steps, as a signal does."""

    def hear(self, event: Event) -> None:
        if isinstance(event, StepFinished) and event.signals.step == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("compute", WAYS)
def test_a_run_grows_learns_and_continues(tmp_path, device, compute):
    file = tmp_path / "run.yaml"
    file.write_text(f"{RUN}compute: {compute}\ndevice: {device}\n", encoding="utf-8")
    arguments: dict[str, Any] = {"runs_dir": tmp_path / "runs", "on_warning": lambda warning: None}
    uninterrupted = run(prepare(file), **arguments).results["arms"]["schedule"]
    assert uninterrupted["fossils"] == 1.0
    assert uninterrupted["test"]["mean"] > 1.5 * CHANCE
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run(prepare(file), name="stopped", listeners=[Stopping()], **arguments)
    (stopped,) = (tmp_path / "runs").glob("*stopped*")
    resumed = resume(prepare(stopped / "config.yaml"), read_run(stopped), on_warning=arguments["on_warning"])
    again = resumed.results["arms"]["schedule"]
    assert again["fossils"] == 1.0
    closely: Callable[[float], Any] = pytest.approx if device == "cpu" else lambda mean: pytest.approx(mean, abs=0.05)
    assert again["test"]["mean"] == closely(uninterrupted["test"]["mean"])


@pytest.mark.parametrize("device", PLACES[1:])
@pytest.mark.parametrize("incubation", ["shadow", "branch"])
@pytest.mark.parametrize("of", ["images", "tokens", "many"])
def test_no_seed_is_lost(tmp_path, of, incubation, device):
    """Convolutions on images, recurrent layers and attention, and seeds that are pruned in every stage."""
    file = Path(__file__).parents[2] / "examples" / f"{of}.yaml"
    if of == "many":
        file = tmp_path / "many.yaml"
        file.write_text(MANY, encoding="utf-8")
    recorder = EventRecorder()
    overrides = [f"device={device}", f"growth.incubation={incubation}", "episode.batches=2"]
    composition = prepare(file, overrides)
    run(composition, runs_dir=tmp_path / "runs", listeners=[recorder], on_warning=lambda warning: None)
    assert recorder.of(SeedLost, arm=None) == []
