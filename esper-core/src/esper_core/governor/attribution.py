"""Whose doing was it? Each mutation is watched for some steps; a panic in that time is laid at the latest's door."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from esper_core.leyline.actions import Op
from esper_core.leyline.lifecycle import INCUBATING, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from esper_core.growth import Transition
    from esper_core.leyline.signals import Signals


_MOVING = frozenset({Stage.BLENDING, Stage.DRAINING})


@dataclass(frozen=True, slots=True)
class Mutation:
    """What was done to a network, and when.

    stirred: the latest step in which it was still at work: a ramp takes its time.
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
    """The mutation that a panic is attributed to. blamed: whether it counts as a fault of the blueprint.

    It does where the seed acts on the host: not where it incubates behind the host's back, or was taken out.
    """

    mutation: Mutation
    blamed: bool


class Watch:
    """The mutations of one environment that are recent enough to be to blame. steps: for how long each is watched."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._mutations: tuple[Mutation, ...] = ()

    def note(self, changes: Iterable[Transition], step: int) -> None:
        """What was decided after ``step``, or came by itself in it."""
        for change in changes:
            harmless = change.was in INCUBATING and change.now is Stage.PRUNED  # the host never knew of it
            if (op := op_of(change)) is not None and not harmless:
                mutation = Mutation(step, op, change.slot, change.blueprint, step)
                self._mutations = (*self._mutations, mutation)

    def heed(self, signals: Signals) -> None:
        """A step was measured: what moves is watched on, and what has been quiet for long is let go."""
        moving = {slot.name for slot in signals.slots if any(seed.stage in _MOVING for seed in slot.seeds)}
        stirred = (replace(one, stirred=signals.step) if one.slot in moving else one for one in self._mutations)
        self._mutations = tuple(one for one in stirred if signals.step - one.stirred <= self._steps)

    def culprit(self, acting: Collection[str]) -> Culprit | None:
        """The latest mutation that reached the host; where none did, the latest; None where nothing is watched.

        acting: the slots whose living seeds act on the host.
        """
        suspects = [Culprit(one, _acts(one, acting)) for one in self._mutations]
        reached = [one for one in suspects if one.blamed or one.mutation.op is Op.PRUNE]
        return next(reversed(reached or suspects), None)

    def forget(self) -> None:
        """Watch nothing: what was done is undone."""
        self._mutations = ()

    def as_json(self) -> list[dict[str, Any]]:
        """What ``load`` takes."""
        return [{**asdict(one), "op": one.op.value} for one in self._mutations]

    def load(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Watch what another watch told."""
        self._mutations = tuple(Mutation(**{**one, "op": Op(one["op"])}) for one in told)


def op_of(change: Transition) -> Op | None:
    """What was done to a seed; None where time alone brought the change."""
    if change.was is None:
        return Op.GERMINATE
    if change.now is Stage.BLENDING:
        return Op.ADVANCE if change.was is Stage.TRAINING else Op.RETARGET
    if change.now is Stage.FOSSILIZED:
        return Op.FOSSILISE
    if change.now is Stage.DRAINING or (change.now is Stage.PRUNED and change.was is not Stage.DRAINING):
        return Op.PRUNE
    return None


def _acts(mutation: Mutation, acting: Collection[str]) -> bool:
    if mutation.op in (Op.FOSSILISE, Op.PRUNE):
        return mutation.op is Op.FOSSILISE
    return mutation.slot in acting
