"""Comparisons at equal compute, paired by RNG seed, and the criteria that growth must reach.

A curve is an arm's accuracy by operations, of one RNG seed. Between two horizons it is read on a line over the
logarithm of operations, beyond the last one it stays, and before the first one it is what there was without training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean
from typing import TYPE_CHECKING, Final

from benchmarks.headline.arms import DEFICIT, LATE, Point, best_of
from esper_run.runs.statistics import Interval, holm, mean_interval, t_tail

if TYPE_CHECKING:
    from benchmarks.headline.arms import CellStudy

CONTROL: Final = 2.0
"""Points below which a cell, on tuning seeds, has nothing to gain and is a control."""

Curve = Sequence[tuple[float, float]]
"""Operations and accuracy, or loss, in ascending order of operations."""


def read(curve: Curve, flops: float, before: float | None = None) -> float:
    """Return the value of a curve; ``before`` counts below its first point, which itself does if that is None.

    >>> read([(1, 10.0), (100, 20.0)], 10), read([(1, 10.0)], 5), read([(2, 10.0)], 1, before=3.0)
    (15.0, 10.0, 3.0)
    """
    ordered = sorted(curve)
    if flops < ordered[0][0]:
        return ordered[0][1] if before is None else before
    low = max(point for point in ordered if point[0] <= flops)
    high = next((point for point in ordered if point[0] > flops), None)
    if high is None:
        return low[1]
    share = math.log(flops / low[0]) / math.log(high[0] / low[0])
    return low[1] + share * (high[1] - low[1])


def exact_interval(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for a share.

    >>> [round(end, 4) for end in exact_interval(0, 20)]
    [0.0, 0.1684]
    """
    from scipy.stats import beta  # type: ignore[import-untyped]

    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.ppf(1 - tail, hits + 1, n - hits))
    return low, high


def p_not_below(differences: Sequence[float], margin: float) -> float:
    """Return the one-sided p of a t test against "the mean is at least −margin".

    >>> round(p_not_below([-4.0, -5.0, -6.0], 3.0), 3)
    0.037
    """
    shifted = [difference + margin for difference in differences]
    interval = mean_interval(shifted)
    deviation = math.sqrt(sum((difference - interval.mean) ** 2 for difference in shifted) / (len(shifted) - 1))
    if deviation == 0:
        return 0.0 if interval.mean < 0 else 1.0
    t = interval.mean / (deviation / math.sqrt(len(shifted)))
    return t_tail(-t, len(shifted) - 1) if t < 0 else 1 - t_tail(t, len(shifted) - 1)


@dataclass(frozen=True, slots=True)
class Criterion:
    """One row of the verdict: what is asked, what was measured, and by how much it was missed; None: not measured.

    strict: it is missed by 0, too. over_cells: the same with the interval over cells instead of RNG seeds.
    """

    requirement: str
    measured: str
    missed_by: float | None
    strict: bool = False
    over_cells: str = ""

    @property
    def verdict(self) -> str:
        """Whether it is met, in words."""
        if self.missed_by is None:
            return "not measured"
        met = self.missed_by < 0 or (self.missed_by == 0 and not self.strict)
        return "met" if met else f"missed by {self.missed_by:.2g}"


