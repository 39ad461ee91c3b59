"""Tables and the picture of the documentation, from the content of ``results.json``.

Nothing is imported from the study, so that ``docs/generate.py`` can load this file alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Found = Mapping[str, Any]

CODE: Final = ("heuristic", "ppo")
"""Names that are written as code."""

SUMMARY: Final = (*("best fixed plan per price", "plan with one preview", "heuristic", "ppo", "best possible"),)
PRICE: Final = "40"


def summary(results: Found) -> str:
    """Return the reward of the main policies on the held-out problems, and the advantage of ``ppo``."""
    rows = []
    for name in SUMMARY:
        advantage = results["table"]["advantage"].get(name)
        by_price = results["table"]["policies"][name]
        rows.append((_label(name), *_rewards(by_price), _interval(advantage) if advantage else ""))
    return _table(("policy", "price 10", "20", "40", "80", "advantage of `ppo` at 40"), rows)


PARTS: Final[Mapping[str, Callable[[Found], str]]] = {"learned-summary": summary}
"""By the names with which the pages mark them."""


def _label(name: str) -> str:
    return f"`{name}`" if name in CODE else name


def _rewards(by_price: Mapping[str, Any]) -> Iterable[str]:
    return (_minus(f"{at_price['reward']['mean']:.1f}") for at_price in by_price.values())


def _interval(interval: Mapping[str, float], digits: int = 1) -> str:
    mean, low, high = (_minus(f"{interval[key]:.{digits}f}") for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _minus(number: str) -> str:
    return number.lstrip("-") if not float(number) else number.replace("-", "−")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# --- picture

WIDTH, LEFT, RIGHT, TOP, ROW = 860, 210, 60, 76, 30
INK, FAINT, MARK, OTHER = "#1f2937", "#d7dbe0", "#2563a8", "#6b7280"


def picture(results: Found) -> str:
    """Return the reward of every policy on the held-out problems, with intervals, as SVG."""
    policies = results["table"]["policies"]
    rows = sorted(
        ((name, by_price[PRICE]["reward"]) for name, by_price in policies.items()), key=lambda row: -row[1]["mean"]
    )
    height, problems = TOP + ROW * len(rows) + 56, results["table"]["problems"]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(20, 30, f"Reward on {problems} held-out problems", 17, INK),
            _text(
                20,
                52,
                f"points of accuracy over the twin, minus {PRICE} × added share of parameters; "
                "means and 95 % intervals over problems",
                12,
                OTHER,
            ),
            *_rows(rows),
            "</svg>",
            "",
        ]
    )


def _rows(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    lowest: float = min(0.0, *(row["low"] if row["low"] is not None else row["mean"] for _, row in rows)) - 1.0
    highest: float = max(row["high"] or row["mean"] for _, row in rows) * 1.08 + 1.0

    def at(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - lowest) / (highest - lowest)

    bottom = TOP + ROW * len(rows)
    for tick in range(int(-(-lowest // 5)) * 5, int(highest) + 1, 5):
        colour = FAINT if tick else INK
        yield f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{colour}"/>'
        yield _text(at(tick), bottom + 18, str(tick), 12, OTHER, "middle")
    for place, (name, row) in enumerate(rows):
        y, colour = TOP + ROW * place + 10, MARK if name == "ppo" else OTHER
        yield _text(LEFT - 14, y + 4, name, 13, INK, "end")
        low, high = (row[end] if row[end] is not None else row["mean"] for end in ("low", "high"))
        line = f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}"'
        yield f'{line} stroke="{colour}" stroke-width="3"/>'
        yield f'<circle cx="{at(row["mean"]):.1f}" cy="{y}" r="5" fill="{colour}"/>'
        yield _text(at(high) + 9, y + 4, f"{row['mean']:.1f}", 12, colour)


def _text(x: float, y: float, text: str, size: int, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{text}</text>'
