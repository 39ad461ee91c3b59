"""Where do two tellings of one episode part? At the first number that is not the same to the last bit."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from esper_core.leyline.events import GovernorActed, SeedLost, StepFinished
from esper_core.telemetry import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.leyline.events import Event


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one: in which step, None being the end; what it is, and what either side tells of it."""

    step: int | None
    what: str
    recorded: Any
    replayed: Any


def first_difference(recorded: Sequence[Event], replayed: Sequence[Event], until: int | None) -> Difference | None:
    """The first difference of two episodes, up to the end of the step ``until``, or to the end of all; or None.

    Whether a blueprint was withdrawn is no part of it: other episodes of the run had a say in that.
    """
    missing: dict[str, Any] = {}
    for then, now in zip_longest(_plain(recorded, until), _plain(replayed, until), fillvalue=missing):
        for what, a, b in _differences(then, now):
            return Difference((then or now).get("step"), what, a, b)
    return None


def first_before(recorded: Sequence[StepFinished], replayed: Sequence[StepFinished], step: int) -> Difference | None:
    """The first difference in what was measured and done until the decision after ``step``."""
    then, now = (
        [replace(one, action="", arguments={}) if one.step == step else one for one in side if one.step <= step]
        for side in (recorded, replayed)
    )
    return first_difference(then, now, step)


def _plain(events: Sequence[Event], until: int | None) -> Iterator[dict[str, Any]]:
    """The events as data, without what is not compared."""
    for event in events:
        told = json.loads(encode(event))
        if isinstance(event, SeedLost | GovernorActed):
            del told["withdrawn"]
        told.pop("arguments", None)  # an action is replayed as it is told; files of older versions tell none
        yield told
        if isinstance(event, StepFinished) and event.step == until:
            return


def _differences(own: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place where two pieces of plain data differ, with both values."""
    if isinstance(own, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys((*own, *theirs)):
            yield from _differences(own.get(key), theirs.get(key), f"{path}.{key}".removeprefix("."))
    elif isinstance(own, list) and isinstance(theirs, list) and len(own) == len(theirs):
        for place, pair in enumerate(zip(own, theirs, strict=True)):
            yield from _differences(*pair, path=f"{path}[{place}]")
    elif own != theirs:
        yield path, own, theirs
