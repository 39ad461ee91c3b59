"""Measured figures with their bounds, interleaved timing, and the comparison with the baseline."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from esper_run.runs.directory import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """A measured value.

    number: of the budget, such as ``P1``. bound: the largest acceptable value; None if there is no budget.
    """

    number: str
    label: str
    value: float
    unit: str
    bound: float | None = None
    digits: int = 2

    @property
    def key(self) -> str:
        """The name by which the baseline finds the figure."""
        return f"{self.number} {self.label}"

    @property
    def is_within_bound(self) -> bool:
        """Whether the value is acceptable."""
        return self.bound is None or self.value <= self.bound

    def formatted(self, value: float) -> str:
        """Return a value with the digits and the unit of the figure."""
        return f"{value:,.{self.digits}f} {self.unit}".rstrip().replace("-", "−")

    def cells(self, before: float | None) -> tuple[str, ...]:
        """Return the row of the printed table: figure, measured, baseline, bound, verdict."""
        bound = "" if self.bound is None else f"≤ {self.formatted(self.bound)}"
        baseline = "" if before is None else self.formatted(before)
        verdict = "" if self.bound is None else "OK" if self.is_within_bound else "OVER"
        return self.key, self.formatted(self.value), baseline, bound, verdict


def processor_time(act: Callable[[], object]) -> float:
    """Return the processor time of a call, which other programs disturb less than its time by the clock."""
    begin = time.process_time()
    act()
    return time.process_time() - begin


class Interleaved:
    """Times several sides in turn, so that a machine of varying speed affects all of them; compare the medians."""

    def __init__(self, sides: Mapping[str, Callable[[], object]]) -> None:
        self._sides = list(sides.items())
        self._turns = 0
        self.times: dict[str, list[float]] = {name: [] for name in sides}

    def turn(self) -> None:
        """Time each side once. Another side is first in each turn."""
        first = self._turns % len(self._sides)
        self._turns += 1
        for name, act in self._sides[first:] + self._sides[:first]:
            begin = time.perf_counter()
            reported = act()
            seconds = time.perf_counter() - begin
            self.times[name].append(reported if isinstance(reported, float) else seconds)

    def medians(self, turns: int) -> dict[str, float]:
        """Return each side's median time over the last ``turns``, in seconds."""
        return {name: statistics.median(times[-turns:]) for name, times in self.times.items()}


def figures_of(report: Mapping[str, Any]) -> list[Figure]:
    """Return the figures in a report of pytest-benchmark, by number of the budget."""
    figures = [Figure(**record) for test in report["benchmarks"] for record in test["extra_info"].get("figures", ())]
    return sorted(figures, key=lambda figure: int(figure.number[1:]))


def read_baseline(file: Path) -> dict[str, float]:
    """Return the values of the baseline by key; empty if there is none."""
    if not file.exists():
        return {}
    figures = [Figure(**record) for record in json.loads(file.read_text(encoding="utf-8"))["figures"]]
    return {figure.key: figure.value for figure in figures}


def write_baseline(file: Path, figures: Sequence[Figure]) -> None:
    """Write the figures with date and machine as the new baseline."""
    baseline = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine(),
        "figures": [asdict(figure) for figure in figures],
    }
    file.write_text(json.dumps(baseline, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(figures: Sequence[Figure], baseline: Mapping[str, float]) -> str:
    """Return the figures as an aligned table."""
    head = ("figure", "measured", "baseline", "bound", "verdict")
    rows = [head, *(figure.cells(baseline.get(figure.key)) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "".join(line.rstrip() + "\n" for line in lines)
