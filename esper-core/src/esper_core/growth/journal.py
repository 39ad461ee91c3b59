"""Growth journal: which blueprint, in which version, grew where and when.

It is plain data. With it and the tensors of the state dict a new process builds the same network, so it is stored in
every state dict of a grown model, as bytes: each slot in which something grew has a key, below the module that it is
behind. So the state dict of a part has the journal of that part. A state dict of a model with other growth is refused.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import torch
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from torch import Tensor

from esper_core.growth.dry_runs import DIMENSIONS, HOME
from esper_core.growth.examples import OutputPart  # noqa: TC001  pydantic reads it
from esper_core.growth.seeds import LABEL, Alpha, Presence
from esper_core.growth.slots import JOURNAL, distinct_names, distinct_numbers, slots_of
from esper_core.leyline.constants import FULL, GROWTH_FORMAT
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import INCUBATING, Blend, Stage
from esper_core.leyline.specs import SiteKind, SlotPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn

    from esper_core.growth.seeds import Seed
    from esper_core.growth.slots import Slot

MAX_BYTES: Final = 2**26
"""Size of the largest journal that is read; one seed takes about 600 bytes."""

log = logging.getLogger("esper")

_SOURCE: Final = "the state dict"
_CHANGED: Final = "The file is incomplete, was changed, or is another file."
_KEY: Final = f"{HOME}.{JOURNAL}"
_STATE_DICT: Final = f"Code that sums, averages or casts state dicts must skip {_KEY}, which is text."
_WIDTH: Final = 1024
"""A journal in a state dict has a multiple of this length: torch.distributed.checkpoint loads a tensor into one of the
same size, and a later journal differs from an earlier one by some digits."""

_STRICT: Final = {"extra": "forbid"}
"""How pydantic reads a journal: with an unknown field it would build another network than the one that was saved."""

# Other readers of JSON take numbers as floats, which hold each whole number up to this one.
Count = Annotated[int, Field(ge=0, le=2**53)]
Strength = Annotated[float, Field(ge=0.0, le=FULL, allow_inf_nan=False)]
DtypeName = Literal["float16", "bfloat16", "float32", "float64"]
DTYPES: Final[dict[str, torch.dtype]] = {name: getattr(torch, name) for name in get_args(DtypeName)}
"""The dtypes in which a seed may compute, by name."""


def _check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if min(shape) < 1 or math.prod(shape) > 2**31:
        msg = "no example has this shape"
        raise ValueError(msg)
    return shape


Shape = Annotated[tuple[int, ...], Field(min_length=1, max_length=3), AfterValidator(_check_shape)]


@dataclass(frozen=True, slots=True)
class Ramp:
    """The course of an alpha: from ``start`` to ``target`` in ``ticks`` ticks, of which ``done`` have passed."""

    __pydantic_config__ = _STRICT
    start: Strength
    target: Strength
    ticks: Count
    done: Count


@dataclass(frozen=True, slots=True)
class Growth:
    """One seed: all that is needed to build an equal one in the same place. Its parameters are in the state dict.

    Attributes:
        identity: whether its block started as the identity; if it did not, it is behind a gain.
        stage, alpha, ramp: its position in the lifecycle.
        speed: decision steps in which it is blended in, as planned at germination.
        presence: how it takes part in the host's pass; a branch is not saved, and starts again from the host.
        inputs: of an adapter, the features that it gets.
        label, acts: the name of the adapters that it belongs to, and whether these are on.
    """

    __pydantic_config__ = _STRICT
    slot: str
    at: str
    kind: SiteKind
    example_shape: Shape
    blueprint: str
    version: Count
    blend: Blend
    identity: bool
    stage: Stage
    alpha: Strength
    ramp: Ramp
    speed: Count
    presence: Presence
    number: Count
    born: Count | None
    kept: Count | None
    parameters: Count
    inputs: Count | None = None
    label: str = LABEL
    acts: bool = True


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """One slot: where it is, what it sees, and how many seeds it may keep.

    Attributes:
        dtypes: names of the dtype that was observed there, and of the model's own dtype at that time.
        embargo: steps until it is free again.
        output: the part of the module's output on which it acts; None: all of it.
        inputs: features that its module gets, if they are known.
        order: its place among the slots of one ``graft``.
    """

    __pydantic_config__ = _STRICT
    name: str
    at: str
    kind: SiteKind | None
    example_shape: Shape | None
    stack: Annotated[int, Field(ge=1, le=256)]
    dtypes: tuple[DtypeName, DtypeName] | None
    embargo: Count
    output: OutputPart | None = None
    inputs: Count | None = None
    order: Count = 0


@dataclass(frozen=True, slots=True)
class Network:
    """The slots of a model, whose class is called ``model``, and the seeds in them in the order in which they act."""

    __pydantic_config__ = _STRICT
    model: str
    slots: tuple[SlotEntry, ...]
    seeds: tuple[Growth, ...]
    format: Annotated[int, Field(ge=1)] = GROWTH_FORMAT

    @property
    def grown(self) -> tuple[Growth, ...]:
        """The seeds that were fossilised."""
        return tuple(seed for seed in self.seeds if seed.stage is Stage.FOSSILISED)

    def places(self) -> dict[str, SlotPlace]:
        """Return where the slots are, as ``graft`` takes it."""
        return {
            slot.name: SlotPlace(slot.at, slot.kind, slot.stack, None if slot.output is None else slot.output.key)
            for slot in self.slots
        }

    @classmethod
    def parse(
        cls, text: str | bytes, *, source: str, hint: str = _CHANGED, beside: Iterable[str] = ()
    ) -> tuple[Network, dict[str, Any]]:
        """Return the network of a journal, as JSON from ``source``, and what stands ``beside`` it under these keys.

        Raises:
            GrowthError: It is too large or too deep, invalid, or of another esper-core.
        """
        if len(text) > MAX_BYTES:
            raise cls.invalid(source, f"It has {len(text):,} bytes, and {MAX_BYTES:,} are read", hint)
        try:
            record = TypeAdapter(dict[str, Any]).validate_json(text)
            extra = {key: record.pop(key, None) for key in beside}
            written_format = record.get("format")
            if type(written_format) is int and 0 < written_format != GROWTH_FORMAT:
                message = f"{source} has the format {written_format}, and this esper-core reads {GROWTH_FORMAT}"
                remedy = "It was written by a newer one:  pip install -U esper-core"
                if written_format < GROWTH_FORMAT:
                    remedy = "It was written by an older one: grow the network again, or load it with that version."
                raise GrowthError(Problem("E331", message, hint=remedy))
            return _adapter().validate_json(json.dumps(record), strict=True), extra
        except ValidationError as error:
            first = error.errors()[0]
            path, value = ".".join(map(str, first["loc"])), first["input"]
            received = f". Received: {value!r}" if isinstance(value, str | int | float) and path else ""
            raise cls.invalid(source, f"{path or 'the journal'}: {first['msg']}{received[:80]}", hint) from error

    @classmethod
    def in_state(cls, state: Mapping[str, Any]) -> Network | None:
        """Return what a state dict has; None if it has no journal, because nothing had grown."""
        parts = [
            (key.removesuffix(_KEY).removesuffix("."), _parse_entry(entry))
            for key, entry in state.items()
            if cls.has_key(key)
        ]
        parts.sort(key=lambda part: part[1].slots[0].order)
        return _joined("", parts) if parts else None

    def moved(self, place: Callable[[str], str | None]) -> Network:
        """Return the network with its modules called as ``place`` says, without those for which that is None."""
        slots = tuple(replace(slot, at=at) for slot in self.slots if (at := place(slot.at)) is not None)
        seeds = tuple(replace(seed, at=at) for seed in self.seeds if (at := place(seed.at)) is not None)
        return replace(self, slots=slots, seeds=seeds)

    @staticmethod
    def has_key(key: str) -> bool:
        """Return whether a key of a state dict is that of a journal."""
        return key == _KEY or key.endswith(f".{_KEY}")

    @staticmethod
    def invalid(source: str, why: str, hint: str = _CHANGED) -> GrowthError:
        """Return the error for a journal that cannot be used."""
        return GrowthError(Problem("E330", f"{source} is not a growth journal", hint=f"{why}.\n{hint}"))

    def fits(self, saved: Network | None) -> bool:
        """Return whether a state dict, whose journal is ``saved``, can be loaded into this network."""
        return _forms(self) == ([] if saved is None else _forms(saved))


def _check_network(network: Network) -> Network:
    if (contradiction := next(_contradictions(network), None)) is not None:
        raise ValueError(contradiction)
    return network


def _contradictions(network: Network) -> Iterator[str]:
    slots = {slot.name: slot for slot in network.slots}
    if len(slots) < len(network.slots):
        yield "a slot is listed twice"
    if len({seed.number for seed in network.seeds}) < len(network.seeds):
        yield "a seed is listed twice"
    entries: tuple[SlotEntry | Growth, ...] = (*network.slots, *network.seeds)
    for entry in entries:
        shape, kind = entry.example_shape, entry.kind
        if shape is not None and (kind is None or len(shape) + 1 != DIMENSIONS[kind]):
            yield f"example_shape is {shape}, and kind {kind}"
    for slot in network.slots:
        seeds = [seed for seed in network.seeds if seed.slot == slot.name]
        kept = [seed for seed in seeds if seed.stage is Stage.FOSSILISED]
        alive = seeds[len(kept) :]
        if len(kept) + bool(alive) > slot.stack:
            yield f'slot "{slot.name}" holds {len(seeds)} seeds, and its stack is {slot.stack}'
        if kept != seeds[: len(kept)]:
            yield f'slot "{slot.name}": a living seed comes before a fossil'
        elif len(alive) > 1 and any(seed.stage not in INCUBATING for seed in alive):
            yield f'slot "{slot.name}": one of {len(alive)} living seeds acts'
    for seed in network.seeds:
        subject = f"seed {seed.number}"
        if seed.slot not in slots:
            yield f'{subject}: there is no slot "{seed.slot}"'
        elif _site_key(seed) != _site_key(slots[seed.slot]):
            yield f"{subject}: at, kind or channels differ from those of its slot"
        if seed.ramp.done > seed.ramp.ticks:
            yield f"{subject}: {seed.ramp.done} of {seed.ramp.ticks} ticks are done"
        if seed.stage is Stage.PRUNED:
            yield f"{subject} is pruned, and a journal holds no pruned seeds"
        if seed.stage is Stage.FOSSILISED and seed.alpha != FULL:
            yield f"{subject} is a fossil, and its alpha is {seed.alpha}"


def _site_key(entry: Growth | SlotEntry) -> tuple[str, SiteKind | None, int]:
    """Return what a slot and its seeds have in common: a slot may see larger examples later."""
    shape = entry.example_shape
    return entry.at, entry.kind, shape[-1 if entry.kind == "tokens" else 0] if shape else 0


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Network]:
    return TypeAdapter(Annotated[Network, AfterValidator(_check_network)])


def read_network(model: nn.Module) -> Network:
    """Return the slots of a grafted model, and what has grown in them."""
    return _joined(type(model).__name__, [(at, _read_slot(slot)) for at, slot in slots_of(model).by_module.items()])


def _joined(model: str, parts: Sequence[tuple[str, Network]]) -> Network:
    """Return the network of a model from those of its slots, each with the name of the module that it is behind."""
    names = distinct_names([(part.slots[0].name, at) for at, part in parts])
    numbers = iter(distinct_numbers([seed.number for _, part in parts for seed in part.seeds]))
    slots: list[SlotEntry] = []
    seeds: list[Growth] = []
    for name, (at, part) in zip(names, parts, strict=True):
        slots.append(replace(part.slots[0], name=name, at=at))
        seeds += [replace(seed, slot=name, at=at, number=next(numbers)) for seed in part.seeds]
    return Network(model, tuple(slots), tuple(seeds))


def _read_slot(slot: Slot) -> Network:
    """Return the network of one slot, wherever it is: the key of a journal says where."""
    entry = SlotEntry(
        name=slot.name,
        at="",
        kind=slot.kind if slot.site is None else slot.site.kind,
        example_shape=None if slot.site is None else slot.site.example_shape,
        stack=slot.limit,
        dtypes=None if slot.dtypes is None else (_name(slot.dtypes[0]), _name(slot.dtypes[1])),
        embargo=slot.embargo,
        output=slot.part,
        inputs=None if slot.site is None else slot.site.inputs or None,
        order=slot.order,
    )
    return Network("", (entry,), tuple(_growth(slot, seed) for seed in slot.seeds))


def _growth(slot: Slot, seed: Seed) -> Growth:
    alpha = seed.alpha
    return Growth(
        slot=slot.name,
        at="",
        kind=seed.site.kind,
        example_shape=seed.site.example_shape,
        blueprint=seed.blueprint,
        version=seed.version,
        blend=seed.blend,
        identity=seed.identity,
        stage=seed.stage,
        alpha=alpha.value,
        ramp=Ramp(alpha.start, alpha.target, alpha.ticks, alpha.done),
        speed=seed.speed,
        presence=seed.presence,
        number=seed.number,
        born=seed.born,
        kept=seed.kept,
        parameters=seed.parameter_count,
        inputs=seed.site.inputs if seed.adapts else None,
        label=seed.label,
        acts=seed.acts,
    )


def _name(dtype: torch.dtype) -> Any:
    return str(dtype).removeprefix("torch.")


def resume(seed: Seed, growth: Growth) -> None:
    """Set the stage and the alpha of a seed to those of the journal."""
    ramp = growth.ramp
    seed.stage, seed.label, seed.acts = growth.stage, growth.label, growth.acts
    seed.alpha = Alpha(growth.alpha, ramp.target, ramp.start, ramp.ticks, ramp.done)


def add_to_state_dict(slot: Slot, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Put the journal of a slot into a state dict if it has seeds; a state dict post-hook."""
    if len(slot.seeds):
        text = json.dumps(asdict(_read_slot(slot))).encode()
        padded = text.ljust(-(-len(text) // _WIDTH) * _WIDTH)
        state[prefix + JOURNAL] = torch.frombuffer(bytearray(padded), dtype=torch.uint8)


def take_from_state_dict(
    slot: Slot,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Take the journal of a slot out of a state dict, and set stages and alphas by it; a load-state-dict pre-hook.

    A journal of another network is an error; torch calls hooks with ``strict`` for each load. A journal that is missing
    although something has grown is a missing key, which torch reports in strict mode alone; so it is logged, too.
    """
    entry = state.pop(prefix + JOURNAL, None)
    if entry is None and len(slot.seeds):
        missing.append(prefix + JOURNAL)
    try:
        saved = Network("", (), ()) if entry is None else _parse_entry(entry)
        _refuse_other(saved, _read_slot(slot))
        for seed, growth in zip(slot.seeds, saved.seeds, strict=True):
            resume(seed, growth)
    except GrowthError as error:
        if entry is None:
            log.warning("%s", error)
        else:
            errors.append(str(error))


def _parse_entry(entry: Any) -> Network:
    plain = isinstance(entry, Tensor) and entry.layout is torch.strided and not entry.is_meta
    if not plain or entry.dtype is not torch.uint8 or entry.ndim != 1:
        received = f"{entry.dtype}, shape {tuple(entry.shape)}" if isinstance(entry, Tensor) else type(entry).__name__
        why = f"{JOURNAL} is not a row of bytes. Received: {received}"
        raise Network.invalid(_SOURCE, why, _STATE_DICT)
    network = Network.parse(bytes(entry.tolist()), source=_SOURCE, hint=_STATE_DICT)[0]
    if len(network.slots) != 1:
        raise Network.invalid(_SOURCE, f"{JOURNAL} is not that of one slot", _STATE_DICT)
    return network


def _refuse_other(saved: Network, current: Network) -> None:
    """Raise GrowthError if a state dict is not for the network that has grown here."""
    hint = "Call esper_grow.load(model, state) with a new model, instead of load_state_dict."
    if [_build(seed) for seed in saved.seeds] != [_build(seed) for seed in current.seeds]:
        message = f"the state dict is of a network with {_listed(saved)}, and this one has {_listed(current)}"
        raise GrowthError(Problem("E334", message, hint=hint))
    for before, now in zip(saved.seeds, current.seeds, strict=True):
        if _training_phase(before) != _training_phase(now):
            message = (
                f"{before.blueprint} in {before.slot} was {before.stage} and {before.presence} in the state "
                f"dict, and is {now.stage} and {now.presence} here, where another optimizer trains it"
            )
            raise GrowthError(Problem("E334", message, hint=hint))


def _forms(network: Network) -> list[Any]:
    return [(seed.at, _build(seed), _training_phase(seed)) for seed in network.seeds]


def _build(seed: Growth) -> tuple[Any, ...]:
    return seed.blueprint, seed.version, seed.blend, seed.identity


def _training_phase(seed: Growth) -> tuple[bool, bool, Presence]:
    """Return what decides how a seed is trained: within one phase its stage and its alpha may be set back."""
    return seed.stage in INCUBATING, seed.stage is Stage.FOSSILISED, seed.presence


def _listed(network: Network) -> str:
    return ", ".join(f"{seed.blueprint} in {seed.slot}" for seed in network.seeds) or "no seeds"
