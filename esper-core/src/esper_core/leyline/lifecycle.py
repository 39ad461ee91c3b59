"""The lifecycle of slots and seeds, and the actions that policies choose.

Two transition tables and the pure functions that apply them; then actions, and masks of what is possible now.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping  # noqa: TC003  pydantic reads it
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NoReturn

from esper_core.leyline.constants import RAMP_STEPS
from esper_core.leyline.errors import GrowthError, LifecycleError, Problem
from esper_core.leyline.specs import SlotDescription  # noqa: TC001  pydantic reads it


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


class Op(StrEnum):
    """The operations. ``SEED_TABLE`` defines their effects and conditions."""

    WAIT = "wait"
    GERMINATE = "germinate"
    ADVANCE = "advance"
    PRUNE = "prune"
    FOSSILISE = "fossilise"


class Blend(StrEnum):
    """How the output of a seed is combined with that of the host. ``growth.seeds`` has the formulas."""

    ADD = "add"
    RESIDUAL = "residual"
    MULTIPLY = "multiply"
    GATED = "gate"


@dataclass(frozen=True, slots=True)
class Action:
    """One decision for one environment. ``ARGUMENTS`` lists the arguments that each op reads."""

    op: Op = Op.WAIT
    slot: str | None = None
    """Required by every op except WAIT."""
    blueprint: str | None = None
    """Required by GERMINATE. If several seeds incubate in a slot, it selects the one that ADVANCE or PRUNE applies to;
    without it, ADVANCE takes the seed with the largest gain and PRUNE takes all of them."""
    _: KW_ONLY
    blend: Blend = Blend.ADD
    """The blend operator of a new seed."""
    speed: int = RAMP_STEPS
    """Decision steps that alpha takes from 0 to 1 or, where a seed is pruned, to 0; 0 means immediately."""

    def __post_init__(self) -> None:
        """Refuse a value that no action can have (E307), also of an argument that the op ignores."""
        for name, kind in (("op", Op), ("blend", Blend)):
            if not isinstance(getattr(self, name), kind):
                self._refuse(name, f"there is no such {name}", f"One of {kind.__name__}: {', '.join(kind)}.")
        for name in ("slot", "blueprint"):
            if not isinstance(getattr(self, name), str | None):
                self._refuse(name, f"a {name} must be a name", "A text, or None.")
        if type(self.speed) is not int or self.speed < 0:
            self._refuse("speed", "a speed must be a whole number of decision steps, 0 or more", "0 means at once.")

    def _refuse(self, name: str, message: str, hint: str) -> NoReturn:
        raise GrowthError(Problem("E307", f"{message}: {reprlib.repr(getattr(self, name))}", hint=hint))

    @property
    def title(self) -> str:
        """Its op, slot and blueprint in words: ``germinate early blueprints/conv_light``."""
        return " ".join(part for part in (self.op, self.slot, self.blueprint) if part)


WAIT = Action()

ARGUMENTS: Mapping[Op, tuple[str, ...]] = MappingProxyType(
    {
        Op.WAIT: (),
        Op.GERMINATE: ("slot", "blueprint", "blend", "speed"),
        Op.ADVANCE: ("slot", "blueprint"),
        Op.PRUNE: ("slot", "blueprint", "speed"),
        Op.FOSSILISE: ("slot",),
    }
)
"""The arguments of an action that each op reads. Others are ignored."""


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """All choices of a run: for each slot, the full ids of the blueprints that may grow there.

    ``descriptions`` describes the slots and what could grow in them. It is computed when a slot is first looked up.
    """

    blueprints: Mapping[str, tuple[str, ...]]
    descriptions: Mapping[str, SlotDescription] = field(default_factory=dict, compare=False)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots' names in the order of the configuration."""
        return tuple(self.blueprints)


@dataclass(frozen=True, slots=True)
class ActionMask:
    """What is possible now in one environment: ops by slot, and the blueprints that can germinate by slot.

    ``seeds`` holds, for each slot with living seeds, the possible ops of each seed by its blueprint, since of several
    incubating seeds one may be ready and another not.
    """

    ops: Mapping[str, frozenset[Op]] = field(default_factory=dict)
    blueprints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: Mapping[str, Mapping[str, frozenset[Op]]] = field(default_factory=dict)

    def shut(self) -> ActionMask:
        """Return a mask of the same slots and seeds that allows WAIT only."""
        return ActionMask(
            dict.fromkeys(self.ops, frozenset()),
            dict.fromkeys(self.blueprints, ()),
            {slot: dict.fromkeys(seeds, frozenset()) for slot, seeds in self.seeds.items()},
        )

    def allows(self, action: Action) -> bool:
        """Return whether an action is possible. WAIT always is."""
        if action.op is Op.WAIT:
            return True
        if action.slot is None or action.op not in self.ops.get(action.slot, frozenset()):
            return False
        if action.op is Op.GERMINATE:
            return action.blueprint in self.blueprints.get(action.slot, ())
        of_slot = self.seeds.get(action.slot)
        if of_slot is None or action.blueprint is None or "blueprint" not in ARGUMENTS[action.op]:
            return True
        return action.op in of_slot.get(action.blueprint, ())
