"""Run directories of any size for the benchmarks of the live pages: made up, and written without training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline import WAIT, Action, Cause, Metric, Op, Reason, Stage
from esper_core.leyline.events import EpisodeFinished, RunStarted, StageChanged, StepFinished
from esper_core.leyline.lifecycle import SlotState
from esper_core.leyline.signals import Evidence, Finding, Gain, Opinion, SeedSignals, Signals, SlotSignals
from esper_core.telemetry import encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from esper_core.leyline.events import Event

ARMS: Final = ("heuristic", "twin")
BLUEPRINT: Final = "blueprints/conv_light"
SLOT: Final = "early"
PLACE: Final = 1_000_003
"""A number of the template of a line, which is replaced by the environment's seed."""

STAGES: Final = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILISED)


def write_run(folder: Path, *, rounds: int, environments: int, steps: int, status: str = "running") -> Path:
    """Write a run directory without a final event, and return it. Each arm has a step event for each step."""
    run = folder / "20261121-101512-quiet-otter"
    run.mkdir(parents=True)
    manifest = {"format": 1, "id": run.name, "status": status, "started": "2026-11-21T10:15:12+00:00"}
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (run / "config.yaml").write_text("task: mnist1d\n", encoding="utf-8")
    started = RunStarted(
        run=run.name,
        arms=ARMS,
        rounds=rounds,
        environments=environments,
        steps=steps,
        metric=Metric("accuracy", unit="%"),
    )
    with (run / "events.jsonl").open("w", encoding="utf-8", buffering=1 << 20) as file:
        file.write(encode(started) + "\n")
        for round_ in range(rounds):
            for template in _templates(round_, steps):
                file.writelines(template.replace(str(PLACE), str(seed)) for seed in range(environments))
    return run


def _templates(round_: int, steps: int) -> Iterator[str]:
    """Yield the lines of one round; the environments write each of them with their own seed."""
    for step in range(steps):
        for arm in ARMS:
            for event in _events(round_, arm, step, steps):
                yield encode(event) + "\n"
    for arm in ARMS:
        yield encode(_end(round_, arm, steps)) + "\n"


def _events(round_: int, arm: str, step: int, steps: int) -> Iterator[Event]:
    fifth = max(1, steps // 5)
    if arm == ARMS[0] and step % fifth == 0:
        number = step // fifth
        yield StageChanged(
            round=round_,
            arm=arm,
            seed=PLACE,
            step=step,
            slot=SLOT,
            seed_id=0,
            blueprint=BLUEPRINT,
            was=STAGES[number - 1] if number else None,
            now=STAGES[number],
            parameters=72,
            reason=Reason(Cause.POLICY),
        )
    action = WAIT if arm == ARMS[1] or step % fifth else Action(Op.ADVANCE, SLOT)
    signals = _signals(arm, step, steps)
    yield StepFinished(round=round_, arm=arm, seed=PLACE, step=step, signals=signals, action=action)


def _signals(arm: str, step: int, steps: int) -> Signals:
    grows = arm == ARMS[0]
    loss = 2.3 * math.exp(-(step + 1) / (steps / 3)) + (0.4 if grows else 0.6)
    seeds: tuple[SeedSignals, ...] = ()
    if grows and 0 < step < steps // 5:  # looks of a gate make long lines
        gain = Gain(800, 0.01 + 0.05 * step / steps, 0.4, 0.1, -1.25, 1.5)
        seen = Evidence(800, gain.mean, gain.standard_error, 0.008, gain.mean - 0.03, gain.mean + 0.03, 0.001, step)
        opinion = Opinion(Finding.NOT_SHOWN, evidence=seen, price=0.02)
        seeds = (SeedSignals(BLUEPRINT, Stage.TRAINING, 0.0, 72, age=step, gain=gain, opinion=opinion, price=0.02),)
    slots = (SlotSignals(SLOT, SlotState.OCCUPIED if seeds else SlotState.FREE, 0, seeds),)
    return Signals(step, loss, loss, 1 - loss / 3, 572 if grows else 500, 500, slots)


def _end(round_: int, arm: str, steps: int) -> EpisodeFinished:
    grows = arm == ARMS[0]
    end = EpisodeFinished(
        round=round_,
        arm=arm,
        seed=PLACE,
        test_loss=0.6,
        test_metric=0.8,
        validation_metric=0.8,
        parameters=500,
        host_parameters=500,
        fossils=0,
        steps=steps,
        reward=0.0,
    )
    kept = {"slot": SLOT, "blueprint": BLUEPRINT, "parameters": 72}
    return replace(end, test_metric=0.85, parameters=572, fossils=1, reward=12.0, grown=(kept,)) if grows else end
