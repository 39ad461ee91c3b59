"""What of a run does its report tell? All that its events and its summary say, as far as a drawing needs it.

Events are read one by one and let go: of a step there remain some numbers, not its signals. A run that goes on, or was
killed, has no summary, and is told by its events alone.
"""

from __future__ import annotations

from collections import Counter
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
    SeedLost,
    StageChanged,
    StepFinished,
    UpdateFinished,
)
from esper_core.leyline.files import read_bytes, read_json
from esper_watch.report.wording import UNKNOWN, finite
from esper_watch.standing import standing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import SeedSignals

LARGEST_TEXT = 100_000
"""Characters of a configuration that a page shows."""

COMPARED: Final = {"a", "b", "difference", "ci_low", "ci_high", "p", "n", "verdict", "paired"}
"""What is read of a comparison."""

FIGURES: Final = ("difference", "ci_low", "ci_high", "p", "p_holm")
"""What of it is a number, or unknown."""

UNENDED: Final = "did not end"
"""What is told of a run whose events have no end, where nobody knows whether it still runs."""

Home = tuple[int, str, int]
"""Round, arm and environment seed."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What was seen last of a seed's gain: nats, their standard error, the stage then, and the price it had to pay."""

    step: int
    stage: Stage
    mean: float
    error: float
    price: float | None
    examples: int


@dataclass(slots=True)
class SeedLife:
    """One seed: whose it is, its stages with the step at which each began and why, and what was seen of its gain."""

    home: Home
    slot: str
    seed_id: int
    blueprint: str
    parameters: int
    stages: list[tuple[int, Stage, str]] = field(default_factory=list)
    shown: Shown | None = None

    @property
    def stage(self) -> Stage:
        """Where it stands."""
        return self.stages[-1][1]

    @property
    def kept(self) -> bool:
        """Whether it became part of its network."""
        return self.stage is Stage.FOSSILIZED

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.stage in (Stage.FOSSILIZED, Stage.PRUNED)


@dataclass(slots=True)
class Record:
    """A run as its report tells it."""

    name: str
    started: RunStarted | None = None
    status: str = UNENDED
    """As its events tell it; of one whose events have no end: ``running`` or ``died``, where its manifest tells."""
    reason: str = ""
    curves: dict[tuple[int, str], dict[int, dict[int, float]]] = field(default_factory=dict)
    """Of each round and arm, for each step: the validation metric by environment seed."""
    lives: list[SeedLife] = field(default_factory=list)
    episodes: list[EpisodeFinished] = field(default_factory=list)
    governed: list[GovernorActed] = field(default_factory=list)
    warned: Counter[str] = field(default_factory=Counter)
    """Warnings of the governor, by arm."""
    lost: list[SeedLost] = field(default_factory=list)
    updates: list[UpdateFinished] = field(default_factory=list)
    slots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each arm the slots, in the order of its host."""
    left_out: list[str] = field(default_factory=list)
    """What of the events is not told here: a torn last line, what a newer version added."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    summary_fault: str = ""
    """What is wrong with summary.json, where there is none that can be read."""
    config: str = ""
    can_go_on: bool = False
    """Whether there is a checkpoint to go on from."""
    _living: dict[Home, dict[int, SeedLife]] = field(default_factory=dict)
    _heard: dict[Home, int] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[str, ...]:
        """Those that are known to have been trained, in the run's order."""
        known = self.started.arms if self.started is not None else ()
        seen = {arm for _, arm in self.curves} | {one.arm for one in self.episodes}
        return tuple(arm for arm in known if arm in seen) or known

    @property
    def rounds(self) -> list[int]:
        """Those of which something is known."""
        return sorted({round_ for round_, _ in self.curves})

    @property
    def metric(self) -> Mapping[str, Any]:
        """Name, direction and unit of what the task is judged by."""
        if self.summary is not None:
            told: Mapping[str, Any] = self.summary["results"]["metric"]
            return told
        known = None if self.started is None else self.started.metric
        if known is None:
            return {"name": "metric", "direction": "up", "unit": ""}
        return {"name": known.name, "direction": known.direction, "unit": known.unit}

    @property
    def comparisons(self) -> Sequence[Mapping[str, Any]]:
        """What the run's end shows; nothing before it."""
        told: Sequence[Mapping[str, Any]] = () if self.summary is None else self.summary["results"]["comparisons"]
        return told

    @property
    def steps(self) -> int:
        """Decision steps of an episode."""
        told = 0 if self.started is None else self.started.steps
        return told or 1 + max((step for curve in self.curves.values() for step in curve), default=0)

    @property
    def share_done(self) -> float:
        """How much of what was announced was trained, from 0 to 1."""
        if self.started is None:
            return 0.0
        # A control that follows where something grew is announced, and may have had nothing to do.
        arms = self.arms if self.status == "done" else self.started.arms
        whole = self.started.rounds * self.started.environments * self.steps * len(arms)
        heard = sum(len(values) for curve in self.curves.values() for values in curve.values())
        spared = sum(max(0, self.steps - one.steps) for one in self.episodes)
        return min(1.0, (heard + spared) / whole) if whole else 0.0

    def mean_curve(self, round_: int, arm: str) -> list[tuple[int, float]]:
        """The mean of the validation metric over environments, step by step."""
        curve = sorted(self.curves.get((round_, arm), {}).items())
        return [(step, fmean(values.values())) for step, values in curve]

    def steps_of(self, home: Home) -> int:
        """How many decision steps are known of one environment's episode."""
        ended = [one.steps for one in self.episodes if (one.round, one.arm, one.seed) == home]
        return ended[0] if ended else self._heard.get(home, 0)

    def lives_of(self, round_: int, arm: str) -> dict[int, list[SeedLife]]:
        """The lives in each environment of an arm, by environment seed."""
        found: dict[int, list[SeedLife]] = {}
        for life in self.lives:
            if life.home[:2] == (round_, arm):
                found.setdefault(life.home[2], []).append(life)
        return dict(sorted(found.items()))

    def hear(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, StageChanged):
            self._note_stage(event)
        elif isinstance(event, StepFinished):
            self._note_step(event)
        elif isinstance(event, GovernorActed):
            if event.act == "warn":
                self.warned[event.arm] += 1
            else:
                self.governed.append(event)
        elif isinstance(event, SeedLost):
            self.lost.append(event)
        elif isinstance(event, EpisodeFinished):
            self.episodes.append(event)
        elif isinstance(event, UpdateFinished):
            self.updates.append(event)
        elif isinstance(event, RunFinished):
            self.status, self.reason = event.status, event.reason

    def _note_stage(self, event: StageChanged) -> None:
        home = event.round, event.arm, event.seed
        living = self._living.setdefault(home, {})
        life = living.get(event.seed_id)
        if life is None:
            life = SeedLife(home, event.slot, event.seed_id, event.blueprint, event.parameters)
            living[event.seed_id] = life
            self.lives.append(life)
        life.stages.append((event.step, event.now, event.reason))

    def _note_step(self, event: StepFinished) -> None:
        home = event.round, event.arm, event.seed
        curve = self.curves.setdefault(home[:2], {})
        curve.setdefault(event.step, {})[event.seed] = event.signals.validation_metric
        self._heard[home] = max(self._heard.get(home, 0), event.step + 1)
        self.slots.setdefault(event.arm, tuple(slot.name for slot in event.signals.slots))
        for slot in event.signals.slots:
            for seed in slot.seeds:
                self._note_gain(home, slot.name, seed, event.step)
        # What was decided on a step is told before the step is, so its seeds are let go only now.
        living = self._living.get(home, {})
        for number in [number for number, life in living.items() if life.over]:
            del living[number]

    def _note_gain(self, home: Home, slot: str, seed: SeedSignals, step: int) -> None:
        if seed.gain is None or finite(seed.gain.mean) is None or finite(seed.gain.standard_error) is None:
            return
        here = self._living.get(home, {}).values()
        there = [life for life in here if life.stages[0][0] < step]  # who was born on this step was not measured in it
        own = [life for life in there if (life.slot, life.blueprint) == (slot, seed.blueprint)]
        if own:
            price = None if seed.opinion is None else finite(seed.opinion.price)
            gain = seed.gain
            own[-1].shown = Shown(step, seed.stage, gain.mean, gain.standard_error, price, gain.n)


