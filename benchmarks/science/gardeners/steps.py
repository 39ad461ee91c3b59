"""Is it better to grow than to have grown where both sides were tuned? Each learns by steps of the size that suits it.

The plan of the table grows the same network in every episode, so that what it grew can be trained from the start at any
size of steps. The size is chosen on other seeds, by validation; what is shown is of the seeds that all are judged on.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.gardeners.judging import interval
from benchmarks.science.gardeners.live import FIRST_SEED, cells, plan_to, played
from esper_tasks.growbench.puzzles import LEARNING_RATE, ROOM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.science.gardeners.live import Cell
    from esper_tasks.growbench.plans import Node

SIZES: Final = (LEARNING_RATE * 0.3, LEARNING_RATE, LEARNING_RATE * 3.0, LEARNING_RATE * 10.0)
"""Of a step: the table's own is the second."""

FIRST_TO_TUNE_ON: Final = 80_000
TO_TUNE_ON: Final = 12

UNSTOPPED: Final = {"governor": {"rollbacks": 100_000}}
"""Else a side that collapses at some size would end the run, and nothing were known of the others."""

SIDES: Final = {"plan": "grown", "capacity": "trained from the start", "twin": "never grown"}
"""Arms of a run, and what they are called here."""


@dataclass(frozen=True, slots=True)
class Walk:
    """One cell at one size of steps. to_tune: on the seeds by which a size is chosen, not on those that are judged."""

    cell: Cell
    best: Node
    size: float
    to_tune: bool

    @property
    def key(self) -> list[Any]:
        """By which it is found again."""
        return [self.cell.name, self.size, self.to_tune]


def walks(best: Node, *, quick: bool) -> list[Walk]:
    """All that there are: on plain data, where something is missing and growth pays."""
    plain = [cell for cell in cells(quick=quick) if cell.name.startswith("plain")]
    return [Walk(cell, best, size, part) for cell in plain for size in SIZES for part in (True, False)]


def walked(walk: Walk) -> dict[str, Any]:
    """Run one; by side and seed what came of it. A network that collapses goes back as often as it has to."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    cell = walk.cell
    arms = {"plan": {"use": "policies/schedule", "settings": {"plan": plan_to(walk.best, cell.late)}}}
    first, count = (FIRST_TO_TUNE_ON, min(TO_TUNE_ON, cell.seeds)) if walk.to_tune else (FIRST_SEED, cell.seeds)
    order = [*ROOM["early"], *ROOM["late"]]
    steps = {"optimizer": {whose: {"learning_rate": walk.size} for whose in ("host", "seed")}}
    episodes, _, _ = played(cell.config(arms, first, order, environments=count, **steps, **UNSTOPPED))
    told = {
        SIDES[arm]: [{"seed": one["seed"], "validation": one["validation"], "test": one["test"]} for one in own]
        for arm, own in episodes.items()
    }
    return {"key": walk.key, "sides": told}


def compared(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each cell the size that suits each side, and what it comes to; and who is better, both tuned or not."""
    found = {tuple(line["key"]): line["sides"] for line in lines}
    names = list(dict.fromkeys(cell for cell, _, _ in found))
    return [{"cell": name, **_compared(name, found)} for name in names]


def _compared(name: str, found: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> dict[str, Any]:
    best = {side: max(SIZES, key=lambda size: _mean(found[name, size, True][side])) for side in SIDES.values()}
    tuned = {side: _by_seed(found[name, size, False][side]) for side, size in best.items()}
    untuned = {side: _by_seed(found[name, LEARNING_RATE, False][side]) for side in SIDES.values()}
    return {
        "sizes": best,
        "by_size": {
            side: {f"{size:g}": _mean(found[name, size, True][side]) for size in SIZES} for side in SIDES.values()
        },
        "test": {side: sum(scores.values()) / len(scores) for side, scores in tuned.items()},
        "tuned": dict(_pairs(tuned)),
        "untuned": dict(_pairs(untuned)),
    }


def _pairs(scores: Mapping[str, Mapping[int, float]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is grown less each of the others, seed by seed, in points."""
    grown, *others = SIDES.values()
    for other in others:
        yield other, interval([100 * (score - scores[other][seed]) for seed, score in scores[grown].items()])


def _by_seed(episodes: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {one["seed"]: one["test"] for one in episodes}


def _mean(episodes: Sequence[Mapping[str, Any]]) -> float:
    return math.fsum(one["validation"] for one in episodes) / len(episodes)
