"""What was each seed good for? The gain that was seen last, with its error, and the price that it had to pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import Stage
from esper_watch.report.figure import (
    UNDER,
    WIDTH,
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
    table,
)
from esper_watch.report.lives import NAMES
from esper_watch.report.markup import Element, element
from esper_watch.report.scale import around
from esper_watch.report.wording import count, plainly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_watch.report.record import Record, SeedLife, Shown

ROW, LEFT, RIGHT = 16.0, 236.0, 152.0
DRAWN = 40
"""Seeds that are drawn, those that were kept first."""

TABLED = 400
"""Seeds that stand in the table."""

ASKED, CHOSEN = "asked for", " was chosen from the nursery"
"""Reasons of a garden that are told in other words."""

SURE = 1.96
"""Standard errors to each side of a mean for 95 % of cases: gains are means over hundreds of examples."""

CLASSES = {"kept": "stage-fossilized", "not kept": "stage-pruned", "still living": "living"}

FATES = {Stage.FOSSILIZED: "kept", Stage.PRUNED: "pruned"}


def evidence(record: Record) -> Element | None:
    """The gains of the seeds whose gain was measured."""
    measured = [life for life in record.lives if life.shown is not None]
    if not measured:
        return None
    place = {arm: number for number, arm in enumerate(record.arms)}
    ordered = sorted(measured, key=lambda life: (not life.kept, life.home[0], place.get(life.home[1], 0), life.home[2]))
    more = len(ordered) - DRAWN
    words = [
        "Nats of validation loss by which host and seed together were better than the undisturbed host, on the same "
        "examples, when it was measured last, with the interval of 95 % for that one look. The upright stroke is the "
        "price that its gate asked for: so many nats for each of its parameters. A row names the arm and its network, "
        "the slot and the blueprint; on the right stands what became of the seed, and why.",
        "A seed was looked at in many steps: one interval that stays clear of 0 shows less than a gate demands.",
    ]
    return section(
        "evidence",
        "What each seed was good for",
        swatches([(name, class_) for name, class_ in CLASSES.items() if class_ in {_class(life) for life in measured}]),
        figure(_forest(ordered[:DRAWN]), " ".join(words), class_="stacked forest"),
        note(f"Drawn are {DRAWN} of {count(len(ordered), 'seed')}, those that were kept first.") if more > 0 else None,
        element("details", element("summary", _titled(len(ordered))), _figures(ordered[:TABLED])),
    )


def _titled(seeds: int) -> str:
    return "The figures" if seeds <= TABLED else f"The figures of {TABLED} of them"


def _forest(lives: Sequence[SeedLife]) -> Element:
    seen = [(life, life.shown) for life in lives if life.shown is not None]
    edges = [shown.mean + side * SURE * shown.error for _, shown in seen for side in (-1, 1)]
    prices = [shown.price for _, shown in seen if shown.price is not None]
    across = around([*edges, *prices, 0.0], start=LEFT, end=WIDTH - RIGHT)
    bottom = 10 + ROW * len(seen)
    marks = below(across, bottom, lambda one: f"{one:g}", "gain in nats", top=6)
    marks.append(element("line", x1=across(0), x2=across(0), y1=6, y2=bottom, class_="zero"))
    parts: list[Element] = []
    for number, (life, shown) in enumerate(seen):
        y = 10 + ROW * (number + 0.5)
        name = f"{shortened(life.home[1], 12)} {life.home[2]}  {life.slot}  {plainly(life.blueprint)}"
        low, high = (shown.mean + side * SURE * shown.error for side in (-1, 1))
        told = f"{name}: {_gain(shown)}, step {shown.step + 1}, {_named(shown.stage)}; {_fate(life)}"
        parts.append(label(LEFT - 8, y + 4, shortened(name, 36), anchor="end", class_="tick row", title=told))
        fate = shortened(_in_short(life), 22)
        parts.append(label(WIDTH - RIGHT + 10, y + 4, fate, class_="tick row fate", title=told))
        line = element("line", x1=across(low), x2=across(high), y1=y, y2=y, class_="whisker")
        price = None
        if shown.price is not None:
            at = across(shown.price)
            price = element("line", x1=at, x2=at, y1=y - 6, y2=y + 6, class_="price")
        point = element("circle", cx=across(shown.mean), cy=y, r=4)
        marks.append(mark("g", told, *(one for one in (line, price, point) if one is not None), class_=_class(life)))
    what = f"{count(len(seen), 'seed')}; {sum(life.kept for life, _ in seen)} of them kept."
    return drawing("Gains of seeds", what, [plot(marks), *parts], height=bottom + UNDER)


def _figures(lives: Sequence[SeedLife]) -> Element:
    rows = []
    for life in lives:
        shown = life.shown
        if shown is None:
            continue
        price = "none" if shown.price is None else f"{shown.price:.3g}"
        home = f"{life.home[1]} {life.home[2]}"
        gain, error = f"{shown.mean:+.4f}", f"{shown.error:.4f}"
        who = (home, life.slot, plainly(life.blueprint), f"{life.parameters:,}")
        rows.append((*who, gain, error, price, str(shown.step + 1), _fate(life)))
    head = ("network", "slot", "blueprint", "parameters", "gain", "± error", "price", "step", "fate")
    return table(head, rows, numbers=(3, 4, 5, 6, 7))


def _gain(shown: Shown) -> str:
    price = "" if shown.price is None else f", price {shown.price:.3g}"
    return f"gain {shown.mean:+.3f} ± {shown.error:.3f} nats (n = {shown.examples}){price}"


def _named(stage: Stage) -> str:
    return NAMES.get(stage, stage.value)


def _class(life: SeedLife) -> str:
    if life.kept:
        return CLASSES["kept"]
    return CLASSES["not kept" if life.over else "still living"]


def _in_short(life: SeedLife) -> str:
    """What became of a seed, in so few words that they stand beside it."""
    if life.kept:
        return "kept"
    if not life.over:
        return "still living"
    reason = life.stages[-1][2]
    if reason.endswith(CHOSEN):
        return f"{plainly(reason.removesuffix(CHOSEN))} was chosen"
    told = {ASKED: "pruned by its policy", "alpha at 0": "pruned, and let out"}
    return told.get(reason) or reason.partition(":")[0] or "pruned"


def _fate(life: SeedLife) -> str:
    fate, reason = FATES.get(life.stage, f"still {_named(life.stage)}"), life.stages[-1][2]
    return f"{fate}: {reason}" if reason and life.over else fate
