"""Growth journal: which blueprint, in which version, grew where and when.

It is plain data. With it and the tensors of the state dict a fresh process builds the same network, so it is stored in
every state dict of a grown model, as bytes under one key. Loading a state dict into a model that has grown otherwise is
refused. ``objections`` lists what in a journal cannot be true.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from esper_core.growth.seeds import Alpha, Presence
from esper_core.growth.slots import HOME, JOURNAL
from esper_core.leyline.actions import Blend, Curve  # noqa: TC001  pydantic reads it
from esper_core.leyline.constants import FULL, GROWTH_FORMAT
from esper_core.leyline.errors import GrowthError, Problem, plural, printable
from esper_core.leyline.lifecycle import INCUBATING, Stage
from esper_core.leyline.signals import RECORD
from esper_core.leyline.specs import SiteKind  # noqa: TC001  pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.growth.seeds import Seed
    from esper_core.growth.slots import Slot, Slots


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
        kept = [seed for seed in own if seed.stage is Stage.FOSSILISED]
        alive = own[len(kept) :]
        if len(kept) + bool(alive) > place.stack:
            yield f'slot "{place.name}" holds {len(own)} seeds, and its stack is {place.stack}'
        if kept != own[: len(kept)]:
            yield f'slot "{place.name}": a seed lives before one that is kept for good'
        elif len(alive) > 1 and any(seed.stage not in INCUBATING for seed in alive):
            yield f'slot "{place.name}": of {len(alive)} seeds that live in it one acts'


def _twice(what: str, names: list[str] | list[int]) -> Iterator[str]:
    yield from (f'{what} "{name}" stands there {count} times' for name, count in Counter(names).items() if count > 1)


def _of_place(place: SlotEntry) -> Iterator[str]:
    if not 1 <= place.stack <= MOST_IN_A_STACK:
        yield f"stack is {place.stack}, and goes from 1 to {MOST_IN_A_STACK}"
    if not 0 <= place.embargo <= _MOST:
        yield f"embargo is {place.embargo}"
    if place.example_shape is not None:
        yield from _of_shape(place.kind, place.example_shape)
    for name in place.dtypes or ():
        if name not in DTYPES:
            yield f'dtypes names "{name}", which is none of {", ".join(DTYPES)}'


def _of_seed(seed: Growth, place: SlotEntry | None) -> Iterator[str]:
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
    if seed.stage is Stage.FOSSILISED and seed.alpha != FULL:
        yield f"it is a fossil, and its alpha is {seed.alpha}"


def _seen(at: str, kind: SiteKind | None, shape: tuple[int, ...] | None) -> tuple[str, SiteKind | None, int]:
    """What stays, though a slot may see larger examples today than when its seeds were born."""
    return at, kind, shape[-1 if kind == "tokens" else 0] if shape else 0


def _of_shape(kind: SiteKind | None, shape: tuple[int, ...]) -> Iterator[str]:
    if kind is None or len(shape) != _DIMENSIONS[kind]:
        yield f"example_shape is {shape}, and kind {kind}"
    elif min(shape) < 1 or math.prod(shape) > MOST_IN_AN_EXAMPLE:
        yield f"example_shape is {shape}, and no example has it"


LARGEST: Final = 2**26
"""Bytes of a journal that are read; one seed takes about 600."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """The way that alpha is on: where it set out, where it goes, in how many ticks, and how many of them lie behind."""

    __pydantic_config__ = RECORD
    start: float
    target: float
    ticks: int
    done: int
    curve: Curve


@dataclass(frozen=True, slots=True)
class Growth:
    """One seed: all that it takes to build its like in the same place. Its numbers stand in the state dict.

    identity: whether it started as the identity; where it did not, a gain stands before it. stage, alpha and ramp:
    where it is in its life; a fossil is at 1. target, speed and curve: what was planned for alpha at its germination.
    presence: what it is to the host; a branch is not saved, and begins anew from the host.
    """

    __pydantic_config__ = RECORD
    slot: str
    at: str
    kind: SiteKind
    example_shape: tuple[int, ...]
    blueprint: str
    version: int
    blend: Blend
    identity: bool
    stage: Stage
    alpha: float
    ramp: Ramp
    target: float
    speed: int
    curve: Curve
    presence: Presence
    number: int
    born: int | None
    kept: int | None
    parameters: int

    def as_json(self) -> dict[str, Any]:
        """The entry as growth.json holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """One slot: where it stands, what it sees, and how many seeds it may keep.

    dtypes: names of what was seen there, and of what the model began with then. embargo: steps that it still rests.
    """

    __pydantic_config__ = RECORD
    name: str
    at: str
    kind: SiteKind | None
    example_shape: tuple[int, ...] | None
    stack: int
    dtypes: tuple[str, str] | None
    embargo: int


