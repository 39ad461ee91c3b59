"""What did the network grow into? The architecture journal: which blueprint, in which version, grew where, and when.

It is plain data. With it and the numbers of the state dict a fresh process builds the same network.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from esper_core.growth.alpha import Alpha
from esper_core.growth.plausible import objections
from esper_core.growth.seed import Presence  # noqa: TC001  pydantic reads it
from esper_core.leyline.actions import Blend, Curve  # noqa: TC001  pydantic reads it
from esper_core.leyline.constants import GROWTH_FORMAT
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import RECORD
from esper_core.leyline.specs import SiteKind  # noqa: TC001  pydantic reads it
from esper_core.leyline.text import plural, printable

if TYPE_CHECKING:
    import torch

    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot, Slots

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
class Place:
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
    slots: tuple[Place, ...]
    seeds: tuple[Growth, ...]
    format: int = GROWTH_FORMAT

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        return asdict(self)

    @property
    def grown(self) -> tuple[Growth, ...]:
        """The seeds that were kept for good."""
        return tuple(seed for seed in self.seeds if seed.stage is Stage.FOSSILIZED)

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
        Place(
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
            target=seed.course.target,
            speed=seed.course.speed,
            curve=seed.course.curve,
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
