"""Which moment of an episode is it, and whose life began or ended in it? Read from two records of signals alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.leyline import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline import SeedSignals, Signals, SlotSignals


@dataclass(frozen=True, slots=True)
class Lives:
    """What became of seeds between two steps.

    born: seeds that were not there. kept: those that became fossils, as they were a step before. pulled: all others
    that are gone, as they were a step before.
    """

    born: tuple[SeedSignals, ...] = ()
    kept: tuple[SeedSignals, ...] = ()
    pulled: tuple[SeedSignals, ...] = ()


def demand_pair(before: Signals | None, twin_before: Signals | None) -> None:
    """ValueError where the step before is known of the network or of its twin alone."""
    if (before is None) != (twin_before is None):
        missing, given = ("before", "twin_before") if before is None else ("twin_before", "before")
        msg = f"before and twin_before belong together. Received: {given} without {missing}"
        raise ValueError(msg)


def closes(now: Signals, before: Signals | None) -> bool:
    """Whether this is the last moment of an episode: the same step once more, and what still grew was taken out.

    >>> from esper_core.leyline import Signals
    >>> last = Signals(39, 1.0, 1.0, 0.6, parameters=5000, host_parameters=5000, slots=())
    >>> closes(last, last), closes(last, None)
    (True, False)
    """
    return before is not None and now.step == before.step


def lives_between(now: Signals, before: Signals | None) -> Lives:
    """Who was born, kept and pulled since the step before, in all slots. The slots of a network stay the same.

    A seed is known by its slot, its blueprint and the step that it was born in; two that share all three are two. What
    a rollback takes out was pulled, and what it puts back is born once more.
    """
    earlier = {} if before is None else {slot.name: slot for slot in before.slots}
    born, kept, pulled = [], [], []
    for slot in now.slots:
        was = earlier.get(slot.name)
        gone = list(_missing(was, _step_of(before), slot, now.step)) if was is not None else []
        gone.sort(key=lambda seed: seed.stage is not Stage.HOLDING)
        fossils = max(slot.fossils - was.fossils, 0) if was is not None else 0
        born += list(_missing(slot, now.step, was, _step_of(before)))
        kept += gone[:fossils]
        pulled += gone[fossils:]
    return Lives(tuple(born), tuple(kept), tuple(pulled))


def _missing(slot: SlotSignals, step: int, other: SlotSignals | None, other_step: int) -> Iterator[SeedSignals]:
    """The seeds of ``slot`` that are not in ``other``."""
    there = Counter(_birth(seed, other_step) for seed in (() if other is None else other.seeds))
    for seed in slot.seeds:
        if there[_birth(seed, step)] > 0:
            there[_birth(seed, step)] -= 1
        else:
            yield seed


def _birth(seed: SeedSignals, step: int) -> tuple[str, int | None]:
    return seed.blueprint, None if seed.age is None else step - seed.age


def _step_of(signals: Signals | None) -> int:
    return -1 if signals is None else signals.step
