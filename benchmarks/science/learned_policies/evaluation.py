"""Compute each policy's rewards on unseen problems, with intervals.

The reward of a policy on a problem is the mean over its controllers, if it has several. Intervals are over problems,
and comparisons are made problem by problem. Rewards are paid on the validation split, as in a run; beside them are the
rewards on the test split, which no policy was trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.science.learned_policies.costs import SPENT, spent
from benchmarks.science.learned_policies.decision_tree import fitted
from benchmarks.science.learned_policies.players import (
    CONTROLLERS,
    HEADLINE,
    PRICES,
    chance,
    heuristic,
    matches,
    trained,
)
from benchmarks.science.learned_policies.training import exercised
from benchmarks.science.learned_policies.tuning import tuned_look
from esper_core.leyline.constants import CONFIDENCE
from esper_core.runs.statistics import mean_interval
from esper_study.growbench import COLUMNS, Bench, FixedPlan, Node, Oracle, best_fixed_plan, best_plan
from esper_study.growbench.puzzles import DECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from esper_core.leyline import Policy
    from esper_study.growbench import Match

DIGITS: Final = 4
"""Behind the point of what is written down of one episode: its reward is known to a tenth of a point at best."""

PER_METRIC = 100.0
TEST: Final = COLUMNS.index("test_metric")


@dataclass(frozen=True)
class Result:
    """One policy at one price: by controller and problem its reward, and where each episode ended."""

    rewards: NDArray[np.float64]
    ends: tuple[tuple[Node, ...], ...]
    on_test: NDArray[np.float64]
    points: NDArray[np.float64]
    """Of accuracy on test, over the host that never grew."""
    spent: NDArray[np.float64]
    """(controllers, problems, 4): as ``costs.spent`` returns it."""


def everybody(
    bench: Bench, learnt_on: Sequence[int], folder: Path, settings: Mapping[str, Any]
) -> dict[str, dict[float, list[Policy]]]:
    """Return the controllers of each policy, by name and price, fitted on the training problems."""
    blind = best_fixed_plan(bench, matches(learnt_on, PRICES))
    gardeners: list[Policy] = [trained(bench, folder / f"gardener-{seed}") for seed in range(CONTROLLERS)]
    found: dict[str, dict[float, list[Policy]]] = {}
    for price in PRICES:
        players: dict[str, list[Policy]] = {
            "never": [FixedPlan(Node(DECISIONS))],
            "random": [chance(bench, seed) for seed in range(CONTROLLERS)],
            "best plan, price-blind": [FixedPlan(blind)],
            "best plan for the price": [FixedPlan(best_fixed_plan(bench, matches(learnt_on, (price,))))],
            "plan that looks once": [tuned_look(bench, learnt_on, price)],
            "plan by the first step": [fitted(bench, matches(learnt_on, (price,)))],
            "heuristic": [heuristic(bench, dict(settings[f"{price:g}"]))],
            "bandit": [exercised(bench, learnt_on, seed, price) for seed in range(CONTROLLERS)],
            "ppo": gardeners,
        }
        for name, own in players.items():
            found.setdefault(name, {})[price] = own
    return found


def judged(bench: Bench, puzzles: Sequence[int], price: float, controllers: Sequence[Policy]) -> Result:
    """Evaluate one policy on some problems at one price. A bandit plays its best arm and does not learn."""
    asked = matches(puzzles, (price,))
    played = [bench.play(policy, asked) for policy in controllers]
    ends = [own for _, own in played]
    rewards, on_test, points = (
        np.array([[worth(bench, *one) for one in zip(asked, own, strict=True)] for own in ends])
        for worth in (Bench.total_reward, worth_on_test, points_on_test)
    )
    took = np.array([[spent(bench, *one) for one in zip(asked, own.episodes, end, strict=True)] for own, end in played])
    return Result(rewards, tuple(ends), on_test, points, took)


def oracle(bench: Bench, puzzles: Sequence[int], price: float) -> Result:
    """Evaluate the best plan of each problem, by the whole table."""
    asked = matches(puzzles, (price,))
    return judged(bench, puzzles, price, [Oracle(bench, asked)])


def summary(results: Mapping[str, Mapping[float, Result]], best: Mapping[float, Result]) -> dict[str, Any]:
    """Return every policy's rewards with intervals, and the differences of ``ppo`` to each at one price."""
    players = {
        name: {f"{price:g}": _told(result, best[price]) for price, result in by_price.items()}
        for name, by_price in [*results.items(), ("oracle", best)]
    }
    ppo, head = results["ppo"][HEADLINE], HEADLINE
    others = {name: own[head] for name, own in results.items() if name != "ppo"} | {"oracle": best[head]}
    return {
        "players": players,
        "ppo_less": {name: interval(ppo.rewards.mean(0) - own.rewards.mean(0)) for name, own in others.items()},
        "ppo_less_on_test": {name: interval(ppo.on_test.mean(0) - own.on_test.mean(0)) for name, own in others.items()},
        "ppo_less_heuristic": less_by_price(results, "ppo", "heuristic"),
        "looks_less": {
            f"{one} less {other}": interval(results[one][head].rewards.mean(0) - results[other][head].rewards.mean(0))
            for one in ("heuristic", "plan that looks once")
            for other in ("plan by the first step", "best plan for the price")
        },
        "by_controller": ppo.rewards.mean(1).tolist(),
        "by_controller_less_heuristic": [
            interval(own - results["heuristic"][head].rewards.mean(0)) for own in ppo.rewards
        ],
    }


