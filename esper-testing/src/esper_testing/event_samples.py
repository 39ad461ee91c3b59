"""What happens in a run? One event of each kind and more, as a run of two steps records them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from esper_core.leyline import SeedSignals, Signals, SlotSignals, SlotState, Stage
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
    from esper_core.leyline.events import Event


def recorded_events() -> list[Event]:
    """The events of a small run in which a seed germinates, is lost, and the governor warns: every kind there is."""
    return [
        RunStarted(run="tried", arms=("grown", "twin"), rounds=1, environments=1, steps=2),
        *_of_one_environment("grown"),
        StepFinished(round=0, arm="twin", seed=7, step=0, signals=replace(_signals(0), slots=())),
        StepFinished(round=0, arm="twin", seed=7, step=1, signals=replace(_signals(1), slots=())),
        EpisodeFinished(
            round=0,
            arm="grown",
            seed=7,
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
    """Events whose numbers are NaN and infinite, as those of a run that went wrong."""
    signals = replace(_signals(1), train_loss=math.nan, validation_loss=math.inf, validation_metric=-math.inf)
    *_, episode, end = recorded_events()
    assert isinstance(episode, EpisodeFinished)
    return [
        StepFinished(round=0, arm="grown", seed=7, step=1, signals=signals, reward={"improvement": math.nan}),
        replace(episode, test_loss=math.nan, test_metric=math.nan, reward=None),
        end,
    ]


def _of_one_environment(arm: str) -> list[Event]:
    born = StageChanged(
        round=0,
        arm=arm,
        seed=7,
        step=0,
        slot="early",
        seed_id=0,
        blueprint="tried/blueprint",
        was=None,
        now=Stage.GERMINATED,
        parameters=120,
        reason="asked for",
    )
    lost = SeedLost(
        round=0,
        arm=arm,
        seed=7,
        step=1,
        slot="early",
        blueprint="tried/blueprint",
        package="tried 1.0",
        what="made its own loss not finite",
        withdrawn=False,
    )
    return [
        born,
        StepFinished(round=0, arm=arm, seed=7, step=0, signals=_signals(0), action="germinate tried/blueprint"),
        replace(born, step=1, was=Stage.GERMINATED, now=Stage.TRAINING, reason="a step began"),
        lost,
        replace(born, step=1, was=Stage.TRAINING, now=Stage.PRUNED, reason="lost"),
        UpdateFinished(round=0, arm=arm, figures={"loss": 0.25}),
        GovernorActed(round=0, arm=arm, seed=7, step=1, act="warn", verdict="warning", reason="the loss rose"),
        StepFinished(round=0, arm=arm, seed=7, step=1, signals=_signals(1), reward={"improvement": 1.5}),
    ]


def _signals(step: int) -> Signals:
    seed = SeedSignals("tried/blueprint", Stage.TRAINING, 0.0, 120, step, 1.9)
    slot = SlotSignals("early", SlotState.OCCUPIED, 0, (seed,))
    return Signals(step, 2.0 - step, 2.1 - step, 0.4 + 0.1 * step, 1120, 1000, (slot,))
