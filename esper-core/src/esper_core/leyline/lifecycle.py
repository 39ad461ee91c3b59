"""The lifecycle of slots and seeds: two transition tables and the pure functions that apply them."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from esper_core.leyline.errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Mapping


class SlotState(StrEnum):
    """The state of a slot. A FREE slot accepts a seed.

    An OCCUPIED slot accepts further seeds only as a nursery: while all of its seeds incubate and there is room.
    """

    FREE = "free"
    OCCUPIED = "occupied"
    EMBARGOED = "embargoed"
    CLOSED = "closed"


class SlotEvent(StrEnum):
    """The events of a slot."""

    GERMINATE = "germinate"
    FOSSILISED = "fossilised"
    FOSSILISED_AT_LIMIT = "fossilised-at-limit"
    PRUNED = "pruned"
    EMBARGO_OVER = "embargo-over"


class Stage(StrEnum):
    """The stage of a seed. PRUNED and FOSSILISED are final."""

    GERMINATED = "germinated"
    TRAINING = "training"
    BLENDING = "blending"
    HOLDING = "holding"
    DRAINING = "draining"
    FOSSILISED = "fossilised"
    PRUNED = "pruned"


class SeedEvent(StrEnum):
    """The events of a seed: actions of a policy, and what happens as training goes on."""

    TRAIN = "train"
    ADVANCE = "advance"
    RAMP_AT_TARGET = "ramp-at-target"
    FOSSILISE = "fossilise"
    PRUNE = "prune"
    DRAINED = "drained"
    REMOVE = "remove"


SLOT_TABLE: Mapping[tuple[SlotState, SlotEvent], SlotState] = MappingProxyType(
    {
        (SlotState.FREE, SlotEvent.GERMINATE): SlotState.OCCUPIED,
        (SlotState.OCCUPIED, SlotEvent.GERMINATE): SlotState.OCCUPIED,
        (SlotState.OCCUPIED, SlotEvent.FOSSILISED): SlotState.FREE,
        (SlotState.OCCUPIED, SlotEvent.FOSSILISED_AT_LIMIT): SlotState.CLOSED,
        (SlotState.OCCUPIED, SlotEvent.PRUNED): SlotState.EMBARGOED,
        (SlotState.EMBARGOED, SlotEvent.EMBARGO_OVER): SlotState.FREE,
    }
)

# Conditions that depend on numbers are checked by the garden: whether a nursery has room, and that FOSSILISE waits for
# an alpha of 1. A slot counts as pruned with the last of its seeds.
# REMOVE prunes immediately, whatever alpha is. The end of an episode and the governor use it.
SEED_TABLE: Mapping[tuple[Stage, SeedEvent], Stage] = MappingProxyType(
    {
        (Stage.GERMINATED, SeedEvent.TRAIN): Stage.TRAINING,
        (Stage.GERMINATED, SeedEvent.PRUNE): Stage.PRUNED,
        (Stage.TRAINING, SeedEvent.ADVANCE): Stage.BLENDING,
        (Stage.TRAINING, SeedEvent.PRUNE): Stage.PRUNED,
        (Stage.BLENDING, SeedEvent.RAMP_AT_TARGET): Stage.HOLDING,
        (Stage.BLENDING, SeedEvent.PRUNE): Stage.DRAINING,
        (Stage.HOLDING, SeedEvent.FOSSILISE): Stage.FOSSILISED,
        (Stage.HOLDING, SeedEvent.PRUNE): Stage.DRAINING,
        (Stage.DRAINING, SeedEvent.DRAINED): Stage.PRUNED,
        (Stage.GERMINATED, SeedEvent.REMOVE): Stage.PRUNED,
        (Stage.TRAINING, SeedEvent.REMOVE): Stage.PRUNED,
        (Stage.BLENDING, SeedEvent.REMOVE): Stage.PRUNED,
        (Stage.HOLDING, SeedEvent.REMOVE): Stage.PRUNED,
        (Stage.DRAINING, SeedEvent.REMOVE): Stage.PRUNED,
    }
)

INCUBATING = frozenset({Stage.GERMINATED, Stage.TRAINING})
BLENDED = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.DRAINING})


def next_slot_state(state: SlotState, event: SlotEvent) -> SlotState:
    """Return a slot's state after an event. Raises LifecycleError for a transition that is not in the table."""
    try:
        return SLOT_TABLE[state, event]
    except KeyError:
        legal = [e for (s, e) in SLOT_TABLE if s is state]
        raise LifecycleError(kind="slot", state=state, event=event, legal=legal) from None


def next_stage(stage: Stage, event: SeedEvent) -> Stage:
    """Return a seed's stage after an event. Raises LifecycleError for a transition that is not in the table."""
    try:
        return SEED_TABLE[stage, event]
    except KeyError:
        legal = [e for (s, e) in SEED_TABLE if s is stage]
        raise LifecycleError(kind="seed", state=stage, event=event, legal=legal) from None


def may(stage: Stage, event: SeedEvent) -> bool:
    """Return whether a seed in ``stage`` can undergo ``event``."""
    return (stage, event) in SEED_TABLE
