"""History of a run: one pass over ``events.jsonl`` that keeps plain records.

The report, ``esper watch``, the notebook, the tables and the live display are all views of a ``History``. It works for
runs that are finished, still running, or killed. Of each step it keeps the figures; signals are dropped once read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from esper_core import EsperError, load_run, read_events
from esper_core.leyline import Metric, Problem, RunFolderError, Stage
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
from esper_core.leyline.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import SeedSignals

UNFINISHED: Final = "running or killed"
"""Status of a run without a final event, when it is unknown whether its process is alive."""

LARGEST: Final = 1e150
"""Squares of larger numbers overflow, so they have no standard deviation and no place in a chart."""

TWIN: Final = "twin"
"""Name of the control arm without growth."""

CAPACITY: Final = "capacity"
"""Start of the names of control arms that have from the start what another arm grew."""

EnvironmentKey = tuple[int, str, int]
"""Round, arm and environment seed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one environment. Losses are in nats; steps count from 0."""

    round: int
    arm: str
    seed: int
    """The environment's seed."""
    step: int
    train_loss: float
    """Mean over the training batches of the step."""
    validation_loss: float
    validation_metric: float
    parameters: int
    host_parameters: int
    fossils: int
    """Seeds kept so far."""
    living: int
    """Seeds still undecided when the step was measured."""
    reward: float | None
    """Reward of the action before this step, all terms together; None if nothing was rewarded."""
    action: str
    """Action chosen after the step."""


@dataclass(frozen=True, slots=True)
class SeedGain:
    """The latest measured gain of a seed, in nats, and the price that its gate requires."""

    step: int
    stage: Stage
    mean: float
    error: float
    """Standard error of the mean."""
    price: float | None
    examples: int


@dataclass(slots=True)
class SeedLife:
    """One seed: where it grew, its stage changes in order, and its latest measured gain."""

    round: int
    arm: str
    seed: int
    """The environment's seed."""
    slot: str
    seed_id: int
    """Counts the seeds of one episode from 0."""
    blueprint: str
    parameters: int
    changes: list[StageChanged] = field(default_factory=list)
    gain: SeedGain | None = None

    @property
    def environment(self) -> EnvironmentKey:
        """The environment that the seed grew in."""
        return self.round, self.arm, self.seed

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.changes[-1].now

    @property
    def reason(self) -> str:
        """Reason of the latest stage change."""
        return self.changes[-1].reason

    @property
    def kept(self) -> bool:
        """Whether the seed became part of its network."""
        return self.stage is Stage.FOSSILISED

    @property
    def ended(self) -> bool:
        """Whether the seed was kept or pruned."""
        return self.stage in (Stage.FOSSILISED, Stage.PRUNED)

    def as_row(self) -> dict[str, Any]:
        """Return the life as one flat row, for tables. The step of a stage that was never reached is None."""
        first: dict[Stage, int] = {}
        for change in self.changes:
            first.setdefault(change.now, change.step)
        gain = self.gain
        return {
            **{
                key: getattr(self, key)
                for key in ("round", "arm", "seed", "seed_id", "slot", "blueprint", "parameters")
            },
            **{stage.value: first.get(stage) for stage in Stage},
            "stage": self.stage.value,
            "reason": self.reason,
            "gain": None if gain is None else gain.mean,
            "gain_error": None if gain is None else gain.error,
            "gain_examples": None if gain is None else gain.examples,
            "gain_step": None if gain is None else gain.step,
            "gain_stage": None if gain is None else gain.stage.value,
            "price": None if gain is None else gain.price,
        }

    def stage_at(self, step: int) -> Stage | None:
        """Return the stage during ``step``, or None before germination. A change takes effect in the next step."""
        stage = None
        for change in self.changes:
            if change.step < step or (change.step == step and change.now is Stage.GERMINATED):
                stage = change.now
        return stage


