"""Compare growing with the grown network from the start, each with its own best step size.

For each seed, what an arm grew at its best step size is put into the host from the start and trained at every step size
as well. Step sizes are chosen on other seeds, by validation: for the growing network, for the network from the
start, and for the host that never grows. Results are those of the evaluation seeds.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.learned_policies.evaluation import interval
from benchmarks.science.learned_policies.live import FIRST_SEED, arms_of, prepared
from esper_core.app.compose import StudyContext
from esper_core.app.runtime import one_thread
from esper_core.leyline import CALM
from esper_core.plugins.isolation import output_to_stderr
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.loop import run_study
from esper_core.trainer.progress import StudyProgress
from esper_study.growbench.puzzles import LEARNING_RATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.science.learned_policies.live import Visit
    from esper_core.leyline.events import EpisodeFinished

    Episodes = Sequence[Mapping[str, Any]]

SIZES: Final = (LEARNING_RATE * 0.3, LEARNING_RATE, LEARNING_RATE * 3.0, LEARNING_RATE * 10.0)
"""Of a step: the table's own is the second."""

FIRST_TO_TUNE_ON: Final = 80_000
TO_TUNE_ON: Final = 12

UNSTOPPED: Final = {"governor": {"rollbacks": 100_000}}
"""Else a side that collapses at some size would end the run, and nothing were known of the others."""

TWIN: Final = "twin"


@dataclass(frozen=True, slots=True)
class Walk:
    """All growing arms on one cell at one step size, beside the twin.

    to_tune: whether it uses the seeds by which a step size is chosen, not those of the evaluation.
    """

    visit: Visit
    size: float
    to_tune: bool

    @property
    def key(self) -> list[Any]:
        """By which it is found again."""
        return [self.visit.cell.name, self.size, self.to_tune]

    def config(self, size: float, *only: str) -> dict[str, Any]:
        """Return the configuration of these arms, or of all, at some step size."""
        cell = self.visit.cell
        everybody, order = arms_of(self.visit)
        arms = {name: arm for name, arm in everybody.items() if name != "random"}
        first, count = (FIRST_TO_TUNE_ON, min(TO_TUNE_ON, cell.seeds)) if self.to_tune else (FIRST_SEED, cell.seeds)
        steps = {"optimizer": {whose: {"learning_rate": size} for whose in ("host", "seed")}}
        wanted = {name: arms[name] for name in only or arms}
        return cell.config(wanted, first, order, environments=count, **steps, **UNSTOPPED)


@dataclass(frozen=True, slots=True)
class Replanting:
    """What one arm grew in a walk, trained from the start at every step size."""

    walk: Walk
    arm: str

    @property
    def key(self) -> list[Any]:
        """By which it is found again."""
        return [*self.walk.key, self.arm]


def walks(visits: Iterable[Visit]) -> list[Walk]:
    """Return all walks: on plain data, where there is a deficit and growth pays."""
    plain = [visit for visit in visits if visit.cell.name.startswith("plain")]
    return [Walk(visit, size, part) for visit in plain for size in SIZES for part in (True, False)]


def replantings(every: Iterable[Walk], lines: Iterable[Mapping[str, Any]]) -> list[Replanting]:
    """Return, for each arm, what it grew at its best step size.

    lines: the results of every walk.
    """
    best = {cell: _sizes(own) for cell, own in _by_cell(lines).items()}
    return [
        Replanting(walk, arm)
        for walk in every
        for arm, size in best[walk.visit.cell.name].items()
        if arm != TWIN and size == walk.size
    ]


def walked(walk: Walk) -> dict[str, Any]:
    """Run one walk; return its results by arm and seed. Collapses are rolled back without a limit."""
    return {"key": walk.key, "arms": _told(_finished(walk.config(walk.size)))}


def replanted(one: Replanting) -> dict[str, Any]:
    """Train one replanting; return its results by step size and seed, empty if nothing had grown."""
    grown = _finished(one.walk.config(one.walk.size, one.arm))
    whole = {f"{size:g}": _finished(one.walk.config(size, one.arm), grown) for size in SIZES}
    return {"key": one.key, "by_size": {size: next(iter(_told(own).values()), []) for size, own in whole.items()}}


