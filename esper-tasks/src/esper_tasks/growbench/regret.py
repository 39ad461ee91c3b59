"""How good is the best, and how far behind is somebody else? The whole table is known: so it can be said exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esper_tasks.growbench.plans import Node, ends
from esper_tasks.growbench.playing import Match, actions_to
from esper_tasks.growbench.puzzles import EVERY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import Action, ActionMask, Observation
    from esper_tasks.growbench.playing import Bench


def best_of(bench: Bench, match: Match) -> tuple[float, Node]:
    """What the best plan of a match is worth, and where it ends: known to whoever looks at all of them beforehand."""
    return max(((bench.total(match, end), end) for end in ends()), key=lambda found: found[0])


def worths(bench: Bench, matches: Sequence[Match]) -> NDArray[np.float64]:
    """(matches, ends): what each plan is worth in each match."""
    return np.array([[bench.total(match, end) for end in ends()] for match in matches])


def best_fixed(bench: Bench, matches: Sequence[Match]) -> Node:
    """The one plan that is worth most over all of the matches."""
    return list(ends())[int(worths(bench, matches).mean(0).argmax())]


@dataclass(slots=True)
class Fixed:
    """A policy that does the same everywhere: what leads to one end."""

    end: Node

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """The plan's action of this decision."""
        plan = actions_to(self.end)
        return [plan[observation.step // EVERY] for observation in observations]


@dataclass(slots=True)
class Oracle:
    """A policy that knows the table: it does the best in each of the matches that it is asked about, in their order."""

    bench: Bench
    matches: Sequence[Match]

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """The best plan's action of this decision."""
        return [
            Fixed(best_of(self.bench, match)[1]).act([observation], [mask])[0]
            for match, observation, mask in zip(self.matches, observations, masks, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Standing:
    """How somebody did. regret: what the best is worth beyond it, as a share of what the best is worth beyond growing
    nothing: 0 is the best there is, 1 as good as growing nothing."""

    reward: float
    best: float
    regret: float


def standing(bench: Bench, matches: Sequence[Match], reached: Sequence[Node]) -> Standing:
    """How good it was to end there. Growing nothing is worth 0 by definition."""
    rewards = [bench.total(match, end) for match, end in zip(matches, reached, strict=True)]
    best = [best_of(bench, match)[0] for match in matches]
    mean, most = float(np.mean(rewards)), float(np.mean(best))
    return Standing(mean, most, (most - mean) / most if most else 0.0)
