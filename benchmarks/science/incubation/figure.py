"""Draw what each seed brought over the twin, and what gates of each price would have kept.

Written by hand as SVG, from ``results.json`` alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from benchmarks.science.incubation.cells import BLUEPRINTS, INCUBATIONS, PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Row = Mapping[str, Any]

COLOURS: Final = dict(zip(INCUBATIONS, ("#2563a8", "#c2571a"), strict=True))
WIDTH, PANEL, LEFT, GAP = 1120, 290, 130, 40
TOP, ROW, LOWER = 96, 26, 190
INK, FAINT = "#1f2937", "#d7dbe0"


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high``, on ``length`` pixels from ``start``; a negative length goes upwards."""

    low: float
    high: float
    start: float
    length: float

    def at(self, value: float) -> float:
        """Return the position of ``value``, clamped to the axis."""
        inside = min(max(value, self.low), self.high)
        return self.start + self.length * (inside - self.low) / (self.high - self.low)


def picture(found: Row) -> str:
    """Return the whole figure."""
    rows: Sequence[Row] = found["forced"]
    times = sorted({row["germination"] for row in rows})
    lines = [(blueprint, time) for blueprint in BLUEPRINTS for time in times]
    bottom = TOP + ROW * len(lines)
    height = bottom + 120 + LOWER + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 26, "What a seed brings that is forced in: points of test accuracy over the twin", size=15),
        _text(LEFT, 44, "Means of eight seeds with 95 % intervals; gates off", size=12),
        *_legend(),
        *(
            _text(LEFT - 12, TOP + ROW * (line + 0.5) + 4, f"{blueprint} at {time}", anchor="end")
            for line, (blueprint, time) in enumerate(lines)
        ),
    ]
    for number, place in enumerate(PLACES):
        own = [row for row in rows if row["place"] == place.name]
        left = LEFT + number * (PANEL + GAP)
        parts += _upper(place.name, own, lines, left, bottom)
        parts += _lower(own, left, bottom + 120)
    parts += [
        _text(LEFT, bottom + 76, "Seeds that strict gates would have kept, by the price of a parameter", size=15),
        _text(LEFT, bottom + 94, "Share of all; the broken line: those that brought more than their price", size=12),
        _text(LEFT - 12, bottom + 124, "100 %", anchor="end"),
        _text(LEFT - 12, bottom + 124 + LOWER, "0 %", anchor="end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend() -> Iterator[str]:
    for number, (name, colour) in enumerate(COLOURS.items()):
        left = WIDTH - 260 + 80 * number
        yield f'<circle cx="{left}" cy="40" r="4" fill="{colour}"/>'
        yield _text(left + 9, 44, name)


def _upper(
    name: str, rows: Sequence[Row], lines: Sequence[tuple[str, int]], left: float, bottom: float
) -> Iterator[str]:
    """Yield the gains over the twin at one place: a line per blueprint and time, a mark per incubation."""
    ends = [end for row in rows for end in row["points"][:3] if end is not None] or [0.0]
    step = next(step for step in (1, 2, 5, 10, 50) if max(ends) - min(ends) <= 8 * step or step == 50)
    low, high = step * (min(min(ends), 0) // step), -step * (-max(max(ends), step) // step)
    axis = Axis(low, high, left, PANEL)
    yield _text(left, TOP - 14, name, weight="bold")
    for tick in range(int(low), int(high) + 1, step):
        x, colour = axis.at(tick), INK if tick == 0 else FAINT
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}"/>'
        yield _text(x, bottom + 16, f"{tick:+d}".replace("-", "−") if tick else "0", anchor="middle")
    for row in rows:
        line = lines.index((row["blueprint"], row["germination"]))
        y = TOP + ROW * (line + 0.5) + 6 * (INCUBATIONS.index(row["incubation"]) - 1)
        mean, start, end, _ = row["points"]
        colour = COLOURS[row["incubation"]]
        if start is not None and end is not None:
            x1, x2 = axis.at(start), axis.at(end)
            yield f'<line x1="{x1:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="1.5"/>'
        yield f'<circle cx="{axis.at(mean):.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _lower(rows: Sequence[Row], left: float, top: float) -> Iterator[str]:
    """Yield the seeds kept, and the seeds that pay, over the prices."""
    prices = sorted({said["price"] for row in rows for said in row["verdicts"]})
    if not prices:
        return
    across, up = Axis(0, max(1, len(prices) - 1), left + 8, PANEL - 16), Axis(0, 1, top + LOWER, -LOWER)
    for share in (0.0, 0.5, 1.0):
        y = up.at(share)
        yield f'<line x1="{left}" y1="{y}" x2="{left + PANEL}" y2="{y}" stroke="{FAINT}"/>'
    for number, price in enumerate(prices):
        yield _text(across.at(number), top + LOWER + 18, _price(price), anchor="middle", size=11)
    yield _text(left + PANEL / 2, top + LOWER + 38, "nats per parameter", anchor="middle", size=11)
    for incubation, colour in reversed(COLOURS.items()):
        own = [row for row in rows if row["incubation"] == incubation]
        for what, dashes in (("kept", ""), ("worth", ' stroke-dasharray="4 4" stroke-opacity="0.7"')):
            shares = _shares(own, what)
            points = " ".join(f"{across.at(prices.index(price)):.1f},{up.at(shares[price]):.1f}" for price in shares)
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>'


def _shares(rows: Iterable[Row], what: str) -> dict[float, float]:
    """Return the share of seeds for which ``what`` holds, by price."""
    counts: Counter[float] = Counter()
    seeds: Counter[float] = Counter()
    for row in rows:
        for said in row["verdicts"]:
            counts[said["price"]] += said[what]
            seeds[said["price"]] += len(row["seeds"])
    return {price: counts[price] / total for price, total in sorted(seeds.items())}


def _price(price: float) -> str:
    if not price:
        return "0"
    digits, _, power = f"{price:.0e}".partition("e-")
    return f"{digits}e−{int(power)}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
