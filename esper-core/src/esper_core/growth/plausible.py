"""Can what a growth journal says be true? What its types cannot tell: numbers in their bounds, seeds in their slots."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import torch

from esper_core.leyline.constants import FULL
from esper_core.leyline.lifecycle import INCUBATING, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.growth.journal import Growth, Network, Place
    from esper_core.leyline.specs import SiteKind

MOST_IN_A_STACK: Final = 256
"""Seeds that a slot may be said to keep."""

MOST_IN_AN_EXAMPLE: Final = 2**31
"""Numbers that one example at a site may be said to have."""

_MOST: Final = 2**53
"""Any count; up to here JSON's numbers are whole in every reader."""

_DIMENSIONS: dict[SiteKind, int] = {"vector": 1, "sequence": 2, "tokens": 2, "image": 3}

DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""What a seed may compute in, by name."""


def objections(network: Network) -> Iterator[str]:
    """What in the journal cannot be, in words."""
    if network.format < 1:
        yield f"format is {network.format}, and formats count from 1"
    yield from _twice("slot", [place.name for place in network.slots])
    yield from _twice("seed", [seed.number for seed in network.seeds])
    for place in network.slots:
        yield from (f'slot "{place.name}": {what}' for what in _of_place(place))
    places = {place.name: place for place in network.slots}
    for seed in network.seeds:
        yield from (f"seed {seed.number}: {what}" for what in _of_seed(seed, places.get(seed.slot)))
    for place in network.slots:
        own = [seed for seed in network.seeds if seed.slot == place.name]
        kept = [seed for seed in own if seed.stage is Stage.FOSSILIZED]
        alive = own[len(kept) :]
        if len(kept) + bool(alive) > place.stack:
            yield f'slot "{place.name}" holds {len(own)} seeds, and its stack is {place.stack}'
        if kept != own[: len(kept)]:
            yield f'slot "{place.name}": a seed lives before one that is kept for good'
        elif len(alive) > 1 and any(seed.stage not in INCUBATING for seed in alive):
            yield f'slot "{place.name}": of {len(alive)} seeds that live in it one acts'


def _twice(what: str, names: list[str] | list[int]) -> Iterator[str]:
    yield from (f'{what} "{name}" stands there {count} times' for name, count in Counter(names).items() if count > 1)


def _of_place(place: Place) -> Iterator[str]:
    if not 1 <= place.stack <= MOST_IN_A_STACK:
        yield f"stack is {place.stack}, and goes from 1 to {MOST_IN_A_STACK}"
    if not 0 <= place.embargo <= _MOST:
        yield f"embargo is {place.embargo}"
    if place.example_shape is not None:
        yield from _of_shape(place.kind, place.example_shape)
    for name in place.dtypes or ():
        if name not in DTYPES:
            yield f'dtypes names "{name}", which is none of {", ".join(DTYPES)}'


def _of_seed(seed: Growth, place: Place | None) -> Iterator[str]:
    yield from _of_shape(seed.kind, seed.example_shape)
    if place is None:
        yield f'there is no slot "{seed.slot}"'
    elif _seen(place.at, place.kind, place.example_shape) != _seen(seed.at, seed.kind, seed.example_shape):
        yield "at, kind and channels are others than those of its slot"
    shares = {
        "alpha": seed.alpha,
        "target": seed.target,
        "ramp.start": seed.ramp.start,
        "ramp.target": seed.ramp.target,
    }
    for name, share in shares.items():
        if not (math.isfinite(share) and 0.0 <= share <= FULL):
            yield f"{name} is {share}, and goes from 0 to 1"
    counts = {"number": seed.number, "version": seed.version, "speed": seed.speed, "parameters": seed.parameters}
    counts |= {
        "ramp.ticks": seed.ramp.ticks,
        "ramp.done": seed.ramp.done,
        "born": seed.born or 0,
        "kept": seed.kept or 0,
    }
    for name, count in counts.items():
        if not 0 <= count <= _MOST:
            yield f"{name} is {count}"
    if seed.ramp.done > seed.ramp.ticks:
        yield f"{seed.ramp.done} of {seed.ramp.ticks} ticks are done"
    if seed.stage is Stage.PRUNED:
        yield "stage is pruned, and what is pruned is gone"
    if seed.stage is Stage.FOSSILIZED and seed.alpha != FULL:
        yield f"it is a fossil, and its alpha is {seed.alpha}"


def _seen(at: str, kind: SiteKind | None, shape: tuple[int, ...] | None) -> tuple[str, SiteKind | None, int]:
    """What stays, though a slot may see larger examples today than when its seeds were born."""
    return at, kind, shape[-1 if kind == "tokens" else 0] if shape else 0


def _of_shape(kind: SiteKind | None, shape: tuple[int, ...]) -> Iterator[str]:
    if kind is None or len(shape) != _DIMENSIONS[kind]:
        yield f"example_shape is {shape}, and kind {kind}"
    elif min(shape) < 1 or math.prod(shape) > MOST_IN_AN_EXAMPLE:
        yield f"example_shape is {shape}, and no example has it"
