"""Text view of a run: a curve for each arm and its difference to the twin, seeds by stage, and their lives.

``esper watch`` prints it, and ``progress`` draws parts of it again and again.

Names come from files, and reasons from exceptions of third parties' packages: control characters in them are escaped.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections import Counter
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from esper_core.leyline import Stage
from esper_core.leyline.constants import CONFIDENCE
from esper_core.leyline.errors import plural, printable
from esper_run.cli.output import encodable
from esper_run.formats import NO_BREAK, STAGE_WORDS, plain
from esper_run.runs.statistics import mean_interval
from esper_watch.formats import format_difference, format_difference_interval, format_percent, format_value, short_name
from esper_watch.history import TWIN, is_usable, mean

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

MAX_LIVES: Final = 16
"""Seeds that are shown."""

MAX_ACTS: Final = 3
"""Acts of the governor that are shown, the latest."""

_JOINED: Final = "\ue000"
"""Stands for a no-break space while a text is wrapped, since rich breaks lines there, too."""


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


def draw(history: History, *, width: int = 80, height: int | None = None) -> str:
    """Draw a run in lines of at most ``width`` columns, with the seeds of the first networks.

    There are ``MAX_LIVES`` seeds at most, fewer where all lines would not fit into ``height``.
    """
    name, done = printable(history.name), plain(format_percent(history.share_done, 0))
    status = f"{printable(history.status)}, {done} trained"
    is_narrow = cell_len(f"{name}   {status}") > width
    lines = [status] if is_narrow else []
    if history.reason:
        lines.append(f"  {_first_line(history.reason)}")
    for text in history.skipped:
        lines += wrap(text, width)
    if (phase := phase_text(history)) and history.status != "done":
        lines += wrap(phase, width)
    lines += [*arm_lines(history, width), *slot_lines(history, width), *governor_lines(history.governor, width)]
    lives = MAX_LIVES if height is None else min(MAX_LIVES, max(3, height - len(lines) - 5))
    # Beside each other: the seeds of one network.
    lines += life_lines(history, sorted(history.seeds, key=lambda life: (life.round, life.seed))[:lives], width)
    first = name if is_narrow else f"{name}   {status}"  # whole in any case, since it is copied from here
    return "\n".join([first, *(cut(plain(line), width).rstrip() for line in lines)])


def phase_text(history: History) -> str:
    """Return where a run is: the phase, the arms in it, round and step; empty if nothing was trained."""
    if history.started is None or history.latest is None:
        return ""
    started, latest, phases, number = history.started, history.latest, history.phases, history.phase
    arms = ", ".join(phases[number]) if phases else ""
    parts = [f"phase {number + 1} of {len(phases)} ({arms})" if len(phases) > 1 else arms]
    parts += [f"round {latest.round + 1} of {started.rounds}"] if started.rounds > 1 else []
    parts += [f"step {latest.step + 1} of {started.steps}", plural(started.environments, "network")]
    return ", ".join(parts)


def arm_lines(history: History, width: int) -> list[str]:
    """Return a table: the curve of each arm, all on one scale, its latest metric, and its difference to the twin.

    The figures are of the test split once the run is done and read it, else of validation data.
    """
    metric, done = history.metric, history.status == "done"
    arms = [arm for phase in history.phases[: history.phase + 1] for arm in phase]
    if not arms:
        return []
    curves = {arm: history.mean_metric(arm) for arm in arms}
    finite = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    tested = done and any(is_usable(episode.test_metric) for episode in history.episodes)
    rows = [_arm_row(history, arm, curves[arm], tested=tested) for arm in arms]
    head = [
        "test" if tested else "now",
        *(["to twin", "95\N{NO-BREAK SPACE}% interval"] if any(row[1] for row in rows) else []),
    ]
    cells = [row[: len(head)] for row in (head, *rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(head))]
    longest = max(cell_len(printable(arm)) for arm in arms)
    while len(widths) > 1 and min(longest, width // 4) + sum(2 + size for size in widths) + 12 > width:
        widths = widths[:-1]  # what does not fit whole is left out
    cells = [row[: len(widths)] for row in cells]
    names = [cut(printable(arm), max(8, width // 4)) for arm in arms]
    name_width = max(map(cell_len, names))
    room = max(8, width - 2 - name_width - sum(2 + column_width for column_width in widths) - 2)
    steps = history.steps_per_episode * (1 if history.started is None else history.started.rounds)
    tails = [
        "  ".join(" " * (size - cell_len(cell)) + cell for cell, size in zip(row, widths, strict=True)) for row in cells
    ]
    title = f"validation {printable(metric.name)}"
    title = cut(title if cell_len(title) <= room else printable(metric.name), room)
    lines = [f"  {' ' * name_width}  {set_cell_size(title, room)}  {tails[0]}"]
    for arm, name, tail in zip(arms, names, tails[1:], strict=True):
        curve = curves[arm]
        columns = max(1, min(room, steps) * len(curve) // max(1, steps, len(curve)))
        line = sparkline(curve, columns, (low, high))
        lines.append(f"  {set_cell_size(name, name_width)}  {set_cell_size(line, room)}  {tail}")
    if finite:
        scale = f"▁ {format_value(metric, low)}  █ {format_value(metric, high)}"
        lines.append(f"  {' ' * name_width}  {scale}")
    return ["", *lines]


def _arm_row(history: History, arm: str, curve: Sequence[float], *, tested: bool) -> list[str]:
    """Return the latest metric of an arm, and its difference to the twin with an interval, as far as known."""
    metric = history.metric
    ends = [episode.test_metric for episode in history.episodes if episode.arm == arm] if tested else []
    now = mean(ends) if ends else curve[-1] if curve and not tested else None
    cells = ["–" if now is None else format_value(metric, now), "", ""]
    if arm == TWIN:
        return cells
    pairs = history.test_pairs(arm, TWIN) if tested else history.latest_pairs(arm, TWIN)[1]
    if differences := [metric.gain(grown, twin) for grown, twin in pairs if is_usable(grown) and is_usable(twin)]:
        interval = mean_interval(differences, CONFIDENCE)
        cells[1] = format_difference(metric, interval.mean)
        if interval.low is not None and interval.high is not None:
            cells[2] = format_difference_interval(metric, interval.low, interval.high).removesuffix(f"{NO_BREAK}points")
    return cells


def slot_lines(history: History, width: int) -> list[str]:
    """Return, for each slot, how many seeds of which blueprint are in which stage, in the latest round."""
    seeds = history.latest_seeds()
    counts = Counter((life.arm, life.slot, life.blueprint, life.stage) for life in seeds)
    grown = dict.fromkeys(life.arm for life in seeds)
    lines = []
    arm_width = max((cell_len(printable(arm)) for arm in grown), default=0)
    for arm in grown:
        slots = dict.fromkeys((*history.slots.get(arm, ()), *(life.slot for life in seeds if life.arm == arm)))
        label_width = max(cell_len(printable(slot)) for slot in slots)
        for slot in slots:
            blueprints = dict.fromkeys(name for life_arm, place, name, _ in counts if (life_arm, place) == (arm, slot))
            description = "; ".join(
                f"{short_name(name)} "
                + ", ".join(
                    f"{counts[arm, slot, name, stage]} {STAGE_WORDS[stage]}"
                    for stage in Stage
                    if counts[arm, slot, name, stage]
                )
                for name in blueprints
            )
            label = set_cell_size(printable(slot), label_width)
            of = f"{set_cell_size(printable(arm), arm_width)}  " if len(grown) > 1 else ""
            lines += wrap(f"  {of}{label}  {description or 'nothing yet'}", width)
    return ["", *lines] if lines else []


def governor_lines(acts: Sequence[GovernorActed], width: int) -> list[str]:
    """Return a line for each of the latest few acts, without warnings, and how many warnings there were."""
    acts, warnings = [act for act in acts if act.act != "warn"], sum(act.act == "warn" for act in acts)
    lines = [
        cut(
            f"  governor: {printable(act.act)} of {printable(act.arm)} {act.seed}, step {act.step + 1}: "
            f"{_first_line(act.reason or act.verdict)}",
            width,
        )
        for act in acts[-MAX_ACTS:]
    ]
    if len(acts) > MAX_ACTS:
        lines.append(f"  governor: {plural(len(acts) - MAX_ACTS, 'earlier act')}")
    if warnings:
        lines.append(f"  governor: {plural(warnings, 'warning')}")
    return ["", *lines] if lines else []


def life_lines(history: History, shown: Sequence[SeedLife], width: int) -> list[str]:
    """Return a line of stages for each of some seeds, below a legend."""
    if not shown:
        return []
    has_arms = len({life.arm for life in shown}) > 1
    labels = [f"{life.arm if has_arms else ''} {life.seed} {life.slot} {short_name(life.blueprint)}" for life in shown]
    labels = [cut(printable(label.strip()), max(16, width // 2)) for label in labels]
    label_width = max(map(cell_len, labels))
    legend = textwrap.wrap(LEGEND.replace("  ", "\t").replace(" ", NO_BREAK), max(16, width), expand_tabs=False)
    lines = ["", *(plain(line.replace("\t", "  ")) for line in legend)]
    for label, life in zip(labels, shown, strict=True):
        signs = _stage_signs(history, life, max(8, width - label_width - 6))
        lines.append(f"  {set_cell_size(label, label_width)}  {signs}")
    if len(history.seeds) > len(shown):
        lines.append(f"  … and {len(history.seeds) - len(shown):,} more seeds")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, their columns two spaces apart.

    >>> aligned([["id", "package"], ["tasks", "esper-tasks"]])
    ['id     package', 'tasks  esper-tasks']
    """
    cells = [[printable(plain(cell)) for cell in row] for row in rows]
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
    if width is None and not sys.stdout.isatty():
        return [printable(plain(text))]
    width = max(20, get_terminal_size().columns - 1) if width is None else width
    text = _JOINED.join(map(printable, text.split(NO_BREAK)))
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    room = max(1, width - len(indent))
    first, *following = (line.plain for line in Text(text.strip()).wrap(Console(width=room), room))
    return [
        line.replace(_JOINED, " ") for line in (indent[2:] + first, *(indent + line.rstrip() for line in following))
    ]


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits into ``width`` columns, with an ellipsis if something is missing."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0))}…"[: max(width, 0)]


def echo(text: str, *, err: bool = False) -> None:
    """Print a text. Characters that the stream cannot encode are escaped."""
    stream = sys.stderr if err else sys.stdout
    click.echo(encodable(text, stream), file=stream)


def sparkline(values: Sequence[float], width: int, scale: tuple[float, float] | None = None) -> str:
    """Draw numbers as one line of bars, from the lowest to the highest of ``scale``, or of their own.

    Values that are not finite are blank.

    >>> sparkline([0, 1, 2, 3], 8)
    '▁▃▆█'
    """
    picked = _thinned(values, width)
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return " " * len(picked)
    low, high = (min(finite), max(finite)) if scale is None else scale
    span = high / 2 - low / 2  # halves: the distance of two floats can overflow
    places = [
        (round((len(BARS) - 1) * min(1.0, max(0.0, (value / 2 - low / 2) / span))) if span else 0)
        if math.isfinite(value)
        else None
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
    return [values[((index + 1) * len(values)) // width - 1] for index in range(width)]


def _first_line(text: str) -> str:
    return printable(next(iter(text.splitlines()), ""))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
