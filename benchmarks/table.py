"""Print a measurement as a table: a row for each figure with its bound; the rows decide the exit code."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Row:
    """One figure. ``bound`` is the largest value that is still good; None: it is shown for comparison only.

    at_least: the bound is the smallest value that is still good.
    """

    what: str
    value: float
    bound: float | None
    unit: str
    digits: int = 2
    at_least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the figure is within its bound."""
        return self.bound is None or (self.value >= self.bound if self.at_least else self.value <= self.bound)

    def cells(self) -> tuple[str, str, str, str]:
        """Return the row as it is printed."""
        value = f"{self.value:,.{self.digits}f} {self.unit}".rstrip()
        if self.bound is None:
            return self.what, value, "", ""
        bound = f"{'≥' if self.at_least else '≤'} {self.bound:,.{self.digits}f} {self.unit}".rstrip()
        return self.what, value, bound, "OK" if self.kept else "UNDER" if self.at_least else "OVER"


@dataclass(frozen=True)
class Table:
    """What was measured of one promise, ``P1`` say. note: what has to be known to read it."""

    number: str
    title: str
    rows: Sequence[Row]
    note: str = ""

    @property
    def kept(self) -> bool:
        """Whether every figure is within its bound."""
        return all(row.kept for row in self.rows)

    def text(self) -> str:
        """Return the table as it is printed."""
        lines = [f"{self.number}  {self.title}"]
        if self.rows:
            cells = [("", "measured", "bound", ""), *(row.cells() for row in self.rows)]
            widths = [max(len(line[column]) for line in cells) for column in range(4)]
            for what, value, bound, verdict in cells:
                lines.append(f"  {what:<{widths[0]}}  {value:>{widths[1]}}  {bound:>{widths[2]}}  {verdict}".rstrip())
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain data, each figure also as it is printed."""
        rows = [
            {**asdict(row), **dict(zip(("measured", "limit", "verdict"), row.cells()[1:], strict=True))}
            for row in self.rows
        ]
        return {"number": self.number, "title": self.title, "note": self.note, "rows": rows}


def table_of(plain: Mapping[str, Any]) -> Table:
    """Build a table from what ``as_json`` returned."""
    shown = ("measured", "limit", "verdict", "ever")
    rows = tuple(Row(**{key: value for key, value in row.items() if key not in shown}) for row in plain["rows"])
    return Table(plain["number"], plain["title"], rows, plain["note"])


class Measure(Protocol):
    """A measurement. ``quick`` runs it at a size that only shows that it works: its figures mean nothing."""

    def __call__(self, *, quick: bool = False) -> Sequence[Table]:
        """Measure, and return the tables."""
        ...


def answer(measure: Measure) -> int:
    """Parse the command line, measure and print the tables; return 1 if a bound was not kept.

    With ``--json`` they are printed as plain data, and that is success whatever they say.
    """
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="So small that the figures mean nothing.")
    parser.add_argument("--json", action="store_true", help="Plain data in place of tables.")
    asked = parser.parse_args()
    tables = measure(quick=asked.quick)
    if asked.json:
        sys.stdout.write(json.dumps([table.as_json() for table in tables]) + "\n")
        return 0
    sys.stdout.write("\n".join(table.text() for table in tables))
    return 0 if all(table.kept for table in tables) else 1
