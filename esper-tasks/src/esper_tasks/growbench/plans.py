"""What can be done in an episode? Everything, as a small graph: where an episode is, and what leads where.

A gardener is asked after the first step and after every fourth from there: four times. It can plant one seed at a time;
one that incubates it can blend in, drop, or leave as it is. What is blended in is kept. A seed that was dropped has
left no trace: it learnt in a branch, a copy of the host. So it does not matter what was tried, but what was kept, and
when that was planted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from esper_tasks.growbench.puzzles import DECISIONS, EVERY, ROOM, SEEDS, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

SPROUTS: Final[tuple[tuple[str, str], ...]] = tuple((slot, one) for slot, several in ROOM.items() for one in several)
"""What could be planted, slot and blueprint, by its number."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A seed that was blended in: which, when it was planted, and when it was blended in, as numbers of decisions."""

    sprout: int
    planted: int
    advanced: int


@dataclass(frozen=True, slots=True)
class Node:
    """Where an episode is when it is asked for a decision, or has ended: ``decision`` is DECISIONS then.

    pending: the seed that incubates, and when it was planted.
    """

    decision: int
    kept: tuple[Kept, ...] = ()
    pending: tuple[int, int] | None = None

    @property
    def over(self) -> bool:
        """Whether the episode is."""
        return self.decision == DECISIONS

    @property
    def step(self) -> int:
        """After which step that is."""
        return STEPS - 1 if self.over else self.decision * EVERY

    def fossils(self, slot: str) -> int:
        """How many seeds the slot keeps."""
        return sum(SPROUTS[one.sprout][0] == slot for one in self.kept)

    def plantable(self) -> tuple[int, ...]:
        """What could be planted now."""
        if self.over or self.pending is not None or len(self.kept) == SEEDS:
            return ()
        room = {slot: not self.fossils(slot) for slot in ROOM}
        return tuple(number for number, (slot, _) in enumerate(SPROUTS) if room[slot])

    def waited(self) -> Node:
        """Where it is if nothing is done. What incubates at the end is dropped."""
        after = self.decision + 1
        return Node(after, self.kept, None if after == DECISIONS else self.pending)

    def planted(self, sprout: int) -> Node:
        """Where it is if something is planted."""
        after = self.decision + 1
        return Node(after, self.kept, None if after == DECISIONS else (sprout, self.decision))

    def advanced(self) -> Node:
        """Where it is if what incubates is blended in."""
        assert self.pending is not None
        sprout, planted = self.pending
        return Node(self.decision + 1, (*self.kept, Kept(sprout, planted, self.decision)))

    def dropped(self) -> Node:
        """Where it is if what incubates is dropped: where it would be had it never been planted."""
        return Node(self.decision + 1, self.kept)

    def successors(self) -> tuple[Node, ...]:
        """Everything that it could lead to."""
        if self.over:
            return ()
        more = [self.advanced(), self.dropped()] if self.pending is not None else []
        return tuple(dict.fromkeys([self.waited(), *(self.planted(one) for one in self.plantable()), *more]))


def decides(step: int) -> bool:
    """Whether a gardener is asked after this step."""
    return step % EVERY == 0 and step < DECISIONS * EVERY


@cache
def nodes() -> tuple[Node, ...]:
    """All of them, each before what it leads to."""
    found = dict.fromkeys([Node(0)])
    for decision in range(DECISIONS):
        for node in [one for one in found if one.decision == decision]:
            found |= dict.fromkeys(node.successors())
    return tuple(found)


@cache
def place_of() -> dict[Node, int]:
    """The number of each node."""
    return {node: number for number, node in enumerate(nodes())}


def ends() -> Iterator[Node]:
    """Those in which an episode has ended."""
    return (node for node in nodes() if node.over)