@dataclass(frozen=True)
class CellResults:
    """The results of one cell on fresh seeds, in points of accuracy or in nats; lower loss counts as better."""

    study: CellStudy
    _read: dict[tuple[str, int, bool], list[Point]] = field(default_factory=dict)
    """Results that were looked up already, by arm and RNG seed, and whether from a trained host."""

    @cached_property
    def seeds(self) -> list[int]:
        """The fresh seeds of which every training is there."""
        return [seed for seed in self.study.size.fresh if self._is_complete(seed)]

    def _is_complete(self, seed: int) -> bool:
        size, filler = self.study.size, self.study.architecture_of("filler")
        expected = {"esper": len(size.esper_shares), "asha": 2, "retrain": len(size.shares)}
        scratch = all(
            len(self.points(arm, seed)) == expected.get(arm, 1) for arm in ("host", "best", "random", *expected)
        )
        late = (len(self.late(arm, seed)) == len(size.budgets) for arm in LATE if arm != "filler" or filler)
        return scratch and all(late)

    @cached_property
    def deficit(self) -> float:
        """Points from the host to the best static network on tuning seeds."""
        return self.study.deficit()

    def arm(self, arm: str, seed: int, share: float = 1.0) -> Point | None:
        """Return the result of an arm from scratch with its chosen setting."""
        return self.study.result(arm, self.study.chosen(arm), seed, share)

    def late(self, arm: str, seed: int, *, changed: bool = False) -> list[Point]:
        """Return the results of an arm from a trained host, by budget."""
        setting = self.study.chosen(arm, late=True, changed=changed)
        budgets = self.study.size.budgets
        points = [self.study.late_result(arm, setting, seed, budget, changed=changed) for budget in budgets]
        return [point for point in points if point]

    def points(self, arm: str, seed: int) -> list[Point]:
        """Return the results of a search or of growth from scratch, by horizon."""
        size = self.study.size
        shares = {"esper": size.esper_shares, "asha": size.shares[-2:], "retrain": size.shares}.get(arm, (1.0,))
        return [point for point in (self.arm(arm, seed, share) for share in shares) if point]

    def unit(self, seed: int) -> int:
        """Return the operations of the best static network from scratch."""
        best = self.arm("best", seed)
        assert best is not None
        return best.flops

    def at(self, arm: str, seed: int, flops: float, quantity: str = "accuracy", *, trained: bool = False) -> float:
        """Return accuracy in points, or loss, of an arm at so many operations, beside a trained host's own."""
        late = trained and arm != "retrain"
        key = arm, seed, late
        if key not in self._read:
            self._read[key] = self.late(arm, seed) if late else self.points(arm, seed)
        before = self.arm("host", seed) if late else None
        scale = 100.0 if quantity == "accuracy" else 1.0
        curve = [(point.flops, scale * getattr(point, quantity)) for point in self._read[key]]
        return read(curve, flops, None if before is None else scale * getattr(before, quantity))

    @cached_property
    def train_on(self) -> str:
        """The best way to train a trained host on, by validation on tuning seeds."""
        study = self.study
        arms = ("continue", "fresh", "early")
        return best_of({arm: study.score(arm, study.chosen(arm, late=True), late=True) for arm in arms})

    def kept(self) -> list[tuple[str, ...]]:
        """Return what growth from scratch kept in each run with the chosen rate and its neighbours."""
        study = self.study
        settings = [study.chosen("esper"), *study.neighbours("esper")]
        points = [study.result("esper", setting, seed) for setting in settings for seed in self.seeds]
        return [blocks for point in points if point for blocks in point.blocks]


Measure = Callable[[CellResults, int], float]


@dataclass(frozen=True)
class Results:
    """The results of all cells that have fresh records."""

    cells: Sequence[CellResults]

    @cached_property
    def seeds(self) -> list[int]:
        """The fresh seeds of which every cell has all trainings."""
        common = set.intersection(*(set(cell.seeds) for cell in self.cells)) if self.cells else set()
        return sorted(common)

    @cached_property
    def deficient(self) -> list[CellResults]:
        """The cells whose host has a deficit."""
        return [cell for cell in self.cells if cell.deficit >= DEFICIT]

    @cached_property
    def controls(self) -> list[CellResults]:
        """The cells in which there is nothing to gain."""
        return [cell for cell in self.cells if cell.deficit < CONTROL]

    def pooled(self, measure: Measure, cells: Sequence[CellResults]) -> Interval | None:
        """Return the mean over cells, with the interval over RNG seeds; None without cells or with one seed."""
        if not cells or len(self.seeds) < 2:
            return None
        return mean_interval([fmean(measure(cell, seed) for cell in cells) for seed in self.seeds])

    def over_cells(self, measure: Measure, cells: Sequence[CellResults]) -> Interval | None:
        """Return the mean over RNG seeds, with the interval over cells: that of another choice of cells."""
        if len(cells) < 2 or not self.seeds:
            return None
        return mean_interval([fmean(measure(cell, seed) for seed in self.seeds) for cell in cells])


