"""What grew where, and when? A bar for each seed's life, in the colours of its stages, network by network."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from esper_core.leyline import Stage
from esper_watch.report.figure import (
    UNDER,
    WIDTH,
    bar,
    below,
    drawing,
    figure,
    label,
    mark,
    note,
    plot,
    section,
    shortened,
    swatches,
)
from esper_watch.report.markup import Element, element
from esper_watch.report.scale import Scale
from esper_watch.report.wording import count, plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline.events import GovernorActed
    from esper_watch.report.record import Record, SeedLife

ROW, HEAD = 15.0, 20.0
LEFT, RIGHT = 190.0, 24.0
AT_ONCE = 8
"""Networks of an arm that are shown; the others wait behind a click."""

MOST_LIVES = 4_000
"""Lives that are drawn, the first of them: a page has to open soon."""

NAMES = {
    Stage.GERMINATED: "planted, not trained yet",
    Stage.TRAINING: "training in isolation",
    Stage.BLENDING: "blending in",
    Stage.HOLDING: "holding",
    Stage.DRAINING: "draining",
    Stage.FOSSILIZED: "kept",
}
ENDED = {Stage.FOSSILIZED: "kept", Stage.PRUNED: "pruned"}


def lives(record: Record) -> Element | None:
    """The lives of the latest round, arm by arm."""
    if not record.lives:
        return None
    last = max(life.home[0] for life in record.lives)
    drawn: list[Element] = []
    left, shown = MOST_LIVES, 0
    for arm in record.arms:
        own = record.lives_of(last, arm)
        picked: dict[int, list[SeedLife]] = {}
        for seed, there in own.items():
            if left >= len(there):
                picked[seed] = there
                left -= len(there)
        if picked:
            drawn += _arm(record, last, arm, picked)
            shown += sum(map(len, picked.values()))
    counted = Counter(ENDED.get(life.stage, "still living") for life in record.lives if life.home[0] == last)
    told = ", ".join(f"{number} {how}" for how, number in sorted(counted.items(), key=lambda one: (-one[1], one[0])))
    whole = sum(counted.values())
    spans = [span for one in record.lives if one.home[0] == last for span in _spans(one, record.steps_of(one.home))]
    named = names(untrained=any(span[0] is Stage.GERMINATED for span in spans))
    return section(
        "lives",
        "The seeds' lives",
        element("p", f"{count(whole, 'seed')}: {told}." + _which_round(record, last)),
        swatches([(name, f"stage-{stage.value}") for stage, name in named.items()] + [("pruned ✕", "stage-pruned")]),
        *drawn,
        note("Time runs from left to right, in decision steps. A seed in isolation changes nothing in its host."),
        _left_out(whole - shown),
    )


def names(*, untrained: bool) -> dict[Stage, str]:
    """What the colours are called. untrained: whether there is a bar of one that was planted, and never trained."""
    return {stage: name for stage, name in NAMES.items() if untrained or stage is not Stage.GERMINATED}


def _left_out(number: int) -> Element | None:
    return note(f"{count(number, 'more life', 'more lives')} are not drawn.") if number else None


def _which_round(record: Record, last: int) -> str:
    return f" Those of round {last}, the latest." if len(record.rounds) > 1 else ""


def _arm(record: Record, round_: int, arm: str, own: Mapping[int, Sequence[SeedLife]]) -> list[Element]:
    acts = [one for one in record.governed if (one.round, one.arm) == (round_, arm)]
    seeds = list(own)
    first = drawn(record, arm, {seed: own[seed] for seed in seeds[:AT_ONCE]}, acts)
    parts = [element("h3", arm), figure(first, None, class_="stacked rows")]
    if rest := seeds[AT_ONCE:]:
        more = drawn(record, arm, {seed: own[seed] for seed in rest}, acts)
        title = element("summary", f"{count(len(rest), 'more network')} of {arm}")
        parts.append(element("details", title, figure(more, None, class_="stacked rows")))
    return parts


def drawn(record: Record, arm: str, own: Mapping[int, Sequence[SeedLife]], acts: Sequence[GovernorActed]) -> Element:
    """The lives in some networks of an arm."""
    across = Scale(0.0, float(max(1, record.steps)), LEFT, WIDTH - RIGHT)
    y, parts, marks = 6.0, list[Element](), list[Element]()
    for seed, there in own.items():
        parts.append(label(4, y + 13, f"network {seed}", class_="label strong"))
        parts.append(element("line", x1=0, x2=WIDTH, y1=y, y2=y, class_="grid"))
        marks += [_act(one, across, y + HEAD / 2) for one in acts if one.seed == seed]
        y += HEAD
        for life in there:
            name = shortened(_name(life), 28)
            parts.append(label(LEFT - 8, y + 10, name, anchor="end", class_="tick row", title=in_words(life)))
            marks += _life(life, across, y, record.steps_of(life.home))
            y += ROW
        y += 5
    axis = below(across, y, lambda step: f"{step:g}", "decision step", top=6)
    what = f"{count(sum(map(len, own.values())), 'seed')} in {count(len(own), 'network')} of {arm}."
    return drawing(f"Lives of seeds, {arm}", what, [plot([*axis, *marks]), *parts], height=y + UNDER)


def _name(life: SeedLife) -> str:
    return f"{life.slot}  {plainly(life.blueprint)}"


def _life(life: SeedLife, across: Scale, y: float, steps: int) -> list[Element]:
    name, parts = _name(life), list[Element]()
    for stage, start, stop, told in _spans(life, steps):
        if stage is Stage.PRUNED:
            cross = element("path", d=_cross(across(start), y + 6), class_="cross")
            parts.append(mark("g", f"{name}: {told}", cross))
        else:
            width = max(1.5, across(stop) - across(start))
            parts.append(bar(across(start), y, width, ROW - 4, f"{name}: {told}", f"stage-{stage.value}"))
    return parts


def _spans(life: SeedLife, steps: int) -> Iterator[tuple[Stage, int, int, str]]:
    """What is drawn of a life: a stage, from which step to which, and what is told of it.

    What changed at a step holds from the next one on. Events count steps from 0, and the page from 1, as its axes do.
    The step in which a seed begins to train follows at once on the one that planted it: both are one bar.
    """
    began = [step + 1 for step, _, _ in life.stages]
    ended = [*began[1:], max(steps, began[-1])]
    following = [*(stage for _, stage, _ in life.stages[1:]), None]
    planted: tuple[int, str] | None = None
    for (_, stage, why), after, start, stop in zip(life.stages, following, began, ended, strict=True):
        told, first, reason = f"{NAMES.get(stage, stage.value)} from step {start} to step {stop}", start, why
        if stage in (Stage.GERMINATED, Stage.PRUNED):
            told = f"{stage.value} at step {start}" if stage is Stage.PRUNED else f"planted at step {start}"
        elif stage is Stage.TRAINING and planted is not None:
            first, reason = planted
            told = f"planted at step {first}, {told}"
        planted = (start, why) if stage is Stage.GERMINATED else None
        if planted is None or after is not Stage.TRAINING:
            yield stage, first, stop, f"{told}. {reason}".strip()


def _cross(x: float, y: float) -> str:
    return f"M{x - 4:.1f} {y - 4:.1f}L{x + 4:.1f} {y + 4:.1f}M{x - 4:.1f} {y + 4:.1f}L{x + 4:.1f} {y - 4:.1f}"


def _act(act: GovernorActed, across: Scale, y: float) -> Element:
    told = f"governor, step {act.step + 1}: {act.act}. {act.reason or act.verdict}"
    x = across(act.step + 1)
    shape = element("polygon", points=f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y + 5:.1f} {x - 6:.1f},{y + 5:.1f}")
    return mark("g", told, shape, class_="governor")


def in_words(life: SeedLife) -> str:
    """A life in one sentence."""
    known = {**NAMES, Stage.GERMINATED: "planted"}
    told = ", ".join(f"{known.get(stage, stage.value)} at step {step + 1}" for step, stage, _ in life.stages)
    return f"{life.blueprint} in {life.slot}, {count(life.parameters, 'parameter')}: {told}"