def read_record(run: Path) -> Record:
    """The record of a run directory, whole or torn.

    EsperError where it is none, where its events are no file, or where a line of them is no event.
    """
    events = run / "events.jsonl"
    if not events.exists():
        hint = "Give the folder of a run, for example runs/20261121-101512-quiet-otter."
        raise EsperError(Problem("E420", f"{run} is no run directory: it has no events.jsonl", hint=hint))
    manifest = _json_in(run / "manifest.json") or {}
    record = Record(str(manifest.get("id") or run.resolve().name), manifest=manifest)
    for event in read_events(events, tell=record.left_out.append):
        record.hear(event)
    if record.status == UNENDED:
        record.status = standing(run) or UNENDED
    record.summary = _summary_in(run / "summary.json")
    if record.summary is None:
        record.summary_fault = "cannot be read" if (run / "summary.json").exists() else "is missing"
    record.can_go_on = (run / "latest").exists()
    record.config = _text_in(run / "config.yaml")
    return record


def _summary_in(path: Path) -> Mapping[str, Any] | None:
    """The summary, where there is a whole one; what in it is no number where one belongs is unknown."""
    known = _json_in(path)
    if known is None or not isinstance(known.get("results"), dict) or not isinstance(known.get("timing"), dict):
        return None
    metric, compared = known["results"].get("metric"), known["results"].get("comparisons")
    if not isinstance(metric, dict) or not {"name", "direction"} <= metric.keys() or not isinstance(compared, list):
        return None
    if not all(isinstance(one, dict) and one.keys() >= COMPARED for one in compared):
        return None
    results = {"metric": metric, "comparisons": [_comparison(one) for one in compared]}
    return {**known, "results": {**known["results"], **results}}


def _comparison(told: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison as it is read here: names are texts, and figures are finite numbers or None."""
    texts = {name: str(told[name]) for name in ("a", "b", "verdict")}
    figures = {name: finite(told.get(name)) for name in FIGURES}
    why = told.get("why")
    n = finite(told["n"])
    return {
        **texts,
        **figures,
        "n": UNKNOWN if n is None else round(n),
        "why": why if isinstance(why, str) else None,
        "paired": told["paired"] is True,
    }


def _json_in(path: Path) -> dict[str, Any] | None:
    try:
        known = read_json(path)
    except (OSError, RunFolderError):
        return None
    return known if isinstance(known, dict) else None


def _text_in(path: Path) -> str:
    """The text of a file, as much of it as a page shows; empty where there is no file that can be read."""
    try:
        data = read_bytes(path, 4 * LARGEST_TEXT)  # no character takes more than 4 bytes
    except OSError:
        return ""
    return data.decode(errors="replace")[:LARGEST_TEXT]
