"""Actions that policies choose, and masks of what is possible now."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  pydantic reads it
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType

from esper_core.leyline.constants import FULL, RAMP_STEPS
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.specs import SlotDescription  # noqa: TC001  pydantic reads it


class Op(StrEnum):
    """The operations. The tables in ``leyline.lifecycle`` define their effects and conditions."""

    WAIT = "wait"
    GERMINATE = "germinate"
    ADVANCE = "advance"
    RETARGET = "retarget"
    PRUNE = "prune"
    FOSSILISE = "fossilise"


class Blend(StrEnum):
    """How the output of a seed is combined with that of the host. ``growth.seeds`` has the formulas."""

    ADD = "add"
    RESIDUAL = "residual"
    MULTIPLY = "multiply"
    GATED = "gate"


class Curve(StrEnum):
    """The shape of alpha's ramp to its target."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Action:
    """One decision for one environment. ``ARGUMENTS`` lists the arguments that each op reads.

    Attributes:
        op: the operation.
        slot: the slot's name, required by every op except WAIT.
        blueprint: required by GERMINATE. If several seeds incubate in a slot, it selects the one that ADVANCE or PRUNE
            applies to; without it, ADVANCE takes the seed with the largest gain and PRUNE takes all of them.
        blend: the blend operator of a new seed.
        speed: decision steps that alpha takes to reach its target; 0 means immediately.
        curve: the shape of the ramp.
        target: the value of alpha to reach, above 0 and at most 1. Only at 1 can a seed be fossilised.
    """

    op: Op = Op.WAIT
    slot: str | None = None
    blueprint: str | None = None
    _: KW_ONLY
    blend: Blend = Blend.ADD
    speed: int = RAMP_STEPS
    curve: Curve = Curve.LINEAR
    target: float = FULL

    def __post_init__(self) -> None:
        """Refuse an op that is not an Op (E307)."""
        if not isinstance(self.op, Op):
            hint = f"One of Op: {', '.join(Op)}. Received: {self.op!r}"
            raise GrowthError(Problem("E307", "there is no such op", hint=hint))

    @property
    def title(self) -> str:
        """Its op, slot and blueprint in words: ``germinate early blueprints/conv_light``."""
        return " ".join(part for part in (self.op, self.slot, self.blueprint) if part)


WAIT = Action()

ARGUMENTS: Mapping[Op, tuple[str, ...]] = MappingProxyType(
    {
        Op.WAIT: (),
        Op.GERMINATE: ("slot", "blueprint", "blend", "speed", "curve", "target"),
        Op.ADVANCE: ("slot", "blueprint"),
        Op.RETARGET: ("slot", "target", "speed", "curve"),
        Op.PRUNE: ("slot", "blueprint", "speed", "curve"),
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
        reads = ARGUMENTS[action.op]
        if "target" in reads and not 0.0 < action.target <= FULL:
            return False
        if "speed" in reads and not (type(action.speed) is int and action.speed >= 0):
            return False
        if "blend" in reads and not isinstance(action.blend, Blend):
            return False
        if "curve" in reads and not isinstance(action.curve, Curve):
            return False
        if action.op is Op.GERMINATE:
            return action.blueprint in self.blueprints.get(action.slot, ())
        of_slot = self.seeds.get(action.slot)
        if of_slot is None or action.blueprint is None or "blueprint" not in reads:
            return True
        return action.op in of_slot.get(action.blueprint, ())
