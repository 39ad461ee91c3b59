"""How does a story look in a terminal? A sparkline for each arm, and a line of stages for each seed's life.

Names come from files, and reasons from the exceptions of anybody's package: a terminal obeys nothing in them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from esper_core.leyline import Stage
from esper_core.leyline.columns import columns, cut, padded, wrapped
from esper_core.leyline.markup import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.events import GovernorActed
    from esper_watch.story import Life, Story

BARS = "▁▂▃▄▅▆▇█"
MARKS = {
    Stage.GERMINATED: "·",
    Stage.TRAINING: "░",
    Stage.BLENDING: "▒",
    Stage.HOLDING: "▓",
    Stage.DRAINING: "▚",
    Stage.FOSSILIZED: "█",
    Stage.PRUNED: " ",
}
SHOWN = 5
"""Acts of the governor that are drawn."""

LEGEND = "· germinated  ░ training  ▒ blending  ▓ holding  ▚ draining  █ kept"

_BOUND = "\N{NO-BREAK SPACE}"
"""Between a sign of the legend and its name, so that no line ends there."""


def draw(story: Story, *, width: int = 80, lives: int = 16) -> str:
    """The story as lines of at most ``width`` columns, with the first ``lives`` lives of seeds."""
    lines = [f"{printable(story.name)}   {printable(story.status)}, {100 * story.share_done:.0f} % trained"]
    if story.reason:
        lines.append(f"  {_first_line(story.reason)}")
    for said in story.left_out:
        lines += wrapped(printable(said), width, then="    ")
    lines += [*_curves(story, width), *_governed(story.governed), *_lives(story, width, lives)]
    return "\n".join(cut(line, width).rstrip() for line in lines)


def _curves(story: Story, width: int) -> list[str]:
    """A line for each arm."""
    names = {arm: cut(printable(arm), max(8, width // 3)) for arm in story.arms}
    name_width = max(map(columns, names.values()), default=0)
    lines = []
    for arm, name in names.items():
        curve = story.curve(arm)
        last = f"{curve[-1]:.4g}" if curve else "nothing yet"
        lines.append(f"  {padded(name, name_width)}  {sparkline(curve, max(8, width - name_width - 16))}  {last}")
    return lines


def _governed(acts: Sequence[GovernorActed]) -> list[str]:
    """The first few of what the governor did, warnings left out, and how many more there were."""
    serious = [one for one in acts if one.act != "warn"]
    lines = [
        f"  {printable(one.arm)} {one.seed}, step {one.step}: {printable(one.act)}: "
        f"{_first_line(one.reason or one.verdict)}"
        for one in serious[:SHOWN]
    ]
    if len(serious) > SHOWN:
        lines.append(f"  … and {len(serious) - SHOWN} more of the governor's")
    return ["", *lines] if lines else []


def _lives(story: Story, width: int, most: int) -> list[str]:
    """The legend, and a line for each of the first ``most`` seeds."""
    shown = list(story.lives.values())[:most]
    if not shown:
        return []
    labels = [f"{life.arm} {life.seed} {life.slot} {life.blueprint.rpartition('/')[2]}" for life in shown]
    labels = [cut(printable(label), max(16, width // 2)) for label in labels]
    label_width = max(map(columns, labels))
    legend = "  ".join(one.replace(" ", _BOUND) for one in LEGEND.split("  "))
    signs = wrapped(legend, max(16, width))
    lines = ["", *(line.replace(_BOUND, " ") for line in signs)]
    for label, life in zip(labels, shown, strict=True):
        course = _life(life, story.steps, story.last_step(life), max(8, width - label_width - 6))
        lines.append(f"  {padded(label, label_width)}  {course}")
    if len(story.lives) > len(shown):
        lines.append(f"  … and {len(story.lives) - len(shown)} more")
    return lines


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of some numbers in one line; what is not finite is left blank.

    >>> sparkline([0, 1, 2, 3], 8)
    '▁▃▆█'
    """
    picked = _thinned(values, width)
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return " " * len(picked)
    low, high = min(finite), max(finite)
    span = high / 2 - low / 2  # halves, for the distance of two numbers can be larger than the largest number
    scale = len(BARS) - 1
    places = [
        (round(scale * ((value / 2 - low / 2) / span)) if span else 0) if math.isfinite(value) else None
        for value in picked
    ]
    return "".join(" " if place is None else BARS[place] for place in places)


def _life(life: Life, steps: int, last: int, width: int) -> str:
    """A sign for each step, or for every so-manieth: until the end, or as far as is known."""
    columns = _thinned(range(steps), width)
    stages = [life.stage_at(int(step)) if step <= last else None for step in columns]
    return "".join(" " if stage is None else MARKS[stage] for stage in stages)


def _thinned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    return [values[(index * len(values)) // width] for index in range(width)]


def _first_line(text: str) -> str:
    """What a reason begins with, as a line that can be shown."""
    return printable(next(iter(text.splitlines()), ""))
