"""What happened? Each event is a frozen record; summaries and reports are written from them alone.

Every event carries its ``type`` and ``v``, the version of the format: each line of events.jsonl is understood by
itself, where another version went on with the file as well. A new type of event, and a new field that has a default,
leave the version as it is: who reads leaves out what he does not know. Whatever would let an older reader misunderstand
a line (a field that goes or means something else, a new stage) raises it, and that reader refuses the file.

Those that concern one environment name it by round, arm and environment seed. The lines are written by
``telemetry.codec`` and read by ``telemetry.reading``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from esper_core.leyline.constants import EVENT_FORMAT
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import RECORD, Metric, Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run begins: ``rounds`` times ``environments`` episodes of ``steps`` steps for each of the ``arms``."""

    __pydantic_config__ = RECORD
    type: Literal["run-started"] = "run-started"
    v: int = EVENT_FORMAT
    run: str
    arms: tuple[str, ...]
    rounds: int
    environments: int
    steps: int
    metric: Metric | None = None
    """What the task is judged by; None in files that do not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChanged:
    """A seed moved from one stage to another. ``was`` is None at its germination."""

    __pydantic_config__ = RECORD
    type: Literal["stage-changed"] = "stage-changed"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    seed: int
    step: int
    slot: str
    seed_id: int
    """Counts the seeds of one episode from 0."""
    blueprint: str
    was: Stage | None
    now: Stage
    parameters: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One environment finished one step: what was measured, what that was worth, what was decided on it."""

    __pydantic_config__ = RECORD
    type: Literal["step-finished"] = "step-finished"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    seed: int
    step: int
    signals: Signals
    reward: Mapping[str, float] = field(default_factory=dict)
    action: str = "wait"
    """Its op, slot and blueprint, as far as it names them."""
    arguments: Mapping[str, str | int | float] = field(default_factory=dict)
    """What else the action says: blend, speed, curve and target, as far as its op reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedLost:
    """A seed went wrong and was taken out: whose work it is, and what it did."""

    __pydantic_config__ = RECORD
    type: Literal["seed-lost"] = "seed-lost"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    seed: int
    step: int
    slot: str
    blueprint: str
    package: str
    what: str
    withdrawn: bool
    """Whether the blueprint grows no more in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorActed:
    """The governor did something about an environment: its latest step was not a healthy one, or is its last."""

    __pydantic_config__ = RECORD
    type: Literal["governor-acted"] = "governor-acted"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    seed: int
    step: int
    act: str
    """``warn``, ``early-stop``, ``roll-back`` or ``stop``."""
    verdict: str
    reason: str
    """What was seen, and after which mutation, where one is under watch."""
    back_to: int | None = None
    """The step after which the state was taken that it went back to; -1: before any training."""
    penalty: float = 0.0
    """What was taken off the reward of this step."""
    withdrawn: bool = False
    """Whether the blueprint that it is laid to grows no more in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFinished:
    """One environment came to its end: the network that is left, read once on the test split."""

    __pydantic_config__ = RECORD
    type: Literal["episode-finished"] = "episode-finished"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    seed: int
    test_loss: float
    test_metric: float
    validation_metric: float
    parameters: int
    host_parameters: int
    fossils: int
    steps: int
    """Decision steps that it was trained for: fewer than the episode's where it was stopped early."""
    reward: float | None
    """Sum over the episode, the closing terms included; None where it is unknown, for want of a twin."""
    closing: Mapping[str, float] = field(default_factory=dict)
    """The terms of the reward for the episode's end, beside those of its steps."""
    grown: tuple[Mapping[str, Any], ...] = ()
    """The seeds that were kept, each as growth.json has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFinished:
    """The policy of an arm learnt from a round; ``figures`` is what it said of it."""

    __pydantic_config__ = RECORD
    type: Literal["update-finished"] = "update-finished"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run came to its end, well or not; ``reason`` says why where it was not done."""

    __pydantic_config__ = RECORD
    type: Literal["run-finished"] = "run-finished"
    v: int = EVENT_FORMAT
    status: Literal["done", "failed", "interrupted", "stopped"]
    reason: str = ""


Event = (
    RunStarted | StageChanged | StepFinished | SeedLost | GovernorActed | EpisodeFinished | UpdateFinished | RunFinished
)
