"""History of a run: one pass over ``events.jsonl`` that keeps plain records.

The report and ``esper watch`` are views of a ``History``. It works for runs that are finished, still running, or
killed. Of each step it keeps the metric; the rest is dropped once read, since runs have up to a million steps.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Final

from esper_core import EsperError
from esper_core.leyline import Metric, Problem
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
from esper_run import load_run, read_events
from esper_run.config.model import CAPACITY as CAPACITY, TWIN as TWIN
from esper_run.formats import is_usable as is_usable, metric_of as metric_of
from esper_run.runs.findings import is_control as is_control
from esper_watch.history_records import (
    EnvironmentKey as EnvironmentKey,
    Look,
    SeedGain as SeedGain,
    SeedLife as SeedLife,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import SeedSignals

UNFINISHED: Final = "running or killed"
"""Status of a run without a final event, when it is unknown whether its process is alive."""


class History:
    """Everything that the events of a run contain, as plain records. It can be fed while the run goes on.

    Args:
        name: Name of the run's folder: its id, unless the folder was renamed.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.started: RunStarted | None = None
        self.status = UNFINISHED
        self.reason = ""
        self.seeds: list[SeedLife] = []
        self.episodes: list[EpisodeFinished] = []
        self.governor: list[GovernorActed] = []
        self.lost: list[SeedLost] = []
        self.updates: list[UpdateFinished] = []
        self.slots: dict[str, tuple[str, ...]] = {}
        """By arm: the names of its slots, in the order of the host."""
        self.skipped: list[str] = []
        """What was not read: a torn last line, or events of a newer version."""
        self.running: dict[EnvironmentKey, None] = {}
        """The environments that are being trained."""
        self.finished_steps = 0
        self._reached: dict[EnvironmentKey, int] = {}
        self._living: dict[EnvironmentKey, dict[int, SeedLife]] = {}
        self._measured: dict[tuple[int, str], dict[int, tuple[list[int], array[float]]]] = {}
        """By round and arm, and by step: seeds of environments, and their validation metrics."""
        self._ended: dict[str, int] = {}
        self._grew: set[str] = set()

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
        announced = None if self.started is None else self.started.metric
        return announced if announced is not None else Metric("metric")

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
        arms = self.arms if self.status == "done" else [arm for phase in self.phases for arm in phase]
        return self.started.rounds * self.started.environments * self.steps_per_episode * len(arms)

    @property
    def phases(self) -> list[tuple[str, ...]]:
        """The arms of each phase of the run: first those that act and their twin, then the controls of what grew.

        A control is announced, but not trained if its arm ends without growth.
        """
        announced = () if self.started is None else self.started.arms
        controls = tuple(arm for arm in announced if is_control(arm) and arm != TWIN)
        acting = tuple(arm for arm in announced if arm not in controls)
        growing = [arm for arm in acting if arm != TWIN]
        trained = tuple(
            control
            for control in controls
            if any(self._may_grow(arm) for arm in growing if control in (CAPACITY, f"{CAPACITY}-of-{arm}"))
        )
        return [phase for phase in (acting, trained) if phase]

    def _may_grow(self, arm: str) -> bool:
        """Return whether an arm grew, or still trains."""
        episodes = 0 if self.started is None else self.started.rounds * self.started.environments
        return arm in self._grew or self._ended.get(arm, 0) < episodes

    @property
    def share_done(self) -> float:
        """The part of the announced training that is finished, from 0 to 1."""
        return min(1.0, self.finished_steps / self.total_steps) if self.total_steps > 0 else 0.0

    def steps_of(self, environment: EnvironmentKey) -> int:
        """Return how many steps of an environment's episode are known."""
        return self._reached.get(environment, 0)

    def metric_by_step(self, round_: int, arm: str) -> dict[int, Sequence[float]]:
        """Return the validation metric of every environment of an arm, by step."""
        return {step: metrics for step, (_, metrics) in sorted(self._measured.get((round_, arm), {}).items())}

    def mean_metric(self, arm: str) -> list[float]:
        """Return the arm's mean validation metric for each step, all rounds one after another."""
        rounds = sorted(round_ for round_, measured_arm in self._measured if measured_arm == arm)
        return [
            _total(values) / len(values) for round_ in rounds for values in self.metric_by_step(round_, arm).values()
        ]

    def courses(self, round_: int, arm: str, most: int) -> dict[int, dict[int, float]]:
        """Return the validation metric by step, for at most ``most`` environments, by their RNG seed."""
        measured = sorted(self._measured.get((round_, arm), {}).items())
        courses: dict[int, dict[int, float]] = {seed: {} for seed in self.environments(round_, arm)[:most]}
        for step, (seeds, metrics) in measured:
            for seed, metric in zip(seeds, metrics, strict=True):
                if seed in courses:
                    courses[seed][step] = metric
        return courses

    def environments(self, round_: int, arm: str) -> list[int]:
        """Return the RNG seeds of an arm's environments in a round."""
        return sorted(seed for reached_round, name, seed in self._reached if (reached_round, name) == (round_, arm))

    def latest_pairs(self, arm: str, other: str) -> tuple[int, list[tuple[float, float]]]:
        """Return the latest step that all environments of both arms finished, and their metrics in pairs.

        Without such a step: −1 and no pairs.
        """
        rounds = [round_ for round_ in self.rounds if {(round_, arm), (round_, other)} <= self._measured.keys()]
        if not rounds:
            return -1, []
        arm_steps, other_steps = (self._measured[rounds[-1], name] for name in (arm, other))
        most = max(len(seeds) for seeds, _ in arm_steps.values())
        for step in sorted(arm_steps.keys() & other_steps.keys(), reverse=True):
            values, other_values = (dict(zip(*steps[step], strict=True)) for steps in (arm_steps, other_steps))
            if len(pairs := [(values[seed], other_values[seed]) for seed in values if seed in other_values]) == most:
                return step, pairs
        return -1, []

    def seeds_by_environment(self, round_: int, arm: str) -> dict[int, list[SeedLife]]:
        """Return the seeds of an arm in one round, by environment seed."""
        lives: dict[int, list[SeedLife]] = {}
        for life in self.seeds:
            if (life.round, life.arm) == (round_, arm):
                lives.setdefault(life.seed, []).append(life)
        return dict(sorted(lives.items()))

    @property
    def gains_in(self) -> str:
        """The unit of gains and prices."""
        return "nats" if self.started is None else self.started.gains_in

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
        self._ended[event.arm] = self._ended.get(event.arm, 0) + 1
        if event.fossils:
            self._grew.add(event.arm)
        self._reached[environment] = event.steps
        self.finished_steps += max(0, self.steps_per_episode - event.steps)

    def _add_step(self, event: StepFinished) -> None:
        environment = event.round, event.arm, event.seed
        self.running[environment] = None
        self.finished_steps += 1
        self._reached[environment] = max(self._reached.get(environment, 0), event.step + 1)
        if event.arm not in self.slots:
            self.slots[event.arm] = tuple(slot.name for slot in event.signals.slots)
        by_step = self._measured.setdefault((event.round, event.arm), {})
        seeds, metrics = by_step.setdefault(event.step, ([], array("d")))
        seeds.append(event.seed)
        metrics.append(event.signals.validation_metric)
        living = self._living.get(environment)
        if not living:
            return
        for slot in event.signals.slots:
            for seed in slot.seeds:
                _measure(living.values(), slot.name, seed, event.step)
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
    history = History(run.resolve().name)
    for event in read_events(events, tell=history.skipped.append):
        history.add(event)
    if history.status == UNFINISHED:
        history.status = unfinished_status(run)
    return history


