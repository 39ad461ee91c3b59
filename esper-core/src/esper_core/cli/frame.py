"""What stands on a terminal while a run runs? A few lines that fit its width: how far, how fast, and what grows where.

>>> fitted(["one", "two", "three"], 10, "  ", " | ")
['one | two', '  three']
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from esper_core.cli.output import duration, encodable
from esper_core.leyline.columns import columns, cut
from esper_core.leyline.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from esper_core.cli.tally import Tally

BAR: Final = (8, 30)
"""The fewest and the most columns of the bar; where there are fewer, it is left out."""

NAMES: Final = 16
"""Columns that the names of slots may take."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What the lines are drawn with, as far as the stream can encode it."""

    done: str = "━"
    open: str = "─"
    between: str = " · "
    more: str = "…"


PLAIN_SIGNS: Final = Signs("#", "-", " | ", "...")


def signs_for(stream: TextIO) -> Signs:
    """The signs that a stream can show."""
    signs = Signs()
    wanted = signs.done + signs.open + signs.between + signs.more
    return signs if encodable(wanted, stream) == wanted else PLAIN_SIGNS


def fitted(parts: Sequence[str], width: int, indent: str, between: str, more: str = "…") -> list[str]:
    """Parts in as few lines of at most ``width`` columns as they need, each but the first one indented."""
    lines: list[str] = []
    for part in parts:
        if lines and columns(lines[-1]) + columns(between) + columns(part) <= width:
            lines[-1] += between + part
        else:
            lines.append(cut((indent if lines else "") + part, width, more))
    return lines


def frame(tally: Tally, width: int, height: int, stream: TextIO, *, colour: bool) -> list[str]:
    """What is shown of a run in ``height`` lines of ``width`` columns at most, ready to be drawn."""
    signs = signs_for(stream)
    told = _Words(signs, stream)
    head = _head(tally, width, told, colour=colour)
    course = fitted(_course(tally, told), width, "", signs.between, signs.more)
    below = [*_slots(tally, width, told), *_governor(tally, width, told)]
    room = max(0, height - 1 - len(course))
    if len(below) > room:
        missing = len(below) - room + 1
        below = [*below[: room - 1], cut(f"{signs.more} {missing} more lines", width, signs.more)] if room else []
    if colour:
        course = [click.style(line, dim=True) for line in course]
    return [head, *course, *below][: max(1, height)]


@dataclass(frozen=True, slots=True)
class _Words:
    """Names as they may be shown: without what a terminal obeys, and in what the stream can encode."""

    signs: Signs
    stream: TextIO

    def __call__(self, text: str) -> str:
        return encodable(printable(text), self.stream)


def _head(tally: Tally, width: int, told: _Words, *, colour: bool) -> str:
    """The run's name, the bar, the share that is done, and the time left, as far as there is room for them."""
    if not tally.total:
        return cut("starting", width, told.signs.more)
    share = min(1.0, tally.done / tally.total)
    tail = f"{int(100 * share)} %"
    left = tally.pace.left(tally.total)
    if left is not None and tally.done < tally.total:
        tail += f"  {duration(left)} left"
    name, (least, most) = told(tally.run), BAR
    room = width - columns(tail) - 2
    if columns(name) + 2 + least > room:  # the words say which run it is; its time, when it began, is left out
        from esper_core.runs.records import words_of

        name = told(words_of(tally.run))
    bar = min(most, room - columns(name) - 2)
    if bar < least:
        return cut(f"{cut(name, max(room, 4), told.signs.more)}  {tail}", width, told.signs.more)
    full = round(bar * share)
    done, rest = told.signs.done * full, told.signs.open * (bar - full)
    if colour:
        done, rest = click.style(done, fg="green"), click.style(rest, dim=True)
    return f"{name}  {done}{rest}  {tail}"


def _course(tally: Tally, told: _Words) -> list[str]:
    if tally.step < 0:
        return []
    place = f"step {tally.step + 1} of {tally.steps}"
    if tally.rounds > 1:
        place = f"round {tally.round + 1} of {tally.rounds}, {place}"
    parts = [place]
    if (rate := tally.pace.rate) is not None:
        parts.append(pace_told(rate))
    return [*parts, told(", ".join(tally.arms))] if tally.arms else parts


def pace_told(rate: float) -> str:
    """
    >>> pace_told(1204.3), pace_told(0.314)
    ('1,204 env steps/s', '0.31 env steps/s')
    """
    return f"{rate:,.0f} env steps/s" if rate >= 10 else f"{rate:.2g} env steps/s"


def _slots(tally: Tally, width: int, told: _Words) -> list[str]:
    """A line, or as many as it takes, for each slot: how many seeds of each blueprint are in which stage."""
    slots = [(cut(told(slot), NAMES, told.signs.more), grows) for slot, grows in tally.slots()]
    column = max((columns(slot) for slot, _ in slots), default=0)
    names = _short(name for _, grows in slots for name in grows)
    lines = []
    for slot, grows in slots:
        parts = [
            f"{told(names[name])}: {', '.join(f'{count} {stage.value}' for stage, count in stages.items())}"
            for name, stages in grows.items()
        ]
        first, *others = parts or ["nothing yet"]
        begin = f"{slot}{' ' * (column - columns(slot))}  "
        lines += fitted([begin + first, *others], width, " " * (column + 2), told.signs.between, told.signs.more)
    return lines


def _short(names: Iterable[str]) -> dict[str, str]:
    """What blueprints are called without their plugins, where that is one of them only.

    >>> _short(["a/conv", "b/conv", "a/mlp"])
    {'a/conv': 'a/conv', 'b/conv': 'b/conv', 'a/mlp': 'mlp'}
    """
    known = {name: name.rpartition("/")[2] for name in names}
    counts = Counter(known.values())
    return {name: short if counts[short] == 1 else name for name, short in known.items()}


def _governor(tally: Tally, width: int, told: _Words) -> list[str]:
    """How often the governor acted, and how it did so last."""
    if not tally.acts:
        return []
    parts = [f"governor: {acts_told(tally)}", told(tally.latest_act)]
    return fitted(parts, width, "  ", told.signs.between, told.signs.more)


def acts_told(tally: Tally) -> str:
    """How often the governor did what."""
    return ", ".join(f"{count} {act}" for act, count in sorted(tally.acts.items()))