def _finished(config: Mapping[str, Any], grown: Sequence[EpisodeFinished] | None = None) -> list[EpisodeFinished]:
    """Return the ended episodes of a run, or of its static control if ``grown`` is given."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    around = StudyContext(Bus([]), Clock(), lambda snapshot: CALM)
    with prepared(config) as (ready, _), one_thread(), output_to_stderr():
        made = ready
        study = made.study(around) if grown is None else made.follow_up(around, grown)
        if study is None:
            return []
        try:
            return run_study(StudyProgress(study))
        finally:
            study.pool.close()


def _told(episodes: Iterable[EpisodeFinished]) -> dict[str, list[dict[str, Any]]]:
    arms: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(episodes, key=lambda episode: episode.seed):
        told = {"seed": one.seed, "validation": one.validation_metric, "test": one.test_metric}
        arms.setdefault(one.arm, []).append(told)
    return arms


def compared(
    walked: Sequence[Mapping[str, Any]], replanted: Iterable[Mapping[str, Any]], live: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return, by cell and arm, the gain over the static network and over the twin, each at its best step size.

    live: the same arms without tuned step sizes.
    """
    whole: dict[tuple[str, str], dict[bool, Any]] = {}
    for line in replanted:
        cell, _, to_tune, arm = line["key"]
        whole.setdefault((cell, arm), {})[to_tune] = line["by_size"]
    untuned = {one["cell"]: one["arms"] for one in live}
    return [
        {
            "cell": cell,
            "twin": _side(_sizes(own)[TWIN], own[False][_sizes(own)[TWIN]][TWIN]),
            "arms": {
                arm: _arm(arm, own, whole.get((cell, arm), {}), untuned[cell]) for arm in _sizes(own) if arm != TWIN
            },
        }
        for cell, own in _by_cell(walked).items()
    ]


def _arm(
    arm: str, own: Mapping[bool, Any], whole: Mapping[bool, Any], untuned: Mapping[str, Episodes]
) -> dict[str, Any]:
    sizes = _sizes(own)
    grown, twin = own[False][sizes[arm]][arm], own[False][sizes[TWIN]][TWIN]
    found = {"grown": _side(sizes[arm], grown), "less_twin": _less(grown, twin)}
    if all(whole[True].values()) and all(whole[False].values()):
        size = max(whole[True], key=lambda each: _mean(whole[True][each]))
        found["from_the_start"] = _side(float(size), whole[False][size])
        found["less_from_the_start"] = _less(grown, whole[False][size])
    if own_capacity := untuned.get(f"capacity-of-{arm}"):
        found["untuned"] = _less(untuned[arm], own_capacity)
    return found


def _by_cell(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[bool, dict[float, Any]]]:
    """Return the results of walks by cell, by use for tuning, by step size and by arm."""
    found: dict[str, dict[bool, dict[float, Any]]] = {}
    for line in lines:
        cell, size, to_tune = line["key"]
        found.setdefault(cell, {}).setdefault(to_tune, {})[size] = line["arms"]
    return found


def _sizes(own: Mapping[bool, Mapping[float, Mapping[str, Episodes]]]) -> dict[str, float]:
    """Return each arm's best step size on the tuning seeds, by validation; of equals the smallest."""
    to_tune = own[True]
    arms = next(iter(to_tune.values()))
    return {arm: max(sorted(to_tune), key=lambda size: _mean(to_tune[size][arm])) for arm in arms}


def _side(size: float, episodes: Episodes) -> dict[str, float]:
    return {"size": size, "test": math.fsum(one["test"] for one in episodes) / len(episodes)}


def _less(one: Episodes, other: Episodes) -> dict[str, Any]:
    """Return the difference in points of test accuracy, seed by seed."""
    beside = {each["seed"]: each["test"] for each in other}
    return interval([100 * (each["test"] - beside[each["seed"]]) for each in one])


def _mean(episodes: Episodes) -> float:
    return math.fsum(one["validation"] for one in episodes) / len(episodes)
