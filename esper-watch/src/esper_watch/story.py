"""What does a run directory tell? Its arms, how their metric went, and every seed's life, from its events alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from esper_core import EsperError, read_events
from esper_core.leyline import Problem, RunFolderError, Stage
from esper_core.leyline.events import (
    EpisodeFinished,
    GovernorActed,
    RunFinished,
    RunStarted,
    StageChanged,
    StepFinished,
)
from esper_core.leyline.files import read_json
from esper_watch.standing import standing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from esper_core.leyline.events import Event

UNENDED: Final = "running or killed"
"""Status of a run whose events have no end, where nobody knows whether it still runs."""


@dataclass(slots=True)
class Life:
    """One seed: whose it is, and the step at which each of its stages began."""

    round: int
    arm: str
    seed: int
    slot: str
    seed_id: int
    blueprint: str
    stages: list[tuple[int, Stage]] = field(default_factory=list)

    def stage_at(self, step: int) -> Stage | None:
        """The stage that held during ``step``; None before germination."""
        held = [stage for began, stage in self.stages if began < step or (began == step and stage is Stage.GERMINATED)]
        return held[-1] if held else None


@dataclass(slots=True)
class Story:
    """A run as its events tell it, finished or not."""

    name: str
    arms: tuple[str, ...] = ()
    steps: int = 0
    rounds: int = 0
    environments: int = 0
    status: str = UNENDED
    """As its events tell it; of one whose events have no end: ``running`` or ``died``, where its manifest tells."""
    reason: str = ""
    lives: dict[tuple[int, str, int, int], Life] = field(default_factory=dict)
    validation: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    tests: dict[str, list[float]] = field(default_factory=dict)
    governed: list[GovernorActed] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What of the file is not told here: a torn last line, what a newer version added."""
    heard: int = 0
    reached: dict[tuple[int, str, int], int] = field(default_factory=dict)
    """By round, arm and seed: the last step that is told of."""

    def hear(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, RunStarted):
            self.arms, self.steps = event.arms, event.steps
            self.rounds, self.environments = event.rounds, event.environments
        elif isinstance(event, StageChanged):
            key = (event.round, event.arm, event.seed, event.seed_id)
            life = self.lives.setdefault(
                key, Life(event.round, event.arm, event.seed, event.slot, event.seed_id, event.blueprint)
            )
            life.stages.append((event.step, event.now))
            self._reach(event)
        elif isinstance(event, StepFinished):
            curve = self.validation.setdefault(event.arm, {})
            curve.setdefault(event.round * self.steps + event.step, []).append(event.signals.validation_metric)
            self.heard += 1
            self._reach(event)
        elif isinstance(event, GovernorActed):
            self.governed.append(event)
        elif isinstance(event, EpisodeFinished):
            self.heard += self.steps - event.steps  # what an episode that ended early will not be trained
            self.tests.setdefault(event.arm, []).append(event.test_metric)
        elif isinstance(event, RunFinished):
            self.status, self.reason = event.status, event.reason

    def curve(self, arm: str) -> list[float]:
        """The arm's mean validation metric, step by step."""
        return [_mean(values) for _, values in sorted(self.validation.get(arm, {}).items())]

    def last_step(self, life: Life) -> int:
        """The last step that is known of the environment in which a seed lived: nothing is known of it behind."""
        return self.reached[life.round, life.arm, life.seed]

    def _reach(self, event: StageChanged | StepFinished) -> None:
        environment = event.round, event.arm, event.seed
        self.reached[environment] = max(event.step, self.reached.get(environment, 0))

    @property
    def share_done(self) -> float:
        """How much of the run was trained, from 0 to 1."""
        whole = self.rounds * self.environments * self.steps * len(self.arms)
        return self.heard / whole if whole else 0.0

    def as_json(self) -> dict[str, Any]:
        """The story as ``esper watch --json`` prints it. A figure that is no number is null, for JSON has no NaN."""
        return {
            "run": self.name,
            "status": self.status,
            "reason": self.reason,
            "left_out": self.left_out,
            "share_done": self.share_done,
            "arms": {
                arm: {
                    "validation": [_number(value) for value in self.curve(arm)],
                    "test": _number(_mean(self.tests[arm])) if arm in self.tests else None,
                }
                for arm in self.arms
            },
            "governor": [
                {
                    "round": one.round,
                    "arm": one.arm,
                    "seed": one.seed,
                    "step": one.step,
                    "act": one.act,
                    "reason": one.reason,
                }
                for one in self.governed
            ],
            "lives": [
                {
                    "round": life.round,
                    "arm": life.arm,
                    "seed": life.seed,
                    "slot": life.slot,
                    "blueprint": life.blueprint,
                    "stages": [{"step": step, "stage": stage.value} for step, stage in life.stages],
                    "last_step": self.last_step(life),
                }
                for life in self.lives.values()
            ],
        }


def read_story(run: Path) -> Story:
    """The story of a run directory, whole or torn.

    EsperError where it is none, where its events are no file, or where a line of them is no event.
    """
    events = run / "events.jsonl"
    if not events.exists():
        hint = "Give the folder of a run, for example runs/20261121-101512-quiet-otter."
        raise EsperError(Problem("E420", f"{run} is no run directory: it has no events.jsonl", hint=hint))
    story = Story(_name(run))
    for event in read_events(events, tell=story.left_out.append):
        story.hear(event)
    if story.status == UNENDED:
        story.status = standing(run) or UNENDED
    return story


def _name(run: Path) -> str:
    try:
        return str(read_json(run / "manifest.json")["id"])
    except (OSError, RunFolderError, KeyError, TypeError):
        return run.name


def _mean(values: Sequence[float]) -> float:
    """The mean; NaN where there is none, as of two infinities, or none that a number could hold."""
    try:
        return fmean(values)
    except (OverflowError, ValueError):
        return math.nan


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
