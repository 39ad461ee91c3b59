"""Observations as numbers, the input of learned policies: one row each for the environment, a slot and a candidate.

A candidate is a blueprint in a slot, living there or not. Rows of a kind have the same columns in every run, whatever
its hosts, slots and blueprints, so a policy can be applied to others than it was trained on. An unknown value is 0, and
a flag column ``…?`` beside it is 1.

The columns are a contract. SCHEMA is increased when a column changes its meaning or place, and policies that were
trained on another schema are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from esper_core.leyline.lifecycle import INCUBATING, Op, SlotState, Stage
from esper_core.leyline.specs import SITE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from esper_core.leyline.lifecycle import ActionMask, ActionSpace
    from esper_core.leyline.signals import Gain, Observation, SeedSignals, SlotSignals
    from esper_core.leyline.specs import Candidate, SlotDescription


SCHEMA: Final = 2
"""Version of the columns."""

LIMIT: Final = 10.0
"""Largest absolute value of a column. Beyond it, values carry no further information."""

_MANY: Final = 4.0
"""Number of seeds that is scaled to 1."""

_LIVING: Final = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING)
_OPS: Final = (Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.FOSSILISE)


def _with_flag(*names: str) -> tuple[str, ...]:
    return tuple(column for name in names for column in (name, f"{name}?"))


GLOBAL_COLUMNS: Final[tuple[str, ...]] = (
    "progress",
    "steps",
    *_with_flag("train_loss", "validation_loss", "overfit", "metric"),
    *_with_flag("metric_over_twin", "loss_under_twin"),
    "added",
    "fossils",
    "living",
    *_with_flag("price"),
)
"""Columns of the environment. Losses are log(1 + nats); overfit is the difference of the two; added is the number of
added parameters as a share of the host's; price is in hundreds."""

SLOT_COLUMNS: Final[tuple[str, ...]] = (
    *(f"state_{state.value}" for state in SlotState),
    "fossils",
    "incubating",
    "acting",
    *(f"may_{op.value}" for op in _OPS),
    *_with_flag("depth", "channels", "positions"),
    *(f"kind_{kind}" for kind in SITE_KINDS),
)
"""Columns of a slot. depth is the share of slots before it; channels and positions are logarithms."""

CANDIDATE_COLUMNS: Final[tuple[str, ...]] = (
    *_with_flag("parameters", "flops"),
    "identity",
    "is_new",
    *(f"stage_{stage.value}" for stage in _LIVING),
    *(f"may_{op.value}" for op in _OPS),
    "alpha",
    *_with_flag("age", "promised_loss", "gain", "gain_error"),
    *_with_flag("health", "surplus"),
    "gate_opens",
    *_with_flag("rent"),
)
"""Columns of a candidate. parameters and flops are log(1 + 10·share) / log(11) of their share of the host's; gains and
errors are in tenths of a nat; surplus is the gain minus the gate's price; rent is the reward's price of its parameters,
in hundreds; is_new: the run did not list it when it started."""


@dataclass(frozen=True, slots=True)
class Rows:
    """An observation as rows of numbers, with the names of the slots and candidates that the rows describe."""

    whole: tuple[float, ...]
    slots: tuple[tuple[float, ...], ...]
    candidates: tuple[tuple[float, ...], ...]
    slot_names: tuple[str, ...]
    candidate_names: tuple[tuple[str, str], ...]
    """Slot and blueprint of each candidate, ordered by slot, then by blueprint."""
    schema: int = SCHEMA


def rows_of(space: ActionSpace, observation: Observation, mask: ActionMask) -> Rows:
    """Encode an observation: one row for the environment, one per slot, one per candidate (slot and blueprint)."""
    slots = {slot.name: slot for slot in observation.signals.slots}
    descriptions = space.descriptions
    names = [(slot, blueprint) for slot in space.slots for blueprint in _candidates(space, slots.get(slot), slot)]
    return Rows(
        whole=_bounded(_whole(observation)),
        slots=tuple(_bounded(_slot(descriptions.get(name), slots.get(name), name, mask)) for name in space.slots),
        candidates=tuple(_bounded(_candidate(space, descriptions, observation, name, mask)) for name in names),
        slot_names=space.slots,
        candidate_names=tuple(names),
    )


def _whole(seen: Observation) -> list[float]:
    now, twin = seen.signals, seen.twin
    overfit = now.validation_loss - now.train_loss
    above = None if twin is None else 10.0 * (now.validation_metric - twin.validation_metric)
    below = None if twin is None else _log_loss(twin.validation_loss) - _log_loss(now.validation_loss)
    return [
        (seen.step + 1) / seen.steps,
        math.log10(1 + seen.steps) / 2.0,
        *_known(_log_loss(now.train_loss)),
        *_known(_log_loss(now.validation_loss)),
        *_known(overfit),
        *_known(_squashed(now.validation_metric)),
        *_known(above),
        *_known(below),
        (now.parameters - now.host_parameters) / max(1, now.host_parameters),
        now.fossils / _MANY,
        len(now.seeds) / _MANY,
        *_known(None if seen.price is None else seen.price / 100.0),
    ]


