"""Arms: which trainings each needs in a cell, the settings chosen for it on tuning seeds, and its results.

Arms from scratch: ``host``, ``best`` (the best static network, known in advance), ``filler`` (blocks of equal size in
place of its own that cannot relate positions), ``asha`` and ``random`` (architecture searches), ``esper``.
Arms from a trained host: ``grow``, ``continue`` (with its optimizer), ``fresh`` (with a new one), ``early`` (from the
early-stopped checkpoint), ``filler``, and ``retrain``, which is ``asha`` with settings chosen for little compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, TypeVar

from benchmarks.headline.cells import HOST, Setting, compose
from benchmarks.headline.searches import Curve, asha, random_search
from benchmarks.headline.trainings import FIRST_CLASSES, GROWING, EsperSettings, Job
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.headline.cells import Cell, Part, Size
    from benchmarks.headline.searches import Found
    from benchmarks.headline.store import Store

    Run = Callable[[Iterable[Job]], object]
    Search = Callable[[Sequence[Mapping[str, Curve]]], tuple[int, Found]]

VERSION: Final = "1"
"""Of the study; a new one repeats every training."""

POLICY_VERSION: Final = "4"
"""Of the policy and the engine; a new one repeats every training in which something may grow."""

LATE: Final = ("grow", "continue", "fresh", "early", "filler")
CHANGED: Final = ("grow", "continue", "fresh")
SCRATCH: Final = ("host", "best", "asha", "retrain", "random", "esper")
FACTOR: Final = 3.0
"""Between neighbouring rates of a grid, and of the rates at which robustness is measured."""

RETRAIN_SHARE: Final = 1 / 8
"""Horizon at which settings of ``retrain`` are chosen; a search of six architectures there costs about a quarter."""


def esper_settings(validation_examples: int) -> EsperSettings:
    """Return how Esper grows: by its defaults. Few validation examples no gate can judge: there the policy decides."""
    gates = "strict" if validation_examples >= MIN_EXAMPLES_FOR_EVIDENCE else "off"
    return EsperSettings({"policy": "heuristic", "twin": False, "growth": {"gates": gates, "evidence": "metric"}})


def settings_for(part: Part, cell: Cell) -> EsperSettings:
    """Return how Esper grows in a part of a cell."""
    return esper_settings(len(compose(cell, part, 0, {}).recipe.data["validation"]))


def filler_of(architecture: str) -> str | None:
    """Return an architecture with fillers in place of blocks, without blocks on vectors; None if none is left.

    >>> filler_of("early=conv_light+late=mlp"), filler_of("late=mlp")
    ('early=filler-conv_light', None)
    """
    blocks = [
        block.replace("=", "=filler-") for block in architecture.split("+") if "=" in block and "=mlp" not in block
    ]
    return "+".join(blocks) or None


@dataclass(frozen=True, slots=True)
class Point:
    """A result: the mean over the parts of a cell, and operations of all parts. ``blocks`` are those in the end."""

    flops: int
    accuracy: float
    loss: float
    validation: float
    blocks: tuple[tuple[str, ...], ...] = ()
    classes: tuple[float, ...] = ()

    @property
    def old(self) -> float:
        """Mean accuracy on the classes that were known before the data changed."""
        return fmean(self.classes[:FIRST_CLASSES])

    @property
    def new(self) -> float:
        """Mean accuracy on the classes that came later."""
        return fmean(self.classes[FIRST_CLASSES:])


T = TypeVar("T")

WORST_LOSS: Final = 10.0
"""Nats that count for a training whose loss is not finite."""


def pooled(records: Sequence[dict[str, Any]], flops: int | None = None) -> Point:
    """Return the point of the records of each part; ``flops`` replaces their sum."""
    losses = [WORST_LOSS if record["test_loss"] is None else min(WORST_LOSS, record["test_loss"]) for record in records]
    return Point(
        sum(record["flops"] for record in records) if flops is None else flops,
        fmean(record["test_accuracy"] for record in records),
        fmean(losses),
        fmean(record["validation_accuracy"] for record in records),
        tuple(tuple(record["kept"] or filter(None, [record["architecture"]])) for record in records),
        tuple(records[0].get("classes", ())),
    )


def best_of(scores: Mapping[T, float]) -> T:
    """Return what has the best score, the first one of several whose scores differ by rounding alone.

    >>> best_of({"a": 0.6445833333333333, "b": 0.6445833333333334})
    'a'
    """
    return max(scores, key=lambda name: round(scores[name], 9))


@dataclass(frozen=True, slots=True)
class CellStudy:
    """The trainings of one cell: what is to be trained, and what the records say."""

    cell: Cell
    size: Size
    store: Store
    _choices: dict[Any, Any] = field(default_factory=dict)
    """What was chosen by the tuning records, as long as no more are trained."""

    # --- jobs

    def jobs(
        self,
        arm: str,
        setting: Setting,
        seed: int,
        share: float = 1.0,
        architecture: str = "",
        *,
        changed: bool = False,
    ) -> list[Job]:
        """Return a job for each part; what starts from a trained host gets its budget and its setting."""
        version = VERSION + (f"-{POLICY_VERSION}" if arm in GROWING else "")
        job = Job(self.cell.name, "", arm, architecture, setting, seed, share, changed=changed, version=version)
        if arm in LATE:
            job = replace(job, start=self.chosen("host"), reference=self.best_architecture())
        return [replace(job, part=part.name, scale=self.size.scale) for part in self.cell.parts]

    def statics(self, setting: Setting, seed: int, share: float) -> list[Job]:
        """Return the jobs of every architecture, from which searches are computed."""
        names = self.cell.parts[0].architectures()
        return [job for name in names for job in self.jobs("static", setting, seed, share, name)]

    def late_jobs(self, arm: str, setting: Setting, seed: int, budget: float, *, changed: bool) -> list[Job]:
        """Return the jobs of an arm that starts from a trained host; none if there is no filler."""
        filler = self.architecture_of("filler") if arm == "filler" else ""
        return [] if filler is None else self.jobs(arm, setting, seed, budget, filler, changed=changed)

    # --- results

    def point(self, jobs: Sequence[Job]) -> Point | None:
        """Return the pooled result of jobs; None if one is missing."""
        records = [self.store.get(job) for job in jobs]
        return pooled([record for record in records if record]) if records and all(records) else None

    def result(self, arm: str, setting: Setting, seed: int, share: float = 1.0) -> Point | None:
        """Return the result of an arm from scratch with a setting; None if a training is missing."""
        if arm in ("asha", "retrain"):
            return self._search(setting, seed, [share], lambda curves: (0, asha(curves[0], seed=seed)))
        if arm == "random":
            search = partial(random_search, seed=seed)
            paid = partial(asha, seed=seed)
            shares = self.size.random_shares
            return self._search(setting, seed, shares, lambda curves: search(curves, flops=paid(curves[-1]).flops))
        if arm == "esper":
            return self.point(self.jobs("esper", setting, seed, share))
        architecture = self.architecture_of(arm)
        return None if architecture is None else self.point(self.jobs("static", setting, seed, share, architecture))

    def architecture_of(self, arm: str) -> str | None:
        """Return the architecture of ``host``, ``best`` or ``filler``; None if there is no filler."""
        if arm == "host":
            return HOST
        return self.best_architecture() if arm == "best" else filler_of(self.best_architecture())

    def late_result(self, arm: str, setting: Setting, seed: int, budget: float, *, changed: bool) -> Point | None:
        """Return the result of an arm from a trained host; None if a training is missing."""
        return self.point(self.late_jobs(arm, setting, seed, budget, changed=changed))

    def _search(self, setting: Setting, seed: int, shares: Sequence[float], search: Search) -> Point | None:
        """Return what a search finds over the static networks at these horizons; None if a training is missing."""
        selected = []
        for part in self.cell.parts:
            horizons = []
            for share in shares:
                jobs = [job for job in self.statics(setting, seed, share) if job.part == part.name]
                records = {job.architecture: self.store.get(job) for job in jobs}
                horizons.append({name: record for name, record in records.items() if record})
                if len(horizons[-1]) < len(jobs):
                    return None
            horizon, result = search(
                [{name: _curve(record) for name, record in by_name.items()} for by_name in horizons]
            )
            selected.append((horizons[horizon][result.architecture], result.flops))
        return pooled([record for record, _ in selected], sum(flops for _, flops in selected))

    # --- choices on tuning seeds

    def settings(self, *, late: bool = False, changed: bool = False) -> list[Setting]:
        """Return the grid, with the rates by which it was extended: those that tuning records have."""
        arm, share = ("grow", self.size.tuned_budget) if late else ("static", 1.0)
        fields: dict[str, Any] = {"cell": self.cell.name, "arm": arm, "seed": self.size.tuning[0]}
        fields |= {"changed": changed, "share": share, "scale": self.size.scale}
        extra_rates = (
            record["setting"]["rate"] for record in self.store if all(record[key] == fields[key] for key in fields)
        )
        rates = sorted({*self.size.rates, *extra_rates})
        return [Setting(rate, schedule) for rate, schedule in product(rates, self.size.schedules)]

    def score(self, arm: str, setting: Setting, *, late: bool = False, changed: bool = False) -> float:
        """Return the mean accuracy on validation over the tuning seeds; -1 if a training is missing."""
        points = []
        for seed in self.size.tuning:
            if late:
                points.append(self.late_result(arm, setting, seed, self.size.tuned_budget, changed=changed))
            else:
                points.append(self.result(arm, setting, seed, RETRAIN_SHARE if arm == "retrain" else 1.0))
        return -1.0 if None in points else fmean(point.validation for point in points if point)

    def chosen(self, arm: str, *, late: bool = False, changed: bool = False) -> Setting:
        """Return the setting of an arm with the best accuracy on validation, the first one of several."""
        key = arm, late, changed
        if key not in self._choices:
            settings = self.settings(late=late, changed=changed)
            scores = {setting: self.score(arm, setting, late=late, changed=changed) for setting in settings}
            self._choices[key] = best_of(scores)
        setting: Setting = self._choices[key]
        return setting

    def best_architecture(self) -> str:
        """Return the best static network on validation, over all settings."""
        if "best" not in self._choices:
            names = [name for name in self.cell.parts[0].architectures() if name != HOST]
            scores = {name: max(self._static_score(name, setting) for setting in self.settings()) for name in names}
            self._choices["best"] = best_of(scores)
        name: str = self._choices["best"]
        return name

    def _static_score(self, architecture: str, setting: Setting) -> float:
        jobs = [self.jobs("static", setting, seed, 1.0, architecture) for seed in self.size.tuning]
        points = [self.point(seed_jobs) for seed_jobs in jobs]
        return -1.0 if None in points else fmean(point.validation for point in points if point)

    def deficit(self) -> float:
        """Return by how much the best static network is better than the host on tuning seeds, in points."""
        return 100 * (self.score("best", self.chosen("best")) - self.score("host", self.chosen("host")))

    def needed(self) -> set[str]:
        """Return the blueprints that alone bring at least five points on tuning seeds."""
        host = self.score("host", self.chosen("host"))
        single = [name for name in self.cell.parts[0].architectures() if "=" in name and "+" not in name]
        best = {name: max(self._static_score(name, setting) for setting in self.settings()) for name in single}
        return {name.partition("=")[2] for name, score in best.items() if score - host >= DEFICIT / 100}

    # --- phases

    def tune(self, train: Run) -> None:
        """Train what settings are chosen by, and extend a grid while the best rate of an arm lies at its edge."""

        def run(jobs: Iterable[Job]) -> None:
            train(jobs)
            self._choices.clear()

        seeds, shares = self.size.tuning, sorted({1.0, RETRAIN_SHARE, *self.size.random_shares})

        def scratch(setting: Setting) -> Iterator[Job]:
            for seed in seeds:
                yield from (job for share in shares for job in self.statics(setting, seed, share))
                yield from self.jobs("esper", setting, seed)

        self._extend(scratch, run, SCRATCH)
        if (filler := self.architecture_of("filler")) is not None:
            grid = product(self.settings(), seeds)
            run(job for setting, seed in grid for job in self.jobs("static", setting, seed, 1.0, filler))
        for changed, arms in self._late_groups():

            def late(setting: Setting, changed: bool = changed, arms: Sequence[str] = arms) -> Iterator[Job]:
                for arm, seed in product(arms, seeds):
                    yield from self.late_jobs(arm, setting, seed, self.size.tuned_budget, changed=changed)

            self._extend(late, run, arms, late=True, changed=changed)

    def _late_groups(self) -> list[tuple[bool, tuple[str, ...]]]:
        return [(False, LATE), *([(True, CHANGED)] if self.cell.data_changes else [])]

    def _extend(self, jobs: Callable[[Setting], Iterable[Job]], run: Run, arms: Sequence[str], **options: bool) -> None:
        """Train a grid; extend it by one rate on each side where it is asked for, and as far as is allowed."""
        allowed = rates_allowed(self.size)
        while True:
            settings = self.settings(**options)
            run(job for setting in settings for job in jobs(setting))
            rates = [setting.rate for setting in settings]
            best = {self.chosen(arm, **options).rate for arm in arms}
            beyond = [neighbour(rate, way) for rate, way in ((min(rates), -1), (max(rates), 1)) if rate in best]
            more = [Setting(rate, name) for rate in beyond if rate in allowed for name in self.size.schedules]
            if not more:
                return
            run(job for setting in more for job in jobs(setting))

    def fresh(self, run: Run, seeds: Sequence[int] | None = None) -> None:
        """Train every arm with its chosen setting on fresh seeds: all, or these."""
        size = self.size
        searches = {"retrain": size.shares, "asha": size.shares[-2:], "random": size.random_shares}
        for seed in size.fresh if seeds is None else seeds:
            jobs = [
                job
                for arm, shares in searches.items()
                for share in shares
                for job in self.statics(self.chosen(arm), seed, share)
            ]
            runs = [(self.chosen("esper"), share) for share in size.esper_shares]
            runs += [(setting, 1.0) for setting in self.neighbours("esper")]
            jobs += [job for setting, share in runs for job in self.jobs("esper", setting, seed, share)]
            single = [("host", self.chosen("host")), ("filler", self.chosen("filler")), ("best", self.chosen("best"))]
            for arm, setting in [*single, *(("best", setting) for setting in self.neighbours("best"))]:
                if (architecture := self.architecture_of(arm)) is not None:
                    jobs += self.jobs("static", setting, seed, 1.0, architecture)
            for changed, arms in self._late_groups():
                for arm, budget in product(arms, size.budgets):
                    setting = self.chosen(arm, late=True, changed=changed)
                    jobs += self.late_jobs(arm, setting, seed, budget, changed=changed)
            run(jobs)

    def neighbours(self, arm: str) -> list[Setting]:
        """Return the settings with a third and with three times the rate that was chosen for an arm."""
        chosen = self.chosen(arm)
        return [Setting(neighbour(chosen.rate, way), chosen.schedule) for way in (-1, 1)]


DEFICIT: Final = 5.0
"""Points by which the best static network is better than a host with a deficit."""


def neighbour(rate: float, way: int) -> float:
    """Return the next rate of the grid, 0.01 · 3ᵏ with two digits.

    >>> neighbour(0.0033, -1), neighbour(0.0033, 1), neighbour(0.01, 1)
    (0.0011, 0.01, 0.03)
    """
    return float(f"{0.01 * FACTOR ** (round(math.log(rate / 0.01, FACTOR)) + way):.2g}")


def rates_allowed(size: Size) -> set[float]:
    """Return the rates of the grid with every extension on both sides."""
    allowed = set(size.rates)
    for _ in range(size.extensions):
        allowed |= {neighbour(rate, way) for rate in allowed for way in (-1, 1)}
    return allowed


def _curve(record: dict[str, Any]) -> Curve:
    return Curve([look[2] for look in record["looks"]], [look[1] for look in record["looks"]])
