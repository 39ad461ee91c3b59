"""Problems with 20 RNG seeds each: those of the table, and others that are in no table.

On the table each plan of a problem was trained once, so a large part of one result is chance. Here the chosen actions
are trained. Policies are used as they were trained on the table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.science.learned_policies.evaluation import (
    DIGITS,
    accuracy_gained,
    costs_of,
    reward_on_test,
    seconds_of,
)
from benchmarks.science.learned_policies.policies import MAIN_PRICE
from esper_study.growbench import Bench, Match, live_table, puzzle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import Policy

FRESH: Final = 20
"""Problems that are in no table."""

SEEDS: Final = 20
FIRST_SEED: Final = 70_000


@dataclass(frozen=True, slots=True)
class Problem:
    """A held-out problem by number, and the policies that it is evaluated with: all trainings of each."""

    number: int
    seeds: int
    policies: Mapping[str, Sequence[Policy]]


def evaluate_problem(problem: Problem) -> dict[str, Any]:
    """Return, by policy and training, the rewards of each RNG seed, and means of what episodes gain and cost.

    costs: parameters of the final network, operations and seconds.
    """
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    table = live_table(puzzle(problem.number, "held_out"), range(FIRST_SEED, FIRST_SEED + problem.seeds))
    bench, matches = Bench(table), [Match(place, MAIN_PRICE) for place in range(problem.seeds)]
    by_policy: dict[str, Any] = {}
    for name, trainings in problem.policies.items():
        measured: dict[str, list[Any]] = {
            quantity: [] for quantity in ("reward", "on_test", "kept", "accuracy", "costs")
        }
        for policy in trainings:
            rollout, ends = bench.play(policy, matches)
            played = list(zip(matches, ends, strict=True))
            measured["reward"].append([round(bench.total_reward(*pair), DIGITS) for pair in played])
            measured["on_test"].append([round(reward_on_test(bench, *pair), DIGITS) for pair in played])
            measured["kept"].append(sum(len(end.kept) for end in ends) / problem.seeds)
            measured["accuracy"].append(_mean([accuracy_gained(bench, *pair) for pair in played]))
            costs = [
                (
                    *costs_of(bench, match, episode, end),
                    seconds_of(table.runs[match.puzzle], [turn.action for turn in episode.turns]),
                )
                for (match, end), episode in zip(played, rollout.trajectories, strict=True)
            ]
            measured["costs"].append(_mean(costs))
        by_policy[name] = measured
    return {"problem": problem.number, "policies": by_policy}


def _mean(values: Sequence[Any]) -> Any:
    return np.mean(np.array(values, dtype=np.float64), axis=0).round(DIGITS).tolist()