def robustness(cell: CellResults, seed: int, neighbour: int) -> float:
    """Return what growth loses more than the best static network at a neighbouring rate, in points."""
    lost = []
    for arm in ("esper", "best"):
        settings = cell.study.chosen(arm), cell.study.neighbours(arm)[neighbour]
        chosen, nearby = (cell.study.result(arm, setting, seed) for setting in settings)
        if chosen is None or nearby is None:
            return math.nan
        lost.append(100 * (chosen.accuracy - nearby.accuracy))
    return lost[0] - lost[1]


def against_asha(cell: CellResults, seed: int, share: float = 1.0) -> float:
    """Return growth against ASHA in points, both at this share of the operations of the full search."""
    full = cell.points("asha", seed)[-1].flops
    return cell.at("esper", seed, share * full) - cell.at("asha", seed, share * full)


def against_best(cell: CellResults, seed: int) -> float:
    """Return growth at 1.25 times the operations of the best static network against that network, in points."""
    best = cell.arm("best", seed)
    assert best is not None
    return cell.at("esper", seed, 1.25 * best.flops) - 100 * best.accuracy


def from_trained(cell: CellResults, seed: int, budget: float, other: str, quantity: str = "accuracy") -> float:
    """Return growing against another use of the same operations; positive is better."""
    flops = budget * cell.unit(seed)
    way = 1 if quantity == "accuracy" else -1
    grown = cell.at("grow", seed, flops, quantity, trained=True)
    return way * (grown - cell.at(other, seed, flops, quantity, trained=True))


def left_alone(cell: CellResults, seed: int, budget: float, quantity: str = "accuracy") -> float:
    """Return growing against leaving a trained host as it is; positive is better."""
    host, way = cell.arm("host", seed), 1 if quantity == "accuracy" else -1
    assert host is not None
    before = 100 * host.accuracy if quantity == "accuracy" else host.loss
    return way * (cell.at("grow", seed, budget * cell.unit(seed), quantity, trained=True) - before)


def grown_late(cell: CellResults, seeds: Sequence[int], place: int) -> int:
    """Return in how many runs from a trained host anything was kept, at one of the budgets."""
    return sum(any(cell.late("grow", seed)[place].blocks) for seed in seeds)


Missed = Callable[[Interval], float]
Asked = tuple[str, Measure, Sequence[CellResults], Missed]


def criteria(results: Results) -> list[Criterion]:
    """Return each criterion with what was measured."""
    budgets = results.cells[0].study.size.budgets if results.cells else ()
    return [
        *(_row(results, *criterion) for criterion in _robust(results)),
        *_kept(results),
        *(_row(results, *criterion) for criterion in _scratch(results)),
        _worse_cells(results),
        *(_row(results, *criterion) for budget in budgets if budget <= 0.5 for criterion in _trained(results, budget)),
    ]


def _row(
    results: Results, requirement: str, measure: Measure, cells: Sequence[CellResults], missed: Missed
) -> Criterion:
    interval = results.pooled(measure, cells)
    if interval is None or math.isnan(interval.mean):
        return Criterion(requirement, "no such cells, or too few seeds", None)
    is_strict, over_cells = "better than" in requirement, results.over_cells(measure, cells)
    return Criterion(
        requirement,
        f"{shown(interval)} points",
        missed(interval),
        is_strict,
        "" if over_cells is None else shown(over_cells),
    )


def _at_least(margin: float) -> Missed:
    """Return by how much the lower end of an interval is below a margin."""
    return lambda interval: margin - (interval.mean if interval.low is None else interval.low)


def _robust(results: Results) -> Iterator[Asked]:
    for place, name in enumerate(("a third of", "three times")):
        requirement = f"at {name} the chosen rate growth loses at most 3 points more than the best static network"
        yield requirement, partial(robustness, neighbour=place), results.cells, lambda interval: interval.mean - 3