class History:
    """Everything that the events of a run contain, as plain records.

    Args:
        name: Id of the run.
        keep_steps: Whether to keep a ``Step`` for every step. A live display runs for hours and needs none.
    """

    def __init__(self, name: str = "", *, keep_steps: bool = True) -> None:
        self.name = name
        self.started: RunStarted | None = None
        self.status = UNFINISHED
        self.reason = ""
        self.steps: list[Step] = []
        self.seeds: list[SeedLife] = []
        self.episodes: list[EpisodeFinished] = []
        self.governor: list[GovernorActed] = []
        self.lost: list[SeedLost] = []
        self.updates: list[UpdateFinished] = []
        self.slots: dict[str, tuple[str, ...]] = {}
        """By arm: the names of its slots, in the order of the host."""
        self.skipped: list[str] = []
        """What was not read: a torn last line, or events of a newer version."""
        self.latest: StepFinished | None = None
        self.running: dict[EnvironmentKey, None] = {}
        """The environments that are being trained."""
        self._keep_steps = keep_steps
        self.finished_steps = 0
        self._reached: dict[EnvironmentKey, int] = {}
        self._living: dict[EnvironmentKey, dict[int, SeedLife]] = {}

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that were trained, in the run's order; all announced arms if none has been trained yet."""
        announced = self.started.arms if self.started is not None else ()
        seen = {arm for _, arm, _ in self._reached} | {episode.arm for episode in self.episodes}
        return tuple(arm for arm in announced if arm in seen) or announced

    @property
    def rounds(self) -> list[int]:
        """The rounds that were trained, in order."""
        return sorted({round_ for round_, _, _ in self._reached})

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        known = None if self.started is None else self.started.metric
        return known if known is not None else Metric("metric")

    @property
    def steps_per_episode(self) -> int:
        """Decision steps of a full episode."""
        announced = 0 if self.started is None else self.started.steps
        return announced or max(self._reached.values(), default=1)

    @property
    def total_steps(self) -> int:
        """Steps of all environments of the run; 0 if it has not started."""
        if self.started is None:
            return 0
        # A capacity control is announced, but not trained if nothing grew.
        arms = self.arms if self.status == "done" else self.started.arms
        return self.started.rounds * self.started.environments * self.steps_per_episode * len(arms)

    @property
    def share_done(self) -> float:
        """The part of the announced training that is finished, from 0 to 1."""
        return min(1.0, self.finished_steps / self.total_steps) if self.total_steps > 0 else 0.0

    def steps_of(self, environment: EnvironmentKey) -> int:
        """Return how many steps of an environment's episode are known."""
        return self._reached.get(environment, 0)

    def metric_by_step(self, round_: int, arm: str) -> dict[int, list[float]]:
        """Return the validation metric of every environment of an arm, by step."""
        found: dict[int, list[float]] = {}
        for step in self.steps:
            if step.round == round_ and step.arm == arm:
                found.setdefault(step.step, []).append(step.validation_metric)
        return dict(sorted(found.items()))

    def mean_metric(self, arm: str) -> list[float]:
        """Return the arm's mean validation metric for each step, all rounds one after another."""
        found: dict[tuple[int, int], list[float]] = {}
        for step in self.steps:
            if step.arm == arm:
                found.setdefault((step.round, step.step), []).append(step.validation_metric)
        return [mean(values) for _, values in sorted(found.items())]

    def seeds_by_environment(self, round_: int, arm: str) -> dict[int, list[SeedLife]]:
        """Return the seeds of an arm in one round, by environment seed."""
        found: dict[int, list[SeedLife]] = {}
        for life in self.seeds:
            if (life.round, life.arm) == (round_, arm):
                found.setdefault(life.seed, []).append(life)
        return dict(sorted(found.items()))

    def running_seeds(self) -> Iterator[SeedLife]:
        """Yield the seeds of the environments that are being trained, those that ended included; the latest first."""
        rounds = {round_ for round_, _, _ in self.running}
        for life in reversed(self.seeds):
            if life.environment in self.running:
                yield life
            elif life.round not in rounds:
                return

    def add(self, event: Event) -> None:
        """Record one event."""
        match event:
            case RunStarted():
                self.started = event
            case StageChanged():
                self._add_stage(event)
            case StepFinished():
                self._add_step(event)
            case GovernorActed():
                self.governor.append(event)
            case SeedLost():
                self.lost.append(event)
            case EpisodeFinished():
                self._add_episode(event)
            case UpdateFinished():
                self.updates.append(event)
            case RunFinished():
                self.status, self.reason = event.status, event.reason

    def _add_stage(self, event: StageChanged) -> None:
        environment = event.round, event.arm, event.seed
        living = self._living.setdefault(environment, {})
        life = living.get(event.seed_id)
        if life is None:
            life = SeedLife(*environment, event.slot, event.seed_id, event.blueprint, event.parameters)
            living[event.seed_id] = life
            self.seeds.append(life)
        life.changes.append(event)
        life.parameters = event.parameters
        self._reached[environment] = max(self._reached.get(environment, 0), event.step + 1)

    def _add_episode(self, event: EpisodeFinished) -> None:
        environment = event.round, event.arm, event.seed
        self.episodes.append(event)
        self.running.pop(environment, None)
        self._reached[environment] = event.steps
        self.finished_steps += max(0, self.steps_per_episode - event.steps)

    def _add_step(self, event: StepFinished) -> None:
        environment = event.round, event.arm, event.seed
        self.latest = event
        self.running[environment] = None
        self.finished_steps += 1
        self._reached[environment] = max(self._reached.get(environment, 0), event.step + 1)
        self.slots.setdefault(event.arm, tuple(slot.name for slot in event.signals.slots))
        if self._keep_steps:
            self.steps.append(_step(event))
        living = self._living.get(environment, {})
        for slot in event.signals.slots:
            for seed in slot.seeds:
                _set_gain(living.values(), slot.name, seed, event.step)
        # Stage changes of a step come before the step itself, so ended seeds are dropped only now.
        for seed_id in [seed_id for seed_id, life in living.items() if life.ended]:
            del living[seed_id]


