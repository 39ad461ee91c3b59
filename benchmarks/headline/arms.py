"""Arms: which trainings each needs in a cell, the settings chosen for it on tuning seeds, and its results.

Arms from scratch: ``host``, ``best`` (the best static network, known in advance), ``filler`` (blocks of equal size in
place of its own that cannot relate positions), ``asha`` and ``random`` (architecture searches), ``esper``.
Arms from a trained host: ``grow``, ``continue`` (with its optimizer), ``fresh`` (with a new one), ``early`` (from the
early-stopped checkpoint), ``filler``, and ``retrain``, which is ``asha`` with settings chosen for little compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from benchmarks.headline.cells import HOST, Setting, compose
from benchmarks.headline.searches import Curve, asha, random_search
from benchmarks.headline.trainings import FIRST_CLASSES, EsperSettings, Job, full_training
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.headline.cells import Cell, Part, Size
    from benchmarks.headline.store import Store

    Run = Callable[[Iterable[Job]], object]

VERSION: Final = "1"
"""Of the study; a new one repeats every training."""

POLICY_VERSION: Final = "1"
"""Of the policy and the engine; a new one repeats every training in which something may grow."""

LATE: Final = ("grow", "continue", "fresh", "early", "filler")
CHANGED: Final = ("grow", "continue", "fresh")
SCRATCH: Final = ("host", "best", "asha", "random", "esper")
FACTOR: Final = 3.0
"""Between neighbouring rates of a grid, and of the rates at which robustness is measured."""

RETRAIN_SHARE: Final = 1 / 8
"""Horizon at which settings of ``retrain`` are chosen; a search of six architectures there costs about a quarter."""


def esper_settings(validation_examples: int) -> EsperSettings:
    """Return how Esper grows, the same in every cell but for gates, which need enough validation examples."""
    gates = "strict" if validation_examples >= MIN_EXAMPLES_FOR_EVIDENCE else "off"
    growth = {"incubation": "branch", "gates": gates, "nursery": 2}
    return EsperSettings({"policy": "heuristic", "twin": False, "growth": growth})


def settings_for(part: Part, cell: Cell) -> EsperSettings:
    """Return how Esper grows in a part of a cell."""
    return esper_settings(len(compose(cell, part, 0, {}).recipe.data["validation"]))


def filler_of(architecture: str) -> str | None:
    """Return an architecture with fillers in place of blocks, without blocks on vectors; None if none is left.

    >>> filler_of("early=conv_light+late=mlp"), filler_of("late=mlp")
    ('early=filler-conv_light', None)
    """
    blocks = [one.replace("=", "=filler-") for one in architecture.split("+") if "=" in one and "=mlp" not in one]
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


WORST_LOSS: Final = 10.0
"""Nats that count for a training whose loss is not finite."""


def pooled(records: Sequence[dict[str, Any]], flops: int | None = None) -> Point:
    """Return the point of the records of each part; ``flops`` replaces their sum."""
    losses = [WORST_LOSS if one["test_loss"] is None else min(WORST_LOSS, one["test_loss"]) for one in records]
    return Point(
        sum(one["flops"] for one in records) if flops is None else flops,
        fmean(one["test_accuracy"] for one in records),
        fmean(losses),
        fmean(one["validation_accuracy"] for one in records),
        tuple(tuple(one["kept"] or filter(None, [one["architecture"]])) for one in records),
        tuple(records[0]["classes"]),
    )


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
        *,
        architecture: str = "",
        changed: bool = False,
    ) -> list[Job]:
        """Return a job for each part; what starts from a trained host gets its budget and its setting."""
        late = arm in LATE
        start = self.chosen("host") if late else None
        version = VERSION + (f"-{POLICY_VERSION}" if arm in ("esper", "grow") else "")
        reference = self.best_architecture() if late else ""
        return [
            Job(
                self.cell.name,
                part.name,
                arm,
                architecture,
                setting,
                seed,
                share,
                start,
                full_training(self.cell, part, reference, self.size.scale) if late else 0,
                changed,
                self.size.scale,
                version,
            )
            for part in self.cell.parts
        ]

    def statics(self, setting: Setting, seed: int, share: float) -> list[Job]:
        """Return the jobs of every architecture, from which searches are computed."""
        return [
            job
            for name in self.cell.parts[0].architectures()
            for job in self.jobs("static", setting, seed, share, architecture=name)
        ]

    def late_jobs(self, arm: str, setting: Setting, seed: int, budget: float, *, changed: bool) -> list[Job]:
        """Return the jobs of an arm that starts from a trained host; none if there is no filler."""
        filler = filler_of(self.best_architecture())
        if arm == "filler" and filler is None:
            return []
        architecture = filler or "" if arm == "filler" else ""
        return self.jobs(arm, setting, seed, budget, architecture=architecture, changed=changed)

    # --- results

    def point(self, jobs: Sequence[Job]) -> Point | None:
        """Return the pooled result of jobs; None if one is missing."""
        records = [self.store.get(job) for job in jobs]
        return pooled([one for one in records if one]) if records and all(records) else None

    def result(self, arm: str, setting: Setting, seed: int, share: float = 1.0) -> Point | None:
        """Return the result of an arm from scratch with a setting; None if a training is missing."""
        if arm in ("asha", "retrain"):
            return self._asha(setting, seed, share)
        if arm == "random":
            return self._random(setting, seed)
        if arm == "esper":
            return self.point(self.jobs("esper", setting, seed, share))
        architecture = self.architecture_of(arm)
        if architecture is None:
            return None
        return self.point(self.jobs("static", setting, seed, share, architecture=architecture))

    def architecture_of(self, arm: str) -> str | None:
        """Return the architecture of ``host``, ``best`` or ``filler``; None if there is no filler."""
        if arm == "host":
            return HOST
        return self.best_architecture() if arm == "best" else filler_of(self.best_architecture())

    def late_result(self, arm: str, setting: Setting, seed: int, budget: float, *, changed: bool) -> Point | None:
        """Return the result of an arm from a trained host; None if a training is missing."""
        return self.point(self.late_jobs(arm, setting, seed, budget, changed=changed))

    def _curves(self, part: Part, setting: Setting, seed: int, share: float) -> dict[str, dict[str, Any]] | None:
        """Return the record of each architecture of a part."""
        jobs = [job for job in self.statics(setting, seed, share) if job.part == part.name]
        records = {job.architecture: self.store.get(job) for job in jobs}
        return None if None in records.values() else {name: one for name, one in records.items() if one}

    def _asha(self, setting: Setting, seed: int, share: float) -> Point | None:
        found = []
        for part in self.cell.parts:
            records = self._curves(part, setting, seed, share)
            if records is None:
                return None
            result = asha({name: _curve(one) for name, one in records.items()}, seed=seed)
            found.append((records[result.architecture], result.flops))
        return pooled([record for record, _ in found], sum(flops for _, flops in found))

    def _random(self, setting: Setting, seed: int) -> Point | None:
        found = []
        for part in self.cell.parts:
            horizons = [self._curves(part, setting, seed, share) for share in self.size.random_shares]
            known = [one for one in horizons if one is not None]
            if len(known) < len(horizons):
                return None
            curves = [{name: _curve(one) for name, one in own.items()} for own in known]
            budget = asha(curves[-1], seed=seed).flops
            horizon, result = random_search(curves, seed=seed, flops=budget)
            found.append((known[horizon][result.architecture], result.flops))
        return pooled([record for record, _ in found], sum(flops for _, flops in found))

    # --- choices on tuning seeds

    def settings(self, *, late: bool = False, changed: bool = False) -> list[Setting]:
        """Return the grid, with the rates by which it was extended: those that tuning records have."""
        arms = ("grow",) if late else ("static",)
        first, share = self.size.tuning[0], self.size.tuned_budget if late else 1.0
        of = (
            one
            for one in self.store
            if one["cell"] == self.cell.name
            and one["arm"] in arms
            and one["seed"] == first
            and one["changed"] == changed
            and one["share"] == share
            and one["scale"] == self.size.scale
        )
        rates = {one["setting"]["rate"] for one in of} | set(self.size.rates)
        return [Setting(rate, schedule) for rate, schedule in product(sorted(rates), self.size.schedules)]

    def score(self, arm: str, setting: Setting, *, late: bool = False, changed: bool = False) -> float:
        """Return the mean accuracy on validation over the tuning seeds; -1 if a training is missing."""
        points = []
        for seed in self.size.tuning:
            if late:
                points.append(self.late_result(arm, setting, seed, self.size.tuned_budget, changed=changed))
            else:
                points.append(self.result(arm, setting, seed, RETRAIN_SHARE if arm == "retrain" else 1.0))
        return -1.0 if None in points else fmean(one.validation for one in points if one)

    def chosen(self, arm: str, *, late: bool = False, changed: bool = False) -> Setting:
        """Return the setting of an arm with the best accuracy on validation, the first one of several."""
        key = arm, late, changed
        if key not in self._choices:
            settings = self.settings(late=late, changed=changed)
            scores = {one: self.score(arm, one, late=late, changed=changed) for one in settings}
            self._choices[key] = max(scores, key=scores.__getitem__)
        setting: Setting = self._choices[key]
        return setting

    def best_architecture(self) -> str:
        """Return the best static network on validation, over all settings."""
        if "best" not in self._choices:
            names = [name for name in self.cell.parts[0].architectures() if name != HOST]
            scores = {name: max(self._static_score(name, one) for one in self.settings()) for name in names}
            self._choices["best"] = max(scores, key=scores.__getitem__)
        name: str = self._choices["best"]
        return name

    def _static_score(self, architecture: str, setting: Setting) -> float:
        points = [
            self.point(self.jobs("static", setting, seed, architecture=architecture)) for seed in self.size.tuning
        ]
        return -1.0 if None in points else fmean(one.validation for one in points if one)

    def deficit(self) -> float:
        """Return by how much the best static network is better than the host on tuning seeds, in points."""
        return 100 * (self.score("best", self.chosen("best")) - self.score("host", self.chosen("host")))

    def needed(self) -> set[str]:
        """Return the blueprints that alone bring at least five points on tuning seeds."""
        host = self.score("host", self.chosen("host"))
        single = [name for name in self.cell.parts[0].architectures() if "=" in name and "+" not in name]
        best = {name: max(self._static_score(name, one) for one in self.settings()) for name in single}
        return {name.partition("=")[2] for name, score in best.items() if score - host >= DEFICIT / 100}

    # --- phases

    def tune(self, train: Run) -> None:
        """Train what settings are chosen by, and extend a grid while the best setting of an arm lies at its edge."""
        seeds = self.size.tuning

        def run(jobs: Iterable[Job]) -> None:
            train(jobs)
            self._choices.clear()

        self._extend(
            lambda one: [
                job
                for seed in seeds
                for job in [
                    *self.statics(one, seed, 1.0),
                    *self.statics(one, seed, RETRAIN_SHARE),
                    *[job for share in self.size.random_shares for job in self.statics(one, seed, share)],
                    *self.jobs("esper", one, seed),
                ]
            ],
            run,
            SCRATCH,
        )
        if (filler := filler_of(self.best_architecture())) is not None:
            run(
                job
                for one in self.settings()
                for s in seeds
                for job in self.jobs("static", one, s, architecture=filler)
            )
        for changed, arms in self._late_groups():
            self._extend(
                lambda one, arms=arms, changed=changed: [
                    job
                    for arm, seed in product(arms, seeds)
                    for job in self.late_jobs(arm, one, seed, self.size.tuned_budget, changed=changed)
                ],
                run,
                arms,
                late=True,
                changed=changed,
            )

    def _late_groups(self) -> list[tuple[bool, tuple[str, ...]]]:
        return [(False, LATE), *([(True, CHANGED)] if self.cell.data_changes else [])]

    def _extend(self, jobs: Callable[..., list[Job]], run: Run, arms: Sequence[str], **which: bool) -> None:
        for left in range(self.size.extensions, -1, -1):
            settings = self.settings(**which)
            run(job for one in settings for job in jobs(one))
            rates = sorted({one.rate for one in settings})
            best = {self.chosen(arm, **which).rate for arm in arms}
            beyond = [neighbour(rate, way) for rate, way in ((rates[0], -1), (rates[-1], 1)) if rate in best]
            if not left or not beyond:
                return
            run(job for rate in beyond for name in self.size.schedules for job in jobs(Setting(rate, name)))

    def fresh(self, run: Run) -> None:
        """Train every arm with its chosen setting on fresh seeds."""
        size = self.size
        for seed in size.fresh:
            jobs = [job for share in size.shares for job in self.statics(self.chosen("retrain"), seed, share)]
            jobs += [job for share in size.shares[-2:] for job in self.statics(self.chosen("asha"), seed, share)]
            jobs += [job for share in size.random_shares for job in self.statics(self.chosen("random"), seed, share)]
            jobs += [
                job for share in size.esper_shares for job in self.jobs("esper", self.chosen("esper"), seed, share)
            ]
            jobs += self.jobs("static", self.chosen("host"), seed, architecture=HOST)
            for setting in [self.chosen("best"), *self.neighbours("best")]:
                jobs += self.jobs("static", setting, seed, architecture=self.best_architecture())
            for setting in self.neighbours("esper"):
                jobs += self.jobs("esper", setting, seed)
            if (filler := filler_of(self.best_architecture())) is not None:
                jobs += self.jobs("static", self.chosen("filler"), seed, architecture=filler)
            for changed, arms in self._late_groups():
                for arm, budget in product(arms, size.budgets):
                    setting = self.chosen(arm, late=True, changed=changed)
                    jobs += self.late_jobs(arm, setting, seed, budget, changed=changed)
            run(jobs)

    def neighbours(self, arm: str) -> list[Setting]:
        """Return the settings with a third and with three times the rate that was chosen for an arm."""
        one = self.chosen(arm)
        return [Setting(neighbour(one.rate, way), one.schedule) for way in (-1, 1)]


DEFICIT: Final = 5.0
"""Points by which the best static network is better than a host with a deficit."""


def neighbour(rate: float, way: int) -> float:
    """Return the next rate of the grid, 0.01 · 3ᵏ with two digits.

    >>> neighbour(0.0033, -1), neighbour(0.0033, 1), neighbour(0.01, 1)
    (0.0011, 0.01, 0.03)
    """
    return float(f"{0.01 * FACTOR ** (round(math.log(rate / 0.01, FACTOR)) + way):.2g}")


def _curve(record: dict[str, Any]) -> Curve:
    return Curve([look[3] for look in record["looks"]], [look[1] for look in record["looks"]])