def _slot(
    slot_description: SlotDescription | None, slot: SlotSignals | None, name: str, mask: ActionMask
) -> list[float]:
    possible = mask.ops.get(name, frozenset())
    seeds = () if slot is None else slot.seeds
    incubating = sum(seed.stage in INCUBATING for seed in seeds)
    position: tuple[float | None, ...] = (None, None, None)
    if slot_description is not None:
        position = (
            slot_description.depth,
            math.log10(slot_description.channels) / 2.0,
            math.log10(1 + slot_description.positions) / 2.0,
        )
    return [
        *(float(slot is not None and slot.state is state) for state in SlotState),
        (0 if slot is None else slot.fossils) / _MANY,
        incubating / _MANY,
        (len(seeds) - incubating) / _MANY,
        *(float(op in possible) for op in _OPS),
        *(value for coordinate in position for value in _known(coordinate)),
        *(float(slot_description is not None and slot_description.kind == kind) for kind in SITE_KINDS),
    ]


def _candidate(
    space: ActionSpace,
    descriptions: Mapping[str, SlotDescription],
    seen: Observation,
    name: tuple[str, str],
    mask: ActionMask,
) -> list[float]:
    slot_name, blueprint = name
    living = next((slot.seeds for slot in seen.signals.slots if slot.name == slot_name), ())
    seed = next((seed for seed in living if seed.blueprint == blueprint), None)
    is_new = blueprint not in space.blueprints.get(slot_name, ())
    stages = (float(seed is not None and seed.stage is stage) for stage in _LIVING)
    may = map(float, _may(mask, slot_name, blueprint, seed))
    measured = _UNBORN if seed is None else _measured(seen, seed)
    slot_description, rent, description = descriptions.get(slot_name), None, _UNDESCRIBED
    if slot_description is not None and (candidate := slot_description.candidate(blueprint)) is not None:
        description = _described(candidate, slot_description.host_parameters, slot_description.host_flops)
        if seen.price is not None:  # the price is that of as many parameters as the host has
            rent = seen.price / 100.0 * candidate.parameters / max(1, slot_description.host_parameters)
    return [*description, float(is_new), *stages, *may, *measured, *_known(rent)]


@lru_cache(maxsize=4096)
def _described(candidate: Candidate, host_parameters: int, host_flops: int | None) -> tuple[float, ...]:
    return (
        *_known(_share(candidate.parameters, host_parameters)),
        *_known(_share(candidate.flops, host_flops)),
        float(candidate.identity),
    )


_UNDESCRIBED: Final[tuple[float, ...]] = (0.0, 1.0, 0.0, 1.0, 0.0)
_UNBORN: Final = (0.0, *(value for _ in range(6) for value in (0.0, 1.0)), 0.0)


def _measured(seen: Observation, seed: SeedSignals) -> list[float]:
    promised = surplus = None
    opinion = seed.opinion
    if seed.incubation_loss is not None:
        promised = _log_loss(seen.signals.train_loss) - _log_loss(seed.incubation_loss)
    if seed.gain is not None and opinion is not None and opinion.price is not None:
        surplus = 10.0 * (seed.gain.mean - opinion.price)
    return [
        seed.alpha,
        *_known(None if seed.age is None else seed.age / seen.steps),
        *_known(promised),
        *_gain(seed.gain),
        *_known(None if seed.gradients is None else seed.gradients.health),
        *_known(surplus),
        float(opinion is not None and opinion.opens),
    ]


def _may(mask: ActionMask, slot: str, blueprint: str, seed: SeedSignals | None) -> list[bool]:
    """Return for each op whether it is possible with this candidate now."""
    possible = mask.ops.get(slot, frozenset())
    of_seed = mask.seeds[slot].get(blueprint, frozenset()) if slot in mask.seeds else possible
    germinates = Op.GERMINATE in possible and blueprint in mask.blueprints.get(slot, ())
    return [germinates, *(seed is not None and op in possible and op in of_seed for op in _OPS[1:])]


def _candidates(space: ActionSpace, slot: SlotSignals | None, name: str) -> tuple[str, ...]:
    """Return the blueprints that may grow in a slot, and those that live there although the run did not list them."""
    living = () if slot is None else (seed.blueprint for seed in slot.seeds)
    return tuple(dict.fromkeys([*space.blueprints[name], *living]))


def _gain(gain: Gain | None) -> list[float]:
    if gain is None:
        return [*_known(None), *_known(None)]
    return [*_known(10.0 * gain.mean), *_known(10.0 * gain.standard_error)]


def _known(value: float | None) -> tuple[float, float]:
    """Return a value and its unknown flag. NaN counts as unknown."""
    return (0.0, 1.0) if value is None or math.isnan(value) else (value, 0.0)


def _share(amount: int | None, of_host: int | None) -> float | None:
    return None if amount is None or of_host is None else math.log(1 + 10 * amount / max(1, of_host)) / math.log(11)


def _log_loss(loss: float) -> float:
    """Return log(1 + loss); infinite losses stay infinite and negative ones unchanged."""
    return loss if math.isnan(loss) or loss < 0.0 else math.log1p(loss)


def _squashed(metric: float) -> float:
    """Return a metric unchanged up to 1, the range of accuracies, and with logarithmic growth beyond."""
    return metric if math.isnan(metric) or abs(metric) <= 1.0 else math.copysign(1.0 + math.log(abs(metric)), metric)


def _bounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple([value if -LIMIT <= value <= LIMIT else math.copysign(LIMIT, value) for value in values])
