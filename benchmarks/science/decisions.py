"""Measure which blocks growth keeps: those that a network needs, and those that do not pay.

``--train`` trains what is still missing and appends it to ``decisions.jsonl``; a killed command goes on where it was.
Without it, the records are summarised.

*Static* records train every architecture of a cell at the cell's rate on ten RNG seeds. They say what is true: the gain
of a block is the paired difference of test accuracies, in points, with and without it, beside those kept before it.
*Growth* records are trainings by the defaults of ``esper run`` (but without a twin, which decides nothing) on other
RNG seeds. No seed of the study is used. Criteria, fixed before the first seed was trained:

1. A block is needed where the lower end of its gain is at least 5 points and the gain exceeds the price by 4.5 standard
   errors of one look. It is kept in at least 95 % of the runs, and in 90 % of those of each cell.
2. A block is wrong where the upper end of its gain lies half a point or more below its price. At most 5 % of the runs
   in which some block is wrong keep one.
3. ``sources``: the slot in front of the block is tried in every run.
4. ``pointwise``: with slots and blueprints in the reverse order, the share of runs that keep the needed block differs
   by at most 5 points.
5. Previews of what is not kept take at most 40 % of the operations of runs that keep nothing, and at most 10 % where
   the episode has 240 steps.

Added after 160 trainings, since ``images`` missed criterion 1: trainings in which nothing but the needed block is
tried, from the first step to the last. They show how many of the misses gates would cause with any policy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from benchmarks.headline.cells import CELLS, HOST, Setting, compose
from benchmarks.headline.trainings import EsperSettings, Job, Loop, build, esper_config, operations_of
from esper_core.leyline import GovernorStop
from esper_core.leyline.constants import SEED_IN_DOUBLINGS
from esper_core.leyline.events import StageChanged
from esper_core.leyline.signals import CALM
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.loop import run_study
from esper_core.trainer.measurements import evaluate
from esper_core.trainer.study_position import StudyPosition
from esper_run.app.compose import StudyContext
from esper_run.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.headline.cells import Cell, Part
    from esper_core.leyline.events import Event

RECORDS: Final = Path(__file__).parent / "decisions.jsonl"
STATIC_SEEDS: Final = range(7100, 7110)
GROWN_SEED: Final = 7200
FIRST: Final = 4
"""Growing runs of each place before the static ones."""
POINTS: Final = 100.0
NEEDED, LOOKS, WRONG = 5.0, 4.5, 0.5


@dataclass(frozen=True)
class Place:
    """A cell at a rate, and how many trainings grow in it.

    Attributes:
        steps: Decision steps of an episode; the batches of the whole stay the same.
        reversed: Whether the configuration names slots and blueprints in the reverse order.
        alone: The slot and the block that are tried alone, for as long as the gates ask.
    """

    cell: str
    rate: float
    runs: int
    steps: int = 40
    reversed: bool = False
    alone: str = ""

    def __str__(self) -> str:
        extra = (" reversed" if self.reversed else "") + (f" {self.steps} steps" if self.steps != 40 else "")
        extra += f" {self.alone} alone" if self.alone else ""
        return f"{self.cell} {self.rate:g}{extra}"


PLACES: Final = (
    Place("pointwise", 0.03, 40),
    Place("images", 0.03, 30),
    Place("pointwise", 0.01, 30),
    Place("images", 0.01, 30),
    Place("narrow-shuffled", 0.01, 30),
    Place("wide", 0.03, 30),
    Place("wide-shuffled", 0.03, 30),
    Place("pointwise-shuffled", 0.03, 30),
    Place("sources", 0.03, 10),
    Place("pointwise", 0.03, 40, reversed=True),
    Place("narrow-shuffled", 0.01, 8, steps=240),
    Place("wide-shuffled", 0.03, 8, steps=240),
    Place("images", 0.03, 20, alone="early=conv_light"),
    Place("images", 0.01, 20, alone="early=conv_light"),
)


# --- trainings


def missing(records: Sequence[dict[str, Any]]) -> Iterator[tuple[Place, int, bool]]:
    """Yield the trainings without a record: place, RNG seed, and whether it grows. A few of each place come first."""
    done = {(record["place"], record["seed"]) for record in records}
    grown = [
        (place, GROWN_SEED + number, True)
        for number in range(max(place.runs for place in PLACES))
        for place in PLACES
        if number < place.runs
    ]
    static = [
        (place, seed, False)
        for seed in STATIC_SEEDS
        for place in PLACES
        if not (place.reversed or place.alone) and place.steps == CELLS[place.cell].steps
    ]
    first = FIRST * len(PLACES)
    order = [*grown[:first], *static, *grown[first:]]
    yield from ((place, seed, grows) for place, seed, grows in order if (str(place), seed) not in done)


def train_static(place: Place, seed: int) -> dict[str, Any]:
    """Train every architecture of a cell on one RNG seed; return accuracies on the test, and errors of one look."""
    cell = CELLS[place.cell]
    (part,) = cell.parts
    recipe = compose(cell, part, seed, {}).recipe
    accuracies, scores = {}, {}
    for architecture in part.architectures():
        model = build(recipe, architecture, seed)
        loop = Loop(recipe, model, Setting(place.rate, "cosine"), seed, operations_of(recipe, architecture))
        loop.train(cell.steps, cell.steps * cell.batches, ())
        accuracies[architecture] = POINTS * float(evaluate(model, recipe.task, recipe.data["test"]).means[1])
        scores[architecture] = evaluate(model, recipe.task, recipe.data["validation"], evidence="metric").evidence
    errors = {
        architecture: POINTS * float((score - scores[HOST]).std() / math.sqrt(len(score)))
        for architecture, score in scores.items()
        if architecture != HOST
    }
    sizes = {architecture: operations_of(recipe, architecture) for architecture in accuracies}
    return {"accuracies": accuracies, "errors": errors, "operations": sizes}


def train_grown(place: Place, seed: int) -> dict[str, Any]:
    """Grow a network by default settings; return what it tried and kept, and the share of its previews."""
    cell = CELLS[place.cell]
    (part,) = cell.parts
    if place.reversed:
        slots = {slot: names[::-1] for slot, names in reversed(list(part.slots.items()))}
        part = replace(part, slots=slots)
    events, total = _episode(cell, part, place, seed, _schedule(place.alone) if place.alone else "heuristic")
    births = {event.seed_id: event for event in events if event.was is None}
    kept = [event for event in events if event.now == "fossilised"]
    blended = [event for event in events if event.now == "blending"]
    record = {
        "tried": [_name(event) for event in births.values()],
        "blended": [event.step - births[event.seed_id].step for event in blended],
        "kept": [_name(event) for event in kept],
        "operations": total,
    }
    if not kept:  # then all that a training without growth would not have spent was spent on previews
        record["previews"] = 1 - _episode(cell, part, place, seed, "static")[1] / total
    return record


def _name(event: StageChanged) -> str:
    return f"{event.slot}={event.blueprint.rpartition('/')[2]}"


class _Changes:
    """Listener: keep the changes of stages."""

    def __init__(self) -> None:
        self.events: list[StageChanged] = []

    def hear(self, event: Event) -> None:
        if isinstance(event, StageChanged):
            self.events.append(event)

    def settle(self) -> None:
        pass


def _schedule(block: str) -> dict[str, Any]:
    """Return the policy that tries nothing but a block, and moves it on as soon as its gates are open."""
    slot, blueprint = block.split("=")
    ops = ({"op": "germinate", "blueprint": blueprint}, {"op": "advance"}, {"op": "fossilise"})
    return {
        "use": "schedule",
        "settings": {"plan": [{"step": step, "slot": slot, **op} for step, op in enumerate(ops)]},
    }


def _episode(
    cell: Cell, part: Part, place: Place, seed: int, policy: str | dict[str, Any]
) -> tuple[list[StageChanged], int]:
    cell = replace(cell, steps=place.steps, batches=cell.batches * cell.steps // place.steps)
    job = Job(cell.name, part.name, "esper", "", Setting(place.rate, "cosine"), seed)
    settings = EsperSettings({"policy": policy, "twin": False}, least_steps=place.steps)
    composition = compose(cell, part, seed, esper_config(cell, part, job, settings))
    changes = _Changes()
    study = composition.study(StudyContext(Bus([cast("Any", changes)]), Clock(), lambda snapshot: CALM))
    try:
        run_study(StudyPosition(study))
    except GovernorStop as stop:
        sys.stderr.write(f"{place}, RNG seed {seed}: {stop}\n")
    return changes.events, sum(int(environment.flops or 0) for environment in study.pool.environments)


def train() -> None:
    """Train what is missing, and append each record."""
    torch.set_num_threads(1)
    for place, seed, grows in list(missing(read())):
        result = (train_grown if grows else train_static)(place, seed)
        with RECORDS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"place": str(place), "seed": seed, "grows": grows, **result}) + "\n")


def read() -> list[dict[str, Any]]:
    """Return all records."""
    if not RECORDS.exists():
        return []
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


# --- what the records say


@dataclass(frozen=True)
class Truth:
    """The gain of a block beside others, in points, with its interval; its price, and the error of one look."""

    mean: float
    lower: float
    upper: float
    price: float
    error: float

    @property
    def is_needed(self) -> bool:
        """Whether the block is worth far more than its price, by criterion 1."""
        return self.lower >= NEEDED and self.mean - self.price >= LOOKS * self.error

    @property
    def is_wrong(self) -> bool:
        """Whether the block is not worth its price, by criterion 2."""
        return self.upper <= self.price - WRONG


def truth_of(statics: Sequence[dict[str, Any]], block: str, beside: Sequence[str] = ()) -> Truth:
    """Return what static networks say of a block beside others."""
    part = "+".join(sorted(beside)) or HOST
    whole = "+".join(sorted([*beside, block]))
    names = {"+".join(sorted(name.split("+"))): name for name in statics[0]["accuracies"]}
    part, whole = names[part], names[whole]
    gains = [record["accuracies"][whole] - record["accuracies"][part] for record in statics]
    interval = mean_interval(gains)
    assert interval.low is not None
    assert interval.high is not None
    sizes = statics[0]["operations"]
    price = math.log2(sizes[whole] / sizes[part]) + SEED_IN_DOUBLINGS
    error = fmean(record["errors"][whole] for record in statics)
    return Truth(interval.mean, interval.low, interval.high, price, error)


def share(hits: int, runs: int) -> str:
    """Return a share with its 95 % interval by Wilson."""
    if runs == 0:
        return "no runs"
    rate, z = hits / runs, 1.96
    middle, spread = rate + z * z / (2 * runs), z * math.sqrt(rate * (1 - rate) / runs + z * z / (4 * runs * runs))
    low, high = (POINTS * (middle + way * spread) / (1 + z * z / runs) for way in (-1, 1))
    return f"{hits} of {runs} ({max(low, 0.0):.0f} to {high:.0f} %)"


def summarise(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the summary."""
    of_place = defaultdict(list)
    for record in records:
        of_place[record["place"]].append(record)
    totals: dict[str, list[bool]] = defaultdict(list)
    for place in PLACES:
        statics = [record for record in of_place[str(Place(place.cell, place.rate, 0))] if not record["grows"]]
        grown = [record for record in of_place[str(place)] if record["grows"]]
        if len(statics) < 2:
            continue
        yield f"{place}: {len(grown)} runs"
        blocks = [name for name in statics[0]["accuracies"] if "=" in name and "+" not in name]
        for block in blocks:
            truth = truth_of(statics, block)
            word = "needed" if truth.is_needed else "wrong" if truth.is_wrong else ""
            gain = f"{truth.mean:+.1f} ({truth.lower:.1f} to {truth.upper:.1f}), price {truth.price:.1f}"
            kept = sum(block in record["kept"] for record in grown)
            tried = sum(block in record["tried"] for record in grown)
            error = f"error of a look {truth.error:.1f}"
            yield f"  {block:20} {gain}, {error}: tried in {tried}, kept in {kept} {word}".rstrip()
            if truth.is_needed and place.steps == 40 and not place.alone:
                totals["needed"] += [block in record["kept"] for record in grown]
        if place.alone:
            steps = [record["blended"][0] for record in grown if record["blended"]]
            middle = f", after {min(steps)} to {max(steps)} steps, {median(steps):g} in the median" if steps else ""
            yield f"  blended in {len(steps)} of {len(grown)} runs{middle}"
            continue
        wrong = [_keeps_wrong(statics, record["kept"]) for record in grown]
        if any(truth_of(statics, block).is_wrong for block in blocks):
            totals["wrong"] += wrong
        yield f"  kept what does not pay: {share(sum(wrong), len(wrong))}"
        previews = [record["previews"] for record in grown if "previews" in record]
        if len(previews) > 1:
            interval = mean_interval(previews, share=True)
            assert interval.low is not None
            assert interval.high is not None
            mean, low, high = (POINTS * value for value in (interval.mean, interval.low, interval.high))
            yield f"  previews where nothing was kept, {len(previews)} runs: {mean:.0f} % ({low:.0f} to {high:.0f})"
    for name, hits in totals.items():
        yield f"{name}: {share(sum(hits), len(hits))}"


def _keeps_wrong(statics: Sequence[dict[str, Any]], kept: Sequence[str]) -> bool:
    """Return whether one of the blocks, in the order in which they were kept, is wrong beside those before it."""
    return any(truth_of(statics, block, kept[:number]).is_wrong for number, block in enumerate(kept))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or summarise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.decisions", description=__doc__)
    parser.add_argument("--train", action="store_true", help="Train what has no record; takes hours on one core.")
    if parser.parse_args(arguments).train:
        train()
    print("\n".join(summarise(read())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
