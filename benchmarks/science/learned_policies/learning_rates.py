"""Growing against static controls, each with its own best learning rate.

For each RNG seed, what an arm grew at its best learning rate is put into the host from the start and trained at every
learning rate as well. Learning rates are chosen on other RNG seeds, by validation.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.learned_policies.runs import prepared
from esper_core.leyline import CALM
from esper_core.plugins.isolation import output_to_stderr
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.loop import run_study
from esper_core.trainer.study_position import StudyPosition
from esper_run.app.compose import StudyContext
from esper_run.app.runtime import one_thread
from esper_study.growbench.puzzles import LEARNING_RATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.science.learned_policies.runs import Cell
    from esper_core.leyline.events import EpisodeFinished

    Episodes = Sequence[Mapping[str, Any]]

RATES: Final = (LEARNING_RATE * 0.3, LEARNING_RATE, LEARNING_RATE * 3.0, LEARNING_RATE * 10.0)
"""The second is that of the table."""

FIRST_SEED: Final = 90_000
SEEDS: Final = 20
FIRST_TUNING_SEED: Final = 80_000
TUNING_SEEDS: Final = 12
WITHOUT_LIMIT: Final = {"governor": {"rollbacks": 100_000}}
"""Otherwise an arm that collapses at some learning rate would end the run."""

TWIN: Final = "twin"


@dataclass(frozen=True, slots=True)
class Growing:
    """All growing arms of a cell at one learning rate. tuning: whether on the RNG seeds that choose the rate."""

    cell: Cell
    rate: float
    tuning: bool

    @property
    def key(self) -> list[Any]:
        """The key of its line."""
        return [self.cell.name, self.rate, self.tuning]

    def config(self, rate: float, *only: str) -> dict[str, Any]:
        """Return the configuration of these arms, or of all, at a learning rate."""
        first, most = (FIRST_TUNING_SEED, TUNING_SEEDS) if self.tuning else (FIRST_SEED, SEEDS)
        rates = {"optimizer": {whose: {"learning_rate": rate} for whose in ("host", "seed")}}
        arms = only or tuple(self.cell.arms()[0])
        return self.cell.config(arms, first, environments=min(most, self.cell.seeds), **rates, **WITHOUT_LIMIT)


@dataclass(frozen=True, slots=True)
class StaticControl:
    """What one arm grew, trained from the start at every learning rate."""

    growing: Growing
    arm: str

    @property
    def key(self) -> list[Any]:
        """The key of its line."""
        return [*self.growing.key, self.arm]


def growing_runs(cells: Iterable[Cell]) -> list[Growing]:
    """Return all runs that grow: plain digits, where growth pays."""
    plain = [cell for cell in cells if cell.name in ("plain, pointwise-mlp", "plain, cnn1d")]
    return [Growing(cell, rate, tuning) for cell in plain for rate in RATES for tuning in (True, False)]


def static_controls(runs: Iterable[Growing], lines: Iterable[Mapping[str, Any]]) -> list[StaticControl]:
    """Return the controls of what each arm grew at its best learning rate. lines: the results of all runs."""
    best = {cell: best_rates(by_tuning) for cell, by_tuning in by_cell(lines).items()}
    return [
        StaticControl(growing, arm)
        for growing in runs
        for arm, rate in best[growing.cell.name].items()
        if arm != TWIN and rate == growing.rate
    ]


def run_growing(growing: Growing) -> dict[str, Any]:
    """Run the growing arms; return their results by arm and RNG seed."""
    return {"key": growing.key, "arms": _results(_finished(growing.config(growing.rate)))}


def run_static_control(control: StaticControl) -> dict[str, Any]:
    """Train a static control; return its results by learning rate and RNG seed, empty if nothing had grown."""
    grown = _finished(control.growing.config(control.growing.rate, control.arm))
    by_rate = {f"{rate:g}": _finished(control.growing.config(rate, control.arm), grown) for rate in RATES}
    return {
        "key": control.key,
        "by_rate": {rate: next(iter(_results(episodes).values()), []) for rate, episodes in by_rate.items()},
    }


def _finished(config: Mapping[str, Any], grown: Sequence[EpisodeFinished] | None = None) -> list[EpisodeFinished]:
    """Return the ended episodes of a run, or of its static control if ``grown`` is given."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    around = StudyContext(Bus([]), Clock(), lambda snapshot: CALM)
    with prepared(config) as (ready, _), one_thread(), output_to_stderr():
        study = ready.study(around) if grown is None else ready.follow_up(around, grown)
        if study is None:
            return []
        try:
            return run_study(StudyPosition(study))
        finally:
            study.pool.close()


def _results(episodes: Iterable[EpisodeFinished]) -> dict[str, list[dict[str, Any]]]:
    arms: dict[str, list[dict[str, Any]]] = {}
    for episode in sorted(episodes, key=lambda episode: episode.seed):
        result = {"seed": episode.seed, "validation": episode.validation_metric, "test": episode.test_metric}
        arms.setdefault(episode.arm, []).append(result)
    return arms


def by_cell(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[bool, dict[float, Any]]]:
    """Return the results of growing runs by cell, by use for tuning, by learning rate and by arm."""
    results: dict[str, dict[bool, dict[float, Any]]] = {}
    for line in lines:
        cell, rate, tuning = line["key"]
        results.setdefault(cell, {}).setdefault(tuning, {})[rate] = line["arms"]
    return results


def best_rates(by_tuning: Mapping[bool, Mapping[float, Mapping[str, Episodes]]]) -> dict[str, float]:
    """Return each arm's best learning rate on the tuning seeds, by validation; the smallest of equals."""
    tuning = by_tuning[True]
    arms = next(iter(tuning.values()))
    return {arm: max(sorted(tuning), key=lambda rate: mean_of(tuning[rate][arm], "validation")) for arm in arms}


def mean_of(episodes: Episodes, quantity: str) -> float:
    """Return the mean of a result over episodes."""
    return math.fsum(episode[quantity] for episode in episodes) / len(episodes)
