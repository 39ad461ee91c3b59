"""How is a measurement shown? A row for each figure with its bound beside it; the rows decide the exit code."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Row:
    """One figure. ``bound`` is the largest value that is still good; None: it is shown for comparison only."""

    what: str
    value: float
    bound: float | None
    unit: str
    digits: int = 2

    @property
    def kept(self) -> bool:
        """Whether the figure is within its bound."""
        return self.bound is None or self.value <= self.bound

    def cells(self) -> tuple[str, str, str, str]:
        """The row as it is printed."""
        value = f"{self.value:.{self.digits}f} {self.unit}"
        bound = "" if self.bound is None else f"≤ {self.bound:.{self.digits}f} {self.unit}"
        verdict = "" if self.bound is None else "kept" if self.kept else "OVER"
        return self.what, value, bound, verdict


def show(title: str, rows: Sequence[Row]) -> int:
    """Prints the table to stdout; 0 where every bound was kept, else 1."""
    cells = [("", "measured", "bound", ""), *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = [title]
    for what, value, bound, verdict in cells:
        lines.append(f"  {what:<{widths[0]}}  {value:>{widths[1]}}  {bound:>{widths[2]}}  {verdict}".rstrip())
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if all(row.kept for row in rows) else 1