def _measure(living: Iterable[SeedLife], slot: str, seed: SeedSignals, step: int) -> None:
    """Store what was measured of a seed in ``step`` on the seed that it belongs to."""
    # A seed germinated after this step's measurement was not part of it.
    measured = [life for life in living if life.changes[0].step < step]
    matching = [life for life in measured if (life.slot, life.blueprint) == (slot, seed.blueprint)]
    if not matching:
        return
    gain, opinion = seed.gain, seed.opinion
    price = seed.price if seed.price is not None and is_usable(seed.price) else None
    mean_gain = math.nan
    if gain is not None and gain.n > 0 and is_usable(gain.mean) and is_usable(gain.standard_error):
        mean_gain = gain.mean
        matching[-1].gain = SeedGain(step, seed.stage, gain.mean, gain.standard_error, price, gain.n)
    evidence = None if opinion is None else opinion.evidence
    lower, upper = (math.nan, math.nan) if evidence is None else (evidence.lower, evidence.upper)
    opens = opinion is not None and opinion.opens
    price = math.nan if price is None else price
    matching[-1].looks.add(Look(step, seed.alpha, mean_gain, lower, upper, price, opens))


def unfinished_status(run: Path) -> str:
    """Return the status of a run without a final event: ``running`` or ``died`` if its manifest tells."""
    try:
        status = load_run(run).status
    except EsperError:
        return UNFINISHED
    return status if status in ("running", "died") else UNFINISHED


def _total(values: Iterable[float]) -> float:
    """Return the sum, or NaN where there is none: infinities of both signs, or numbers that are too large."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan
