"""Repeat the comparison on problems that are in no table and, from twenty seeds, on those of the table.

On the table each plan of each problem was trained once, so a large part of the result of one problem is chance. Here
the outcomes are not known beforehand: the chosen actions are trained. Policies are used as they were trained on the
table, and nothing is chosen or changed by the results.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.science.learned_policies.costs import SECONDS, SPENT, seconds, spent
from benchmarks.science.learned_policies.evaluation import DIGITS, interval, points_on_test, worth_on_test
from benchmarks.science.learned_policies.players import HEADLINE
from esper_study.growbench import Bench, LiveTable, Match, live_table, puzzle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import Played, Policy
    from esper_study.growbench import Node

    Players = Mapping[str, Sequence[Policy]]

FRESH: Final = 20
"""Problems that are in no table."""

SEEDS: Final = 20
FIRST_SEED: Final = 70_000
JUDGED, BESIDE = "ppo", "heuristic"
"""Who is held against whom, problem by problem."""

TOOK: Final = (*SPENT, SECONDS)
"""What is told of the cost of an episode, in this order: multiples of what the host alone takes."""


@dataclass(frozen=True, slots=True)
class Task:
    """A problem that all policies play, from each of its seeds. players: their controllers by name."""

    number: int
    seeds: int
    players: Players


def tasks(numbers: Sequence[int], players: Players, *, quick: bool) -> list[Task]:
    """Return the tasks on these held-out problems."""
    few, seeds = (2, 2) if quick else (None, SEEDS)
    return [Task(number, seeds, players) for number in numbers[:few]]


def played(task: Task) -> dict[str, Any]:
    """Return the rewards on a problem, by policy, controller and seed, on validation and on test.

    And, by controller, means over seeds: accuracy on test over the host alone, seeds kept, and what episodes took.
    """
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    courses = live_table(puzzle(task.number, "held_out"), range(FIRST_SEED, FIRST_SEED + task.seeds))
    bench = Bench(courses)
    asked = [Match(place, HEADLINE) for place in range(task.seeds)]
    told: dict[str, Any] = {}
    for name, controllers in task.players.items():
        episodes = [bench.play(policy, asked) for policy in controllers]
        ends = [own for _, own in episodes]
        told[name] = {
            what: [[round(worth(bench, *at), DIGITS) for at in zip(asked, own, strict=True)] for own in ends]
            for what, worth in (("reward", Bench.total_reward), ("on_test", worth_on_test))
        }
        told[name]["kept"] = [sum(len(end.kept) for end in own) / task.seeds for own in ends]
        told[name]["points"] = [
            _mean([points_on_test(bench, *at) for at in zip(asked, own, strict=True)]) for own in ends
        ]
        told[name]["took"] = [
            _mean([_took(bench, courses, *at) for at in zip(asked, rollout.episodes, own, strict=True)])
            for rollout, own in episodes
        ]
    return {"problem": task.number, "players": told}


def with_chance(lines: Sequence[Mapping[str, Any]], luck: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the same problems with the random policy's results beside the others'."""
    by_chance = {line["problem"]: line["players"] for line in luck}
    return [{**line, "players": {**by_chance[line["problem"]], **line["players"]}} for line in lines]


def summed_up(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every policy's reward with intervals over problems, and the comparisons."""
    by_name = {name: [line["players"][name] for line in lines] for name in lines[0]["players"]}
    worth = {what: {name: _worth(own, what) for name, own in by_name.items()} for what in ("reward", "on_test")}
    judged, beside = worth["reward"][JUDGED], worth["reward"][BESIDE]
    differences = judged.mean(1) - beside.mean(1)
    return {
        "problems": len(lines),
        "seeds": judged.shape[2],
        "players": {
            name: {
                **{what: interval(worth[what][name].mean((1, 2))) for what in worth},
                "less_heuristic": interval(own.mean((1, 2)) - beside.mean((1, 2))),
                "by_controller": own.mean((0, 2)).tolist(),
                "seeds_kept": float(np.mean([one["kept"] for one in by_name[name]])),
                "points": interval(np.mean([one["points"] for one in by_name[name]], axis=1)),
                **dict(zip(TOOK, np.mean([one["took"] for one in by_name[name]], axis=(0, 1)).tolist(), strict=True)),
            }
            for name, own in worth["reward"].items()
        },
        "ppo_less": {name: _less(worth, name) for name in by_name if name != JUDGED},
        "by_controller_less_heuristic": [interval(own) for own in (judged.mean(2) - beside.mean(2)).T],
        "problem_by_problem": _verdicts(differences),
        "deviation": {"of_one_seed": _within(differences), "of_problems": float(differences.mean(1).std(ddof=1))},
    }


def _took(bench: Bench, courses: LiveTable, match: Match, episode: Played, end: Node) -> list[float]:
    actions = [turn.action for turn in episode.turns]
    return [*spent(bench, match, episode, end), seconds(courses.runs[match.puzzle], actions)]


def _mean(values: Sequence[float] | Sequence[Sequence[float]]) -> Any:
    return np.mean(np.array(values, dtype=np.float64), axis=0).round(DIGITS).tolist()


def _worth(own: Sequence[Mapping[str, Any]], what: str) -> NDArray[np.float64]:
    """Return the values as an array (problems, controllers, seeds)."""
    return np.array([one[what] for one in own], dtype=np.float64)


def _less(worth: Mapping[str, Mapping[str, NDArray[np.float64]]], name: str) -> dict[str, Any]:
    return {what: interval(own[JUDGED].mean((1, 2)) - own[name].mean((1, 2))) for what, own in worth.items()}


def _verdicts(differences: NDArray[np.float64]) -> dict[str, int]:
    """Count the problems in which one is better, by an interval over the seeds of that problem alone."""
    each = [interval(own) for own in differences]
    better = sum(one["low"] is not None and one["low"] > 0 for one in each)
    worse = sum(one["high"] is not None and one["high"] < 0 for one in each)
    same = sum(not own.any() for own in differences)
    return {"better": better, "worse": worse, "same_from_each_seed": same}


def _within(differences: NDArray[np.float64]) -> float:
    """Return the deviation over seeds within a problem, over problems."""
    return float(np.sqrt(differences.var(1, ddof=1).mean()))
