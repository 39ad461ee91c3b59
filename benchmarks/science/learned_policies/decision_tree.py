"""Plans chosen from the first step of the host alone, by a small decision tree that is fitted exactly.

The plan is chosen by numbers of the first step, before anything was tried: by at most two splits, those with the
largest reward on the training problems. An expert who knew all of these problems would choose the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from esper_study.growbench import Node, actions_to, end_nodes, plan_rewards
from esper_study.growbench.puzzles import DECIDE_EVERY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import Action, ActionMask, Observation, Signals
    from esper_study.growbench import Bench, Match

COLUMNS: Final = ("train_loss", "validation_loss", "validation_metric", "host_parameters")
"""What can be read off a host after its first step."""


@dataclass(frozen=True, slots=True)
class Parting:
    """A split by one of the columns: the branch up to ``at``, and the one beyond it."""

    column: int
    at: float
    below: Parting | Node
    above: Parting | Node


@dataclass(slots=True)
class Glance:
    """The policy: it reads the first step, chooses the tree's plan for it, and carries the plan out."""

    tree: Parting | Node
    _plans: list[Node] = field(default_factory=list)

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the plan's action of this decision; choose the plan at step 0."""
        if observations and observations[0].step == 0:
            self._plans = [_chosen(self.tree, _numbers(seen.signals)) for seen in observations]
        plans = zip(observations, self._plans, strict=True)
        return [actions_to(plan)[seen.step // DECIDE_EVERY] for seen, plan in plans]


def fitted(bench: Bench, matches: Sequence[Match], depth: int = 2) -> Glance:
    """Return the tree of at most ``depth`` splits on a path with the largest reward over the matches."""
    seen = np.array([_numbers(bench.observe(match, Node(0))[0].signals) for match in matches])
    _, tree = _best(seen, plan_rewards(bench, matches), depth)
    return Glance(tree)


def _best(seen: NDArray[np.float64], worth: NDArray[np.float64], depth: int) -> tuple[float, Parting | Node]:
    """Return the total reward of the best tree, and the tree."""
    plan = int(worth.sum(0).argmax())
    best: tuple[float, Parting | Node] = float(worth.sum(0)[plan]), end_nodes()[plan]
    if depth == 0:
        return best
    for column in range(len(COLUMNS)):
        values = np.unique(seen[:, column])
        for at in (values[1:] + values[:-1]) / 2.0:
            low = seen[:, column] <= at
            below, above = _best(seen[low], worth[low], depth - 1), _best(seen[~low], worth[~low], depth - 1)
            if below[0] + above[0] > best[0]:
                best = below[0] + above[0], Parting(column, float(at), below[1], above[1])
    return best


def _chosen(tree: Parting | Node, numbers: Sequence[float]) -> Node:
    while isinstance(tree, Parting):
        tree = tree.below if numbers[tree.column] <= tree.at else tree.above
    return tree


def _numbers(signals: Signals) -> list[float]:
    return [float(getattr(signals, name)) for name in COLUMNS]