@dataclass(frozen=True, slots=True)
class Network:
    """The slots of a model, and the seeds in them, in the order in which they act.

    model: name of the host's class, for people. format: of this record.
    """

    __pydantic_config__ = RECORD
    model: str
    slots: tuple[SlotEntry, ...]
    seeds: tuple[Growth, ...]
    format: int = GROWTH_FORMAT

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        return asdict(self)

    @property
    def grown(self) -> tuple[Growth, ...]:
        """The seeds that were kept for good."""
        return tuple(seed for seed in self.seeds if seed.stage is Stage.FOSSILISED)

    def __repr__(self) -> str:
        seeds = [f"{seed.blueprint} in {seed.slot}: {seed.stage.value}" for seed in self.seeds]
        return f"<{printable('; '.join([self._counted(), *seeds]))}>"

    def _counted(self) -> str:
        parameters = sum(seed.parameters for seed in self.seeds)
        kept = f"{plural(len(self.seeds), 'seed')}, {len(self.grown)} kept, {plural(parameters, 'parameter')}"
        return f"{self.model}, {plural(len(self.slots), 'slot')}: {kept}"


def read_network(home: Slots, model: str) -> Network:
    """What has grown in the slots of a model, whose class is called ``model``."""
    places = tuple(
        SlotEntry(
            name=slot.name,
            at=slot.at,
            kind=slot.kind if slot.site is None else slot.site.kind,
            example_shape=None if slot.site is None else slot.site.example_shape,
            stack=slot.limit,
            dtypes=None if slot.dtypes is None else (_name(slot.dtypes[0]), _name(slot.dtypes[1])),
            embargo=slot.embargo,
        )
        for slot in home.each()
    )
    return Network(model, places, tuple(growth for slot in home.each() for growth in _seeds(slot)))


def resume(seed: Seed, growth: Growth) -> None:
    """Let a seed stand in its life where the journal says: its stage, its alpha, and the way that alpha is on."""
    ramp = growth.ramp
    seed.stage = growth.stage
    seed.alpha = Alpha(growth.alpha, ramp.target, ramp.start, ramp.ticks, ramp.done, ramp.curve)


_CHANGED: Final = "It was cut off or changed, or is another file."


def parse_network(text: str | bytes, *, source: str, otherwise: str = _CHANGED) -> Network:
    """The record that ``text``, JSON, holds; GrowthError where it holds none.

    source: where it is from. otherwise: what may have happened where it holds none.
    """
    if len(text) > LARGEST:
        raise no_journal(source, f"It has {len(text):,} bytes, and {LARGEST:,} are read", otherwise)
    try:
        network = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        newer = _format_of(text)
        if newer is not None and newer > GROWTH_FORMAT:
            raise _too_new(source, newer) from error
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise no_journal(source, f"{where}: {first['msg']}", otherwise) from error
    if network.format > GROWTH_FORMAT:
        raise _too_new(source, network.format)
    for what in objections(network):
        raise no_journal(source, what, otherwise)
    return network


def read_object(text: str | bytes, *, source: str) -> dict[str, Any]:
    """The JSON object that ``text`` holds, neither too large nor too deep; GrowthError where it holds none."""
    if len(text) > LARGEST:
        raise no_journal(source, f"It has {len(text):,} bytes, and {LARGEST:,} are read")
    try:
        return TypeAdapter(dict[str, Any]).validate_json(text)
    except ValidationError as error:
        raise no_journal(source, error.errors()[0]["msg"]) from error


def no_journal(source: str, why: str, otherwise: str = _CHANGED) -> GrowthError:
    """What is said of a journal that is none: why it is none, and what may have happened."""
    return GrowthError(Problem("E330", f"{source} is no growth journal", hint=f"{why}.\n{otherwise}"))


def _seeds(slot: Slot) -> list[Growth]:
    return [
        Growth(
            slot=slot.name,
            at=slot.at,
            kind=seed.site.kind,
            example_shape=seed.site.example_shape,
            blueprint=seed.blueprint,
            version=seed.version,
            blend=seed.blend,
            identity=seed.identity,
            stage=seed.stage,
            alpha=seed.alpha.value,
            ramp=_ramp(seed.alpha),
            target=seed.schedule.target,
            speed=seed.schedule.speed,
            curve=seed.schedule.curve,
            presence=seed.presence,
            number=seed.number,
            born=seed.born,
            kept=seed.kept,
            parameters=seed.parameter_count,
        )
        for seed in slot.stack
    ]


