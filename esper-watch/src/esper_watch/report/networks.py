"""Which networks came out? The host with its slots, and what was kept in them; like ones are drawn once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from esper_watch.report.figure import drawing, figure, label, mark, note, section, shortened
from esper_watch.report.glossary import CAPACITY
from esper_watch.report.markup import element
from esper_watch.report.wording import count, plainly

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline.events import EpisodeFinished
    from esper_watch.report.markup import Element
    from esper_watch.report.record import Record

MOST = 6
"""Kinds of networks that are drawn for an arm, the commonest first."""

BOX, GAP, TALL, MIDDLE = 112.0, 26.0, 38.0, 52.0

FITS = 520.0
"""The width up to which a drawing can still be read when it is shown as wide as a phone."""

Kind = tuple[tuple[str, str, int], ...]
"""Slot, blueprint and parameters of each seed that was kept, in the order in which they act."""


def networks(record: Record) -> Element | None:
    """For each arm that kept anything, its networks."""
    drawn: list[Element] = []
    for arm in record.arms:
        ended = [one for one in record.episodes if one.arm == arm]
        kinds = Counter(kind_of(one) for one in ended)
        if not any(kinds):
            continue
        drawn.append(element("h3", arm))
        slots = record.slots.get(arm, ())
        host = ended[0].host_parameters
        how = "built in" if arm.startswith(CAPACITY) else "grown"
        for kind, number in kinds.most_common(MOST):
            drawn.append(_network(slots, kind, host, f"{number} of {count(len(ended), 'network')}", how))
        if len(kinds) > MOST:
            drawn.append(note(f"… and {count(len(kinds) - MOST, 'other kind')} of network."))
    if not drawn:
        return None
    return section("networks", "The networks that came out", *drawn)


def kind_of(episode: EpisodeFinished) -> Kind:
    """What was kept in an episode's network."""
    return tuple(
        (str(seed.get("slot", "")), str(seed.get("blueprint", "")), _whole(seed.get("parameters")))
        for seed in episode.grown
    )


def _whole(number: Any) -> int:
    return number if isinstance(number, int) else 0


def _network(slots: Sequence[str], kind: Kind, host: int, how_many: str, how: str) -> Element:
    grown: Mapping[str, list[tuple[str, int]]] = {
        slot: [(blueprint, parameters) for own, blueprint, parameters in kind if own == slot]
        for slot in dict.fromkeys([*slots, *(own for own, _, _ in kind)])
    }
    parts: list[Element] = []
    x = 8.0
    x = _box(parts, x, "input", "host", "where the data comes in")
    for slot, fossils in grown.items():
        x = _slot(parts, x, slot, empty=not fossils)
        for blueprint, parameters in fossils:
            told = f"{blueprint}, kept in slot {slot}: {count(parameters, 'parameter')}"
            x = _box(parts, x, plainly(blueprint), "stage-fossilized", told, f"{parameters:,} param.")
    x = _box(parts, x, "output", "host", "what the network puts out")
    width = x - GAP + 8
    line = element("line", x1=8, x2=width - 8, y1=MIDDLE, y2=MIDDLE, class_="axis")
    more = sum(parameters for _, _, parameters in kind)
    told = f"{how_many}: {count(host, 'parameter')} of the host, {more:,} {how}"
    svg = drawing("A network", told, [line, *parts], height=MIDDLE + 30, width=max(420.0, width))
    return figure(svg, f"{told}.", class_="network" if width <= FITS else "scroll network")


def _box(parts: list[Element], x: float, name: str, class_: str, told: str, more: str = "") -> float:
    y = MIDDLE - TALL / 2
    rect = element("rect", x=x, y=y, width=BOX, height=TALL, rx=5)
    line = MIDDLE - 2 if more else MIDDLE + 5
    texts = [label(x + BOX / 2, line, shortened(name, 15), anchor="middle", class_="inside")]
    if more:
        texts.append(label(x + BOX / 2, MIDDLE + 13, more, anchor="middle", class_="inside small"))
    parts.append(mark("g", told, rect, *texts, class_=class_))
    return x + BOX + GAP


def _slot(parts: list[Element], x: float, name: str, *, empty: bool) -> float:
    told = f"slot {name}: {'nothing was kept here' if empty else 'behind it stands what was kept'}"
    ring = element("circle", cx=x + 14, cy=MIDDLE, r=9)
    text = label(x + 14, MIDDLE - 26, shortened(name, 16), anchor="middle", class_="tick")
    parts.append(mark("g", told, ring, text, class_="slot empty" if empty else "slot"))
    return x + 28 + GAP
