"""Run the heuristic and learned policies in the engine from a hundred further seeds of each cell.

On the table a learned policy is better than the heuristic by half a point, while seeds of one problem differ by
several, so twenty seeds cannot show the difference. The cells are run again, by these two alone, from unused seeds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.science.learned_policies.evaluation import interval
from benchmarks.science.learned_policies.live import arms_of, played
from benchmarks.science.learned_policies.players import CONTROLLERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.science.learned_policies.live import Visit

FIRST_SEED: Final = 100_000
TIMES: Final = 5
"""As many seeds as a cell has otherwise."""

RULES: Final = "heuristic"
GARDENERS: Final = tuple(f"ppo-{number}" for number in range(CONTROLLERS))
TWIN: Final = "twin"


def run_more(visit: Visit) -> dict[str, Any]:
    """Run one cell; return its episodes by arm and seed."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    everybody, order = arms_of(visit)
    arms = {name: arm for name, arm in everybody.items() if name in (RULES, *GARDENERS)}
    seeds = TIMES * visit.cell.seeds
    episodes, _, _ = played(visit.cell.config(arms, FIRST_SEED, order, environments=seeds, capacity=False))
    return {
        "cell": visit.cell.name,
        "arms": {
            name: [
                {"seed": one["seed"], "reward": one["reward"], "test": one["test"], "kept": len(one["grown"])}
                for one in own
            ]
            for name, own in episodes.items()
        },
    }


def summed_up(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return reward and accuracy by cell and arm, over the twin and over the heuristic, with the trainings' mean."""
    return [_summed_up(line["cell"], line["arms"]) for line in lines]


def _summed_up(cell: str, arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    rewards, points = (
        {name: np.array([times * one[what] for one in own]) for name, own in arms.items() if name != TWIN}
        for what, times in (("reward", 1.0), ("test", 100.0))
    )
    twin = np.array([100.0 * one["test"] for one in arms[TWIN]])
    kept = {name: sum(one["kept"] for one in own) for name, own in arms.items() if name != TWIN}
    for values in (rewards, points):
        values["mean of the three"] = np.mean([values[name] for name in GARDENERS], axis=0)
    return {
        "cell": cell,
        "seeds": len(twin),
        "arms": {
            name: {
                "reward": interval(own),
                "over_twin": interval(points[name] - twin),
                "kept": kept.get(name),
                **(_less(rewards, points, name) if name != RULES else {}),
            }
            for name, own in rewards.items()
        },
    }


def _less(
    rewards: Mapping[str, NDArray[np.float64]], points: Mapping[str, NDArray[np.float64]], name: str
) -> dict[str, Any]:
    return {
        "less_rules": interval(rewards[name] - rewards[RULES]),
        "points_less_rules": interval(points[name] - points[RULES]),
    }
