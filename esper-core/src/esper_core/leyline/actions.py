"""What can a policy ask for, and what of it is possible now?"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  pydantic reads it
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType

from esper_core.leyline.constants import FULL, RAMP_STEPS
from esper_core.leyline.specs import Place  # noqa: TC001  pydantic reads it


class Op(StrEnum):
    """The operations. Effects and conditions stand in the two tables of ``leyline.lifecycle``."""

    WAIT = "wait"
    GERMINATE = "germinate"
    ADVANCE = "advance"
    RETARGET = "retarget"
    PRUNE = "prune"
    FOSSILISE = "fossilise"


class Blend(StrEnum):
    """How what a seed puts out joins what the host puts out; the formulas stand in ``growth.blend``."""

    ADD = "add"
    RESIDUAL = "residual"
    MULTIPLY = "multiply"
    GATE = "gate"


class Curve(StrEnum):
    """On which way alpha goes from where it is to its target."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Action:
    """One decision for one environment. ``ARGUMENTS`` says which op reads what.

    slot: needed by every op but WAIT.
    blueprint: needed by GERMINATE. Where several seeds incubate in one slot it says which of them an ADVANCE or a PRUNE
    means; an ADVANCE that names none means the one that gained most so far, a PRUNE that names none all of them.
    blend: how the seed is blended in; it stays what it was at germination.
    speed: decision steps that alpha takes to its target; 0 is at once.
    curve: the way that alpha takes. target: where it goes, above 0 and up to 1; only at 1 can a seed be kept.
    """

    op: Op = Op.WAIT
    slot: str | None = None
    blueprint: str | None = None
    _: KW_ONLY
    blend: Blend = Blend.ADD
    speed: int = RAMP_STEPS
    curve: Curve = Curve.LINEAR
    target: float = FULL


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
"""Which arguments of an action each op reads; the others mean nothing to it."""


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """What a run has to choose from: for each slot the blueprints that may grow there, by full id.

    places: what is known of a slot, and of what could grow in it. They are counted when a slot is first looked up, for
    whoever wants to know; empty where nobody counted.
    """

    blueprints: Mapping[str, tuple[str, ...]]
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots' names in the order of the config."""
        return tuple(self.blueprints)


@dataclass(frozen=True, slots=True)
class ActionMask:
    """What is possible now in one environment: for each slot its ops, and the blueprints that could germinate.

    seeds: for each slot with living seeds, by blueprint, what is possible for the seed of it: of several that incubate
    side by side one may be ready and another not.
    """

    ops: Mapping[str, frozenset[Op]] = field(default_factory=dict)
    blueprints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: Mapping[str, Mapping[str, frozenset[Op]]] = field(default_factory=dict)

    def shut(self) -> ActionMask:
        """The same slots and seeds, with nothing possible but to wait."""
        return ActionMask(
            dict.fromkeys(self.ops, frozenset()),
            dict.fromkeys(self.blueprints, ()),
            {slot: dict.fromkeys(seeds, frozenset()) for slot, seeds in self.seeds.items()},
        )

    def allows(self, action: Action) -> bool:
        """Whether ``action`` would be carried out. WAIT always is."""
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
        if action.blueprint is None or "blueprint" not in reads or action.slot not in self.seeds:
            return True
        return action.op in self.seeds[action.slot].get(action.blueprint, ())