def _ramp(alpha: Alpha) -> Ramp:
    return Ramp(alpha.start, alpha.target, alpha.ticks, alpha.done, alpha.curve)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Network]:
    return TypeAdapter(Network)


def _format_of(text: str | bytes) -> int | None:
    """The number of the format, where the text is JSON with one, whatever else it holds."""
    try:
        value = TypeAdapter(dict[str, Any]).validate_json(text).get("format")
    except ValidationError:
        return None
    return value if type(value) is int else None


def _too_new(source: str, found: int) -> GrowthError:
    message = f"{source} has the format {found}, and this esper-core reads {GROWTH_FORMAT}"
    return GrowthError(Problem("E331", message, hint="It was written by a newer one:  pip install -U esper-core"))


ARITHMETIC: Final = f"Who adds up, averages or casts state dicts leaves {HOME}.{JOURNAL} as it is: it is text."
"""What is said where somebody reckoned with the journal's bytes."""


def tell_growth(home: Slots, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Put the journal beside the seeds' numbers; the hook that a state dict passes on its way out."""
    network = read_network(home, "")
    if network.seeds:
        text = json.dumps(network.as_json()).encode()
        state[prefix + JOURNAL] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def heed_growth(
    home: Slots,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Take the journal out again, object where another network has grown, and where the same has, let its seeds stand
    where they stood: a state dict is of one alpha. The hook on the way in.
    """
    told = state.pop(prefix + JOURNAL, None)
    if told is None:
        return
    theirs: Network | None = None
    try:
        theirs = network_in({f"{HOME}.{JOURNAL}": told})
    except GrowthError as error:
        objection: str | None = str(error)
    else:
        objection = None if theirs is None else _objection(theirs, read_network(home, ""))
    if objection is not None or theirs is None:
        errors += [objection] if strict and objection is not None else []
        return
    for seed, growth in zip((seed for slot in home.each() for seed in slot.stack), theirs.seeds, strict=True):
        resume(seed, growth)


def network_in(state: Mapping[str, Any]) -> Network | None:
    """The journal that a state dict holds; None where nothing had grown."""
    told = state.get(f"{HOME}.{JOURNAL}")
    if told is None:
        return None
    source = "the state dict"
    if not isinstance(told, Tensor):
        raise no_journal(source, f"{JOURNAL} is no row of bytes but {type(told).__name__}", ARITHMETIC)
    if told.dtype is not torch.uint8 or told.ndim != 1 or told.is_meta or told.layout is not torch.strided:
        received = f"{told.dtype}, shape {tuple(told.shape)}, on {told.device}"
        raise no_journal(source, f"{JOURNAL} is no row of bytes but {received}", ARITHMETIC)
    if told.numel() > LARGEST:
        raise no_journal(source, f"{JOURNAL} has {told.numel():,} bytes, and {LARGEST:,} are read", ARITHMETIC)
    return parse_network(bytes(told.tolist()), source=source, otherwise=ARITHMETIC)


def _objection(theirs: Network, own: Network) -> str | None:
    """Why a state dict is not for the network that has grown here; None where it is."""
    way_out = "Take a fresh model, and esper_core.load(model, state) instead of load_state_dict."
    if _built(theirs) != _built(own):
        return (
            f"the state dict is of a network that has grown {_in_words(theirs)}, and this one has grown "
            f"{_in_words(own)}. {way_out}"
        )
    for their, seed in zip(theirs.seeds, own.seeds, strict=True):
        if _phase(their) != _phase(seed):
            return (
                f"the state dict was taken when {their.blueprint} in {their.slot} was {_standing(their)}, and here it "
                f"is {_standing(seed)}: who trains it is another then. {way_out}"
            )
    return None


def _built(network: Network) -> list[tuple[Any, ...]]:
    return [(seed.slot, seed.blueprint, seed.version, seed.blend, seed.identity) for seed in network.seeds]


def _phase(seed: Growth) -> tuple[bool, bool, Presence]:
    """What decides who trains a seed: within one phase its stage and its alpha may be set back."""
    return seed.stage in INCUBATING, seed.stage is Stage.FOSSILISED, seed.presence


def _standing(seed: Growth) -> str:
    return f"{seed.stage} and {seed.presence}"


def _in_words(network: Network) -> str:
    return ", ".join(f"{seed.blueprint} in {seed.slot}" for seed in network.seeds) or "nothing"
