"""What can a policy ask for, and what of it is possible now?"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from esper_core.leyline.constants import RAMP_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Op(StrEnum):
    """The operations. Effects and conditions stand in the two tables of ``leyline.lifecycle``."""

    WAIT = "wait"
    GERMINATE = "germinate"
    ADVANCE = "advance"
    PRUNE = "prune"
    FOSSILISE = "fossilise"


@dataclass(frozen=True, slots=True)
class Action:
    """One decision for one environment.

    slot: needed by every op but WAIT. blueprint: needed by GERMINATE.
    speed: decision steps that alpha takes to its target, read by GERMINATE and PRUNE.
    """

    op: Op = Op.WAIT
    slot: str | None = None
    blueprint: str | None = None
    speed: int = RAMP_STEPS


WAIT = Action()


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """What a run has to choose from: for each slot the blueprints that may grow there, by full id."""

    blueprints: Mapping[str, tuple[str, ...]]

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots' names in the order of the config."""
        return tuple(self.blueprints)


@dataclass(frozen=True, slots=True)
class ActionMask:
    """What is possible now in one environment: for each slot its ops, and the blueprints that could germinate."""

    ops: Mapping[str, frozenset[Op]] = field(default_factory=dict)
    blueprints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def allows(self, action: Action) -> bool:
        """Whether ``action`` would be carried out. WAIT always is."""
        if action.op is Op.WAIT:
            return True
        if action.slot is None or action.op not in self.ops.get(action.slot, frozenset()):
            return False
        return action.op is not Op.GERMINATE or action.blueprint in self.blueprints.get(action.slot, ())
