"""A figure of the study: reward of every policy on the held-out problems, with intervals, as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from benchmarks.science.learned_policies.players import HEADLINE
from benchmarks.science.learned_policies.report import LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WIDTH, LEFT, RIGHT, TOP, ROW = 860, 210, 60, 76, 30
INK, FAINT, MARK, OTHER = "#1f2937", "#d7dbe0", "#2563a8", "#6b7280"
LOWEST: Final = -25.0


def picture(found: Mapping[str, Any]) -> str:
    """Return the figure."""
    players = found["table"]["players"]
    rows = sorted(
        ((name, own[f"{HEADLINE:g}"]["reward"]) for name, own in players.items()), key=lambda row: -row[1]["mean"]
    )
    highest = max(row["high"] or row["mean"] for _, row in rows) * 1.08 + 1.0
    lowest = min(0.0, *(max(LOWEST, row["low"] or row["mean"]) for _, row in rows)) - 1.0
    height = TOP + ROW * len(rows) + 56
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="20" y="30" font-size="17" fill="{INK}">'
            f"Reward on {found['problems']['held_out']} held-out problems</text>",
            f'<text x="20" y="52" font-size="12" fill="{OTHER}">points of accuracy over the twin, minus '
            f"{HEADLINE:g} × added share of parameters; means and 95 % intervals over problems</text>",
            *_rows(rows, lowest, highest),
            "</svg>",
            "",
        ]
    )


def _rows(rows: list[tuple[str, Mapping[str, Any]]], lowest: float, highest: float) -> Iterator[str]:
    def at(value: float) -> float:
        inside = min(max(value, lowest), highest)
        return LEFT + (WIDTH - LEFT - RIGHT) * (inside - lowest) / (highest - lowest)

    bottom = TOP + ROW * len(rows)
    for tick in range(int(lowest // 5) * 5, int(highest) + 1, 5):
        if tick >= lowest:
            colour = INK if tick == 0 else FAINT
            yield f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{colour}"/>'
            yield (
                f'<text x="{at(tick):.1f}" y="{bottom + 18}" font-size="12" text-anchor="middle" '
                f'fill="{OTHER}">{tick}</text>'
            )
    for place, (name, row) in enumerate(rows):
        y, colour = TOP + ROW * place + 10, MARK if name == "ppo" else OTHER
        label = escape(LABELS.get(name, name).strip("`"))
        yield f'<text x="{LEFT - 14}" y="{y + 4}" font-size="13" text-anchor="end" fill="{INK}">{label}</text>'
        if row["low"] is not None:
            yield (
                f'<line x1="{at(row["low"]):.1f}" x2="{at(row["high"]):.1f}" y1="{y}" y2="{y}" '
                f'stroke="{colour}" stroke-width="3"/>'
            )
        yield f'<circle cx="{at(row["mean"]):.1f}" cy="{y}" r="5" fill="{colour}"/>'
        yield (
            f'<text x="{at(row["high"] or row["mean"]) + 9:.1f}" y="{y + 4}" font-size="12" '
            f'fill="{colour}">{row["mean"]:.1f}</text>'
        )
