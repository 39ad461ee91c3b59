"""How is a problem played that is in no table, or from another seed? What a table would know is trained when asked for.

Everybody plays as on a table. Who goes a way that somebody went before is told what came of it; who goes another one
trains it, from where the two part.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from esper_tasks.growbench.building import COLUMNS, game, go, numbers, ways
from esper_tasks.growbench.plans import Node, nodes, place_of
from esper_tasks.growbench.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from esper_core import Moment, Play
    from esper_core.leyline import Action, State
    from esper_tasks.growbench.puzzles import Puzzle


class Course:
    """One problem from one seed, trained as far as somebody went in it."""

    def __init__(self, play: Play, seed: int) -> None:
        self._play = play
        self._seed = seed
        self._rows: dict[Node, NDArray[np.float32]] = {}
        self._states: dict[Node, State] = {}
        self._seconds: dict[Node, float] = {}
        self._twin = play.twin_of(seed)
        begun = time.process_time()
        self._keep(Node(0), play.begin(seed), begun)

    @property
    def known(self) -> frozenset[Node]:
        """Where somebody was."""
        return frozenset(self._rows)

    def row(self, node: Node) -> NDArray[np.float32]:
        """What was measured at a node, column by column; what leads to it is trained first."""
        if node not in self._rows:
            before, action = _ways_to()[node]
            self.row(before)
            if not self._play.knows_twin(self._seed):  # it knows a few; there are more courses than that
                self._play.know_twin(self._seed, self._twin)
            self._play.load(self._states[before])
            begun = time.process_time()
            self._keep(node, go(self._play, action), begun)
        return self._rows[node]

    def seconds(self, node: Node) -> float:
        """For how long a processor worked on the steps from the node before to this one; to the first, on the first."""
        self.row(node)
        return self._seconds[node]

    def _keep(self, node: Node, moment: Moment, begun: float) -> None:
        self._seconds[node] = time.process_time() - begun
        self._rows[node] = np.array(numbers(moment), dtype=np.float32)
        if not node.over:
            self._states[node] = self._play.state()


@dataclass(frozen=True, slots=True, eq=False)
class Growing(Table):
    """A table that is trained while it is played: one problem, from as many seeds as there are courses."""

    courses: tuple[Course, ...] = ()

    def row(self, puzzle: int, node: Node) -> NDArray[np.float32]:
        """(columns,): all that was measured at one node."""
        return self.courses[puzzle].row(node)

    def column(self, name: str) -> NDArray[np.float32]:
        """(puzzles, nodes): one thing that was measured, where somebody was; NaN elsewhere."""
        found = np.full((len(self.courses), len(nodes())), np.nan, dtype=np.float32)
        for puzzle, course in enumerate(self.courses):
            for node in course.known:
                found[puzzle, place_of()[node]] = course.row(node)[COLUMNS.index(name)]
        return found


def growing(puzzle: Puzzle, seeds: Sequence[int]) -> Growing:
    """A problem from these seeds of its training; its data are the same from each. ``Bench`` plays it as any table."""
    play = game(puzzle)
    courses = tuple(Course(play, seed) for seed in seeds)
    nothing = np.empty((len(seeds), 0, 0), dtype=np.float32)
    return Growing((puzzle,) * len(seeds), nothing, (dict(play.space.places),) * len(seeds), courses=courses)


@cache
def _ways_to() -> Mapping[Node, tuple[Node, Action]]:
    """By node where one comes from, and by what: there is one way to each."""
    found: dict[Node, tuple[Node, Action]] = {}
    ahead = [Node(0)]
    while ahead:
        node = ahead.pop()
        if not node.over:
            for action, after in ways(node):
                found[after] = (node, action)
                ahead.append(after)
    return found