def written_down(
    file: Path, bench: Bench, puzzles: Sequence[int], results: Mapping[str, Mapping[float, Result]]
) -> None:
    """Write each policy's results on each problem, a line per problem: at each price, by controller.

    Results are the reward, the reward on test, and the kept seeds: each by its number in the table, the decision at
    which it germinated, and the one at which it was blended in.
    """
    with file.open("w", encoding="utf-8") as lines:
        for place, number in enumerate(puzzles):
            players = {
                name: {f"{price:g}": _of_one(own, place) for price, own in by_price.items()}
                for name, by_price in results.items()
            }
            lines.write(json.dumps({"problem": bench.table.puzzles[number].name, "players": players}) + "\n")


def _of_one(result: Result, place: int) -> dict[str, Any]:
    kept = [[[one.candidate, one.planted, one.advanced] for one in own[place].kept] for own in result.ends]
    numbers = {"reward": result.rewards, "on_test": result.on_test}
    return {**{what: [round(float(one[place]), DIGITS) for one in own] for what, own in numbers.items()}, "kept": kept}


def at_home(results: Mapping[str, Result], best: Result) -> dict[str, Any]:
    """Return the rewards of tuned and trained players on the training problems themselves."""
    most = float(best.rewards.mean())
    return {
        name: {**_told(own, best), "by_controller": [(most - float(one.mean())) / most for one in own.rewards]}
        for name, own in results.items()
    }


def to_be_won(bench: Bench, learnt_on: Sequence[int]) -> dict[str, float]:
    """Return the reward of the best fixed plan, and of the best plan of each training problem, at one price."""
    asked = matches(learnt_on, (HEADLINE,))
    best = [best_plan(bench, match)[0] for match in asked]
    plan = best_fixed_plan(bench, asked)
    return {
        "best_fixed": float(np.mean([bench.total_reward(match, plan) for match in asked])),
        "best": float(np.mean(best)),
    }


def less_by_price(results: Mapping[str, Mapping[float, Result]], one: str, other: str) -> dict[str, Any]:
    """Return the difference of two policies at each price, problem by problem."""
    return {
        f"{price:g}": interval(own.rewards.mean(0) - results[other][price].rewards.mean(0))
        for price, own in results[one].items()
    }


def schooling(
    rules: Mapping[float, Result], schools: Mapping[str, Mapping[float, Result]]
) -> dict[str, dict[str, Any]]:
    """Return the rewards of each training scheme, and their differences to the heuristic and to the first scheme."""
    first = next(iter(schools.values()))[HEADLINE]
    return {
        name: {
            "reward": {f"{price:g}": interval(own.rewards.mean(0)) for price, own in by_price.items()},
            "less_heuristic": interval(by_price[HEADLINE].rewards.mean(0) - rules[HEADLINE].rewards.mean(0)),
            "less_first": interval(by_price[HEADLINE].rewards.mean(0) - first.rewards.mean(0)),
            "less_first_on_test": interval(by_price[HEADLINE].on_test.mean(0) - first.on_test.mean(0)),
            "by_controller": by_price[HEADLINE].rewards.mean(1).tolist(),
            "by_controller_less_heuristic": [
                interval(own - rules[HEADLINE].rewards.mean(0)) for own in by_price[HEADLINE].rewards
            ],
        }
        for name, by_price in schools.items()
    }


def _told(result: Result, best: Result) -> dict[str, Any]:
    mean, most = float(result.rewards.mean()), float(best.rewards.mean())
    kept = [len(end.kept) for own in result.ends for end in own]
    return {
        "reward": interval(result.rewards.mean(0)),
        "on_test": interval(result.on_test.mean(0)),
        "points": interval(result.points.mean(0)),
        "regret": (most - mean) / most if most else None,
        "seeds_kept": sum(kept) / len(kept),
        **dict(zip(SPENT, result.spent.mean((0, 1)).tolist(), strict=True)),
    }


def interval(values: Iterable[float]) -> dict[str, float | int | None]:
    """Return the mean of the values with its interval, and their number."""
    found = mean_interval([float(value) for value in values], CONFIDENCE)
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


def worth_on_test(bench: Bench, match: Match, end: Node) -> float:
    """Return the reward as if it were paid on the test split."""
    costs = bench.potential(match, end)
    return points_on_test(bench, match, end) + costs["rent"] + costs["fossil_fee"]


def points_on_test(bench: Bench, match: Match, end: Node) -> float:
    """Return the gain in test accuracy over the host that never grew, in points."""
    test = [float(bench.table.row(match.puzzle, one)[TEST]) for one in (end, Node(DECISIONS))]
    return PER_METRIC * (test[0] - test[1])
