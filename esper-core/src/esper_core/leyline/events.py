"""Events: the frozen records that a run publishes, and from which summaries and reports are made.

Every event has a ``type`` and the version ``v`` of the event format, so each line of events.jsonl can be read by
itself. New event types and new fields with a default do not change the version: readers skip what they do not know.
A change that an older reader would misunderstand (a removed or redefined field, a new stage) increases it, and older
readers refuse the file.

Events of one environment name it by round, arm and environment seed. ``telemetry.event_log`` writes and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from esper_core.leyline.constants import EVENT_FORMAT
from esper_core.leyline.lifecycle import WAIT, Action, Stage
from esper_core.leyline.signals import RECORD, Metric, Reason, Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayer:
    """A module of the host as a picture of it shows it: one with parameters, or with slots behind it."""

    __pydantic_config__ = RECORD
    name: str
    """Name of the module in its model."""
    kind: str
    """Name of its class; of a plain sequence, those of its parts."""
    parameters: int
    slots: tuple[str, ...] = ()
    """Names of the slots behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run started: ``rounds`` times ``environments`` episodes of ``steps`` steps for each of the ``arms``."""

    __pydantic_config__ = RECORD
    type: Literal["run-started"] = "run-started"
    v: int = EVENT_FORMAT
    run: str
    arms: tuple[str, ...]
    rounds: int
    environments: int
    steps: int
    metric: Metric | None = None
    """The task's metric; None in files of earlier versions."""
    host: tuple[HostLayer, ...] = ()
    """The host's layers in the order of its modules; empty if unknown, as in files of earlier versions."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By slot: the blueprints that may grow there."""
    gains_in: str = "nats"
    """Unit of the gains of seeds and of their prices: nats, or the name of the metric, as growth.evidence says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InEpisode:
    """What events of one environment begin with: ``seed`` is the environment's RNG seed."""

    __pydantic_config__ = RECORD
    type: str
    v: int = EVENT_FORMAT
    round: int
    arm: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChanged(_InEpisode):
    """A seed changed its stage. ``was`` is None at germination."""

    type: Literal["stage-changed"] = "stage-changed"
    step: int
    slot: str
    seed_id: int
    """Number of the seed in its episode, from 0."""
    blueprint: str
    was: Stage | None
    now: Stage
    parameters: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(_InEpisode):
    """One environment finished a step: its measurements, reward, and the action that followed."""

    type: Literal["step-finished"] = "step-finished"
    step: int
    signals: Signals
    reward: Mapping[str, float] = field(default_factory=dict)
    action: Action = WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedLost(_InEpisode):
    """A seed failed and was removed: the package of its blueprint, and what happened."""

    type: Literal["seed-lost"] = "seed-lost"
    step: int
    slot: str
    blueprint: str
    package: str
    what: str
    withdrawn: bool
    """Whether the blueprint was withdrawn for the rest of the run."""
    blame: str = "code"
    """"code": it is the fault of its block; "numbers": perhaps, since they were not finite; "none": of another seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorActed(_InEpisode):
    """The governor acted on an environment."""

    type: Literal["governor-acted"] = "governor-acted"
    step: int
    act: str
    """``warn``, ``early-stop``, ``roll-back`` or ``stop``."""
    verdict: str
    reason: str
    """What was observed, and the mutation that is held responsible, if any."""
    back_to: int | None = None
    """The step whose state was restored; -1: the state before training."""
    penalty: float = 0.0
    """The penalty subtracted from the reward of this step."""
    withdrawn: bool = False
    """Whether the responsible blueprint was withdrawn for the rest of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFinished(_InEpisode):
    """An episode ended: the resulting network, evaluated once on the test split."""

    type: Literal["episode-finished"] = "episode-finished"
    test_loss: float
    test_metric: float
    test_last: float | None = None
    """The test metric with the weights of the last batch, if the network ends with their average."""
    validation_metric: float
    parameters: int
    host_parameters: int
    fossils: int
    steps: int
    """Number of steps trained; smaller than the episode's length if it was stopped early."""
    flops: int | None = None
    """Floating-point operations of training, trials and evaluation, discarded seeds included; None if unknown."""
    reward: float | None
    """Total reward of the episode, including the closing terms; None if unknown, for want of a twin."""
    closing: Mapping[str, float] = field(default_factory=dict)
    """The reward terms for the end of the episode, in addition to those of its steps."""
    grown: tuple[Mapping[str, Any], ...] = ()
    """The fossilised seeds, each as in growth.json."""
    conclusion: str = ""
    """What the policy concluded, in its own words; empty: nothing, or it has no ``conclusions``."""
    alone: str | None = None
    """Why the network, as it ended, is trained by itself; empty: it is trained with those of its structure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFinished:
    """The policy of an arm learnt from a round and reported these figures."""

    __pydantic_config__ = RECORD
    type: Literal["update-finished"] = "update-finished"
    v: int = EVENT_FORMAT
    round: int
    arm: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run ended. ``reason`` says why if it did not finish."""

    __pydantic_config__ = RECORD
    type: Literal["run-finished"] = "run-finished"
    v: int = EVENT_FORMAT
    status: Literal["done", "failed", "interrupted", "stopped"]
    reason: str = ""


Event = (
    RunStarted | StageChanged | StepFinished | SeedLost | GovernorActed | EpisodeFinished | UpdateFinished | RunFinished
)
