"""Text view of a run for ``esper watch``: a sparkline for each arm, and a line of stages for each seed.

Names come from files, and reasons from exceptions of third parties' packages: control characters in them are escaped.
"""

from __future__ import annotations

import math
import sys
import textwrap
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from esper_core.leyline import Stage
from esper_core.leyline.errors import printable
from esper_watch.formats import short_name
from esper_watch.history import mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.events import GovernorActed
    from esper_watch.history import History, SeedLife

BARS: Final = "▁▂▃▄▅▆▇█"

STAGE_SIGNS: Final = {
    Stage.GERMINATED: "·",
    Stage.TRAINING: "░",
    Stage.BLENDING: "▒",
    Stage.HOLDING: "▓",
    Stage.DRAINING: "▚",
    Stage.FOSSILISED: "█",
    Stage.PRUNED: " ",
}

LEGEND: Final = "· germinated  ░ training  ▒ blending  ▓ holding  ▚ draining  █ kept"

MAX_ACTS: Final = 5
"""Acts of the governor that are shown."""

_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


def as_json(history: History) -> dict[str, Any]:
    """Return the history as ``esper watch --json`` prints it. Figures that are not finite are None."""
    tests: dict[str, list[float]] = {}
    for episode in history.episodes:
        tests.setdefault(episode.arm, []).append(episode.test_metric)
    announced = () if history.started is None else history.started.arms
    return {
        "run": history.name,
        "status": history.status,
        "reason": history.reason,
        "left_out": history.skipped,
        "share_done": history.share_done,
        "arms": {
            arm: {
                "validation": [_finite(value) for value in history.mean_metric(arm)],
                "test": _finite(mean(tests[arm])) if arm in tests else None,
            }
            for arm in announced
        },
        "governor": [
            {key: getattr(act, key) for key in ("round", "arm", "seed", "step", "act", "reason")}
            for act in history.governor
        ],
        "lives": [
            {
                **{key: getattr(life, key) for key in ("round", "arm", "seed", "slot", "blueprint")},
                "stages": [{"step": change.step, "stage": change.now.value} for change in life.changes],
                "last_step": history.steps_of(life.environment) - 1,
            }
            for life in history.seeds
        ],
    }


def draw(history: History, *, width: int = 80, lives: int = 16) -> str:
    """Draw a run in lines of at most ``width`` columns, with the first ``lives`` seeds."""
    lines = [f"{printable(history.name)}   {printable(history.status)}, {100 * history.share_done:.0f} % trained"]
    if history.reason:
        lines.append(f"  {_first_line(history.reason)}")
    for text in history.skipped:
        lines += wrap(text, width)
    lines += [*_curves(history, width), *_governor(history.governor), *_lives(history, width, lives)]
    return "\n".join(cut(line, width).rstrip() for line in lines)


def _curves(history: History, width: int) -> list[str]:
    announced = () if history.started is None else history.started.arms
    names = {arm: cut(printable(arm), max(8, width // 3)) for arm in announced}
    name_width = max(map(cell_len, names.values()), default=0)
    lines = []
    for arm, name in names.items():
        curve = history.mean_metric(arm)
        last = f"{curve[-1]:.4g}" if curve else "nothing yet"
        lines.append(
            f"  {set_cell_size(name, name_width)}  {sparkline(curve, max(8, width - name_width - 16))}  {last}"
        )
    return lines


def _governor(acts: Sequence[GovernorActed]) -> list[str]:
    """Return a line for each of the first few acts, without warnings."""
    acts = [act for act in acts if act.act != "warn"]
    lines = [
        f"  {printable(act.arm)} {act.seed}, step {act.step}: {printable(act.act)}: "
        f"{_first_line(act.reason or act.verdict)}"
        for act in acts[:MAX_ACTS]
    ]
    if len(acts) > MAX_ACTS:
        lines.append(f"  … and {len(acts) - MAX_ACTS} more acts of the governor")
    return ["", *lines] if lines else []


def _lives(history: History, width: int, limit: int) -> list[str]:
    shown = history.seeds[:limit]
    if not shown:
        return []
    labels = [f"{life.arm} {life.seed} {life.slot} {short_name(life.blueprint)}" for life in shown]
    labels = [cut(printable(label), max(16, width // 2)) for label in labels]
    label_width = max(map(cell_len, labels))
    legend = textwrap.wrap(LEGEND.replace("  ", "\t").replace(" ", _NO_BREAK), max(16, width), expand_tabs=False)
    lines = ["", *(line.replace("\t", "  ").replace(_NO_BREAK, " ") for line in legend)]
    for label, life in zip(labels, shown, strict=True):
        signs = _stage_signs(history, life, max(8, width - label_width - 6))
        lines.append(f"  {set_cell_size(label, label_width)}  {signs}")
    if len(history.seeds) > len(shown):
        lines.append(f"  … and {len(history.seeds) - len(shown)} more")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, their columns two spaces apart.

    >>> aligned([["id", "package"], ["tasks", "esper-tasks"]])
    ['id     package', 'tasks  esper-tasks']
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def fits(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table fits into the terminal. There is always room where stdout is not a terminal."""
    return not sys.stdout.isatty() or max(map(cell_len, aligned(rows))) <= get_terminal_size().columns


def wrap(text: str, width: int | None = None) -> list[str]:
    """Return a text as printable lines of at most ``width`` columns, each but the first indented.

    Without a width they fit into the terminal; where stdout is not a terminal there is one line.
    """
    text = printable(text)
    if width is None:
        if not sys.stdout.isatty():
            return [text]
        width = max(20, get_terminal_size().columns - 1)
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    room = max(1, width - len(indent))
    first, *rest = (line.plain for line in Text(text.strip()).wrap(Console(width=room), room))
    return [indent[2:] + first, *(indent + line.rstrip() for line in rest)]


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits into ``width`` columns, with an ellipsis if something is missing."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0))}…"[: max(width, 0)]


def echo(text: str, *, err: bool = False) -> None:
    """Print a text. Characters that the stream cannot encode are escaped."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw numbers as one line of bars; values that are not finite are blank.

    >>> sparkline([0, 1, 2, 3], 8)
    '▁▃▆█'
    """
    picked = _thinned(values, width)
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return " " * len(picked)
    low, high = min(finite), max(finite)
    span = high / 2 - low / 2  # halves: the distance of two floats can overflow
    places = [
        (round((len(BARS) - 1) * ((value / 2 - low / 2) / span)) if span else 0) if math.isfinite(value) else None
        for value in picked
    ]
    return "".join(" " if place is None else BARS[place] for place in places)


def _stage_signs(history: History, life: SeedLife, width: int) -> str:
    """Draw a sign per step, or per several steps, up to the last known step."""
    last = history.steps_of(life.environment) - 1
    picked = _thinned(range(history.steps_per_episode), width)
    stages = [life.stage_at(int(step)) if step <= last else None for step in picked]
    return "".join(" " if stage is None else STAGE_SIGNS[stage] for stage in stages)


def _thinned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    return [values[(index * len(values)) // width] for index in range(width)]


def _first_line(text: str) -> str:
    return printable(next(iter(text.splitlines()), ""))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