def read_history(run: Path) -> History:
    """Read the history of a run directory, whether the run is complete or not.

    Raises:
        EsperError: E420 if ``run`` is not a run directory, E421 if a line is not an event.
    """
    events = run / "events.jsonl"
    if not events.exists():
        hint = "Give the folder of a run, for example runs/20261121-101512-quiet-otter."
        raise EsperError(Problem("E420", f"{run} is not a run directory: it has no events.jsonl", hint=hint))
    history = History(_name(run))
    for event in read_events(events, tell=history.skipped.append):
        history.add(event)
    if history.status == UNFINISHED:
        history.status = _process_status(run) or UNFINISHED
    return history


def metric_of(results: Mapping[str, Any]) -> Metric:
    """Return the metric of the results in a summary."""
    metric = results["metric"]
    return Metric(metric["name"], metric["direction"], metric.get("unit", ""))


def is_control(arm: str) -> bool:
    """Return whether an arm is a control, in which nothing grows."""
    return arm in (TWIN, CAPACITY) or arm.startswith(f"{CAPACITY}-of-")


def is_usable(number: float) -> bool:
    """Return whether a number is finite and small enough that its square is, too."""
    return abs(number) < LARGEST


def mean(values: Sequence[float]) -> float:
    """Return the mean, or NaN where there is none: infinities of both signs, or a sum that is too large."""
    try:
        return fmean(values)
    except (OverflowError, ValueError):
        return math.nan


def _step(event: StepFinished) -> Step:
    signals = event.signals
    return Step(
        round=event.round,
        arm=event.arm,
        seed=event.seed,
        step=event.step,
        train_loss=signals.train_loss,
        validation_loss=signals.validation_loss,
        validation_metric=signals.validation_metric,
        parameters=signals.parameters,
        host_parameters=signals.host_parameters,
        fossils=signals.fossils,
        living=len(signals.seeds),
        reward=_sum(event.reward.values()) if event.reward else None,
        action=event.action,
    )


def _set_gain(living: Iterable[SeedLife], slot: str, seed: SeedSignals, step: int) -> None:
    """Store the gain measured in ``step`` on the seed that it belongs to, if it is finite."""
    gain = seed.gain
    if gain is None or gain.n < 1 or not (is_usable(gain.mean) and is_usable(gain.standard_error)):
        return
    # A seed germinated after this step's measurement was not part of it.
    measured = [life for life in living if life.changes[0].step < step]
    matching = [life for life in measured if (life.slot, life.blueprint) == (slot, seed.blueprint)]
    if matching:
        price = None if seed.opinion is None else seed.opinion.price
        known_price = price if price is not None and is_usable(price) else None
        matching[-1].gain = SeedGain(step, seed.stage, gain.mean, gain.standard_error, known_price, gain.n)


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        return math.nan


def _name(run: Path) -> str:
    try:
        return str(read_json(run / "manifest.json")["id"])
    except (OSError, RunFolderError, KeyError, TypeError):
        return run.resolve().name


def _process_status(run: Path) -> str | None:
    """Return ``running`` or ``died`` as the manifest tells it, or None if it does not."""
    try:
        status = load_run(run).status
    except EsperError:
        return None
    return status if status in ("running", "died") else None