def _scratch(results: Results) -> Iterator[Asked]:
    yield "from scratch at most 1 point below ASHA at equal operations", against_asha, results.cells, _at_least(-1.0)
    requirement = "at least 2 points above ASHA at half of its operations, on deficit cells"
    yield requirement, partial(against_asha, share=0.5), results.deficient, lambda interval: 2.0 - interval.mean
    requirement = "at most 1 point below the best static network at 1.25 times its operations"
    yield requirement, against_best, results.cells, _at_least(-1.0)


def _trained(results: Results, budget: float) -> Iterator[Asked]:
    for other, alternative in (("retrain", "retraining"), ("", "training on")):
        margin, words = (0.0, "better than") if budget <= 0.25 else (-1.0, "at most 1 point below")
        requirement = f"from a trained network {words} {alternative} at {100 * budget:g} %, on deficit cells"

        def measure(cell: CellResults, seed: int, other: str = other) -> float:
            return from_trained(cell, seed, budget, other or cell.train_on)

        yield requirement, measure, results.deficient, _at_least(margin)


def _worse_cells(results: Results) -> Criterion:
    requirement = "no cell is significantly worse than ASHA by 3 points"
    if len(results.seeds) < 2:
        return Criterion(requirement, "too few seeds", None)
    ps = [p_not_below([against_asha(cell, seed) for seed in results.seeds], 3.0) for cell in results.cells]
    worse = [cell.study.cell.name for cell, p in zip(results.cells, holm(ps), strict=True) if p < 0.05]
    return Criterion(requirement, ", ".join(worse) or "none", len(worse))


def _kept(results: Results) -> list[Criterion]:
    needed = [
        any(block.rpartition("=")[2] in names for block in kept)
        for cell in results.deficient
        if (names := cell.study.needed())
        for kept in cell.kept()
    ]
    grown = [bool(kept) for cell in results.controls for kept in cell.kept()]
    return [
        judged("a needed block is kept in at least 95 % of at least 200 runs", needed, lambda share: 0.95 - share, 200),
        judged("controls grow in at most 5 % of runs", grown, lambda share: share - 0.05, 1),
    ]


def kept_by_cell(results: Results, cell: CellResults) -> tuple[int, int]:
    """Return in how many runs of a cell from scratch the needed block was kept, or any if none is needed; of how many.

    The runs are those of the criteria: with the chosen rate and its neighbours.
    """
    names = cell.study.needed() if cell in results.deficient else set()
    kept = [{block.rpartition("=")[2] for block in blocks} for blocks in cell.kept()]
    return sum(bool(blocks & names if names else blocks) for blocks in kept), len(kept)


def judged(requirement: str, outcomes: Sequence[bool], missed: Callable[[float], float], least: int) -> Criterion:
    """Return the verdict on a share. With fewer runs than ``least`` it counts only if its whole interval misses."""
    if not outcomes:
        return Criterion(requirement, "no runs", None)
    low, high = exact_interval(sum(outcomes), len(outcomes))
    text = f"{sum(outcomes)} of {len(outcomes)} ({100 * low:.1f} to {100 * high:.1f} %)"
    is_clear = len(outcomes) >= least or min(missed(low), missed(high)) > 0
    return Criterion(requirement, text, 100 * missed(sum(outcomes) / len(outcomes)) if is_clear else None)


def shown(interval: Interval | None, digits: int = 1) -> str:
    """Return a mean with its interval, signed.

    >>> shown(Interval(1.234, 0.5, 2.0, 8))
    '+1.2 (+0.5 to +2.0)'
    """
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:+z.{digits}f}".replace("-", "\N{MINUS SIGN}")
    text = f"{interval.mean:+z.{digits}f} ({interval.low:+z.{digits}f} to {interval.high:+z.{digits}f})"
    return text.replace("-", "\N{MINUS SIGN}")


def crossover(results: Results, quantity: str = "accuracy") -> float | None:
    """Return the least budget from which retraining is better than growing, on deficit cells; None: none is."""
    for step in range(41):
        budget = 0.05 * 20 ** (step / 40)

        def gain(cell: CellResults, seed: int, budget: float = budget) -> float:
            return from_trained(cell, seed, budget, "retrain", quantity)

        interval = results.pooled(gain, results.deficient)
        if interval is not None and interval.mean < 0:
            return budget
    return None
