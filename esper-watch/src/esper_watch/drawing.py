"""How does a story look in a terminal? A sparkline for each arm, and a line of stages for each seed's life."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import TYPE_CHECKING

from esper_core.leyline import Stage

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
    Stage.DRAINING: "▒",
    Stage.FOSSILIZED: "█",
    Stage.PRUNED: " ",
}
SHOWN = 5
"""Acts of the governor that are drawn."""

LEGEND = "░ training  ▒ blending  ▓ holding  █ kept"


def draw(story: Story, *, width: int = 80, lives: int = 16) -> str:
    """The story as lines of at most ``width`` characters, with the first ``lives`` lives of seeds."""
    lines = [f"{story.name}   {story.status}, {100 * story.share_done:.0f} % trained"]
    if story.reason:
        lines.append(f"  {story.reason.splitlines()[0]}")
    for said in story.left_out:
        lines += wrap(said, width, initial_indent="  ", subsequent_indent="    ")
    name_width = max((len(arm) for arm in story.arms), default=0)
    for arm in story.arms:
        curve = story.curve(arm)
        last = f"{curve[-1]:.4g}" if curve else "nothing yet"
        lines.append(f"  {arm:{name_width}}  {sparkline(curve, max(8, width - name_width - 16))}  {last}")
    lines += _governed(story.governed, width)
    shown = list(story.lives.values())[:lives]
    if shown:
        lines += ["", f"  {LEGEND}"]
        labels = [f"{life.arm} {life.seed} {life.slot} {life.blueprint.rpartition('/')[2]}" for life in shown]
        label_width = max(len(label) for label in labels)
        for label, life in zip(labels, shown, strict=True):
            lines.append(f"  {label:{label_width}}  {_life(life, story.steps, max(8, width - label_width - 6))}")
    if len(story.lives) > len(shown):
        lines.append(f"  … and {len(story.lives) - len(shown)} more")
    return "\n".join(line.rstrip() for line in lines)


def _governed(acts: Sequence[GovernorActed], width: int) -> list[str]:
    """The first few of what the governor did, warnings left out, and how many more there were."""
    serious = [one for one in acts if one.act != "warn"]
    lines = [
        f"  {one.arm} {one.seed}, step {one.step}: {one.act}: {(one.reason or one.verdict).splitlines()[0]}"[:width]
        for one in serious[:SHOWN]
    ]
    if len(serious) > SHOWN:
        lines.append(f"  … and {len(serious) - SHOWN} more of the governor's")
    return ["", *lines] if lines else []


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
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] if math.isfinite(value) else " " for value in picked)


def _life(life: Life, steps: int, width: int) -> str:
    columns = _thinned(range(steps), width)
    stages = [life.stage_at(int(step)) for step in columns]
    return "".join(" " if stage is None else MARKS[stage] for stage in stages)


def _thinned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    return [values[(index * len(values)) // width] for index in range(width)]
