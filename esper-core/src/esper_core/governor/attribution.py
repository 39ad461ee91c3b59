"""Attribution: which mutation caused a panic.

Each mutation of a network is watched for some steps. A panic in that time is attributed to the latest one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from esper_core.leyline.lifecycle import INCUBATING, Op, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from esper_core.growth import Transition
    from esper_core.leyline import Signals

_MOVING = frozenset({Stage.BLENDING, Stage.DRAINING})


@dataclass(frozen=True, slots=True)
class Mutation:
    """What was done to a network, in which step.

    ``stirred`` is the latest step in which it still changed the network: a ramp takes some steps.
    """

    step: int
    op: Op
    slot: str
    blueprint: str
    stirred: int

    def __str__(self) -> str:
        return f"{self.op.value} {self.slot} {self.blueprint} at step {self.step}"


@dataclass(frozen=True, slots=True)
class Culprit:
    """The mutation that a panic is attributed to.

    ``blamed`` says whether it counts against the blueprint: only if the seed acts on the host now.
    """

    mutation: Mutation
    blamed: bool


class MutationWatch:
    """The mutations of one environment that are recent enough to cause a panic: each is watched for ``steps``."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._mutations: tuple[Mutation, ...] = ()

    def record(self, changes: Iterable[Transition], step: int) -> None:
        """Record changes that were decided after ``step``, or that only time caused in it."""
        for change in changes:
            # A seed that ends in incubation, or on its branch, never acted on the host.
            ends = change.now in (Stage.DRAINING, Stage.PRUNED)
            harmless = ends and (change.was in INCUBATING or change.branched)
            if (op := op_of(change)) is not None and not harmless:
                self._mutations += (Mutation(step, op, change.slot, change.blueprint, step),)

    def advance(self, signals: Signals) -> None:
        """Count a measured step: keep mutations whose ramp still moves, and drop old ones."""
        moving = {slot.name for slot in signals.slots if any(seed.stage in _MOVING for seed in slot.seeds)}
        stirred = (
            replace(mutation, stirred=signals.step) if mutation.slot in moving else mutation
            for mutation in self._mutations
        )
        self._mutations = tuple(mutation for mutation in stirred if signals.step - mutation.stirred <= self._steps)

    def culprit(self, acting: Collection[str]) -> Culprit | None:
        """Return the latest watched mutation that reached the host; None if none did.

        ``acting`` names the slots whose living seeds act on the host.
        """
        for mutation in reversed(self._mutations):
            # A prune changes the host as well, but there is no seed left to blame.
            pruned = mutation.op is Op.PRUNE
            if pruned or mutation.op is Op.FOSSILISE or mutation.slot in acting:
                return Culprit(mutation, not pruned)
        return None

    @property
    def host_changed(self) -> bool:
        """Whether a watched mutation made a seed a part of the host, or took one out that acted on it."""
        return any(mutation.op in (Op.FOSSILISE, Op.PRUNE) for mutation in self._mutations)

    def forget(self) -> None:
        """Drop all mutations, because they are undone."""
        self._mutations = ()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the mutations as plain data."""
        return [{**asdict(mutation), "op": mutation.op.value} for mutation in self._mutations]

    def load_state_dict(self, plain: Sequence[Mapping[str, Any]]) -> None:
        """Restore what ``state_dict`` returned."""
        self._mutations = tuple(Mutation(**{**mutation, "op": Op(mutation["op"])}) for mutation in plain)


def op_of(change: Transition) -> Op | None:
    """Return what was done to a seed; None where the transition came with time alone."""
    if change.was is None:
        return Op.GERMINATE
    if change.now is Stage.BLENDING:
        return Op.ADVANCE
    if change.now is Stage.FOSSILISED:
        return Op.FOSSILISE
    if change.now is Stage.DRAINING or (change.now is Stage.PRUNED and change.was is not Stage.DRAINING):
        return Op.PRUNE
    return None
