"""What did everybody come to? On problems that nobody had seen, each player on each of them, with intervals.

A player's worth on a problem is the mean over its controllers, where it has several; problems are what the interval is
over. What is compared is compared problem by problem. Rewards are paid on the validation split, as in a run; beside
them stands what they would be on the test split, which nobody was paid on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.science.gardeners.glancing import fitted
from benchmarks.science.gardeners.players import (
    CONTROLLERS,
    HEADLINE,
    PRICES,
    chance,
    heuristic,
    matches,
    trained,
)
from benchmarks.science.gardeners.spending import SPENT, spent
from benchmarks.science.gardeners.training import exercised
from benchmarks.science.gardeners.tuning import tuned_look
from esper_core import mean_interval
from esper_core.leyline.constants import CONFIDENCE
from esper_tasks.growbench.building import COLUMNS
from esper_tasks.growbench.plans import SPROUTS, Node
from esper_tasks.growbench.puzzles import DECISIONS
from esper_tasks.growbench.regret import Fixed, Oracle, best_fixed, best_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from esper_core.leyline import Policy
    from esper_tasks.growbench.playing import Bench, Match

DIGITS: Final = 4
"""Behind the point of what is written down of one episode: its reward is known to a tenth of a point at best."""

PER_METRIC = 100.0
AT_ONCE: Final[Mapping[str, Any]] = {"look_at_new": True}
"""How a gardener is set that looks first at what it never saw."""

TEST: Final = COLUMNS.index("test_metric")


@dataclass(frozen=True)
class Result:
    """One player at one price: by controller and problem its reward, and where each episode ended."""

    rewards: NDArray[np.float64]
    ends: tuple[tuple[Node, ...], ...]
    on_test: NDArray[np.float64]
    spent: NDArray[np.float64]
    """(controllers, problems, 3): as ``spending.spent`` tells it."""


def everybody(
    bench: Bench, learnt_on: Sequence[int], folder: Path, settings: Mapping[str, Any]
) -> dict[str, dict[float, list[Policy]]]:
    """Each player by name: for each price its controllers. What was fitted was fitted on the problems to learn on."""
    blind = best_fixed(bench, matches(learnt_on, PRICES))
    gardeners: list[Policy] = [trained(bench, folder / f"gardener-{seed}") for seed in range(CONTROLLERS)]
    found: dict[str, dict[float, list[Policy]]] = {}
    for price in PRICES:
        players: dict[str, list[Policy]] = {
            "never": [Fixed(Node(DECISIONS))],
            "random": [chance(bench, seed) for seed in range(CONTROLLERS)],
            "best plan, price-blind": [Fixed(blind)],
            "best plan for the price": [Fixed(best_fixed(bench, matches(learnt_on, (price,))))],
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
    """One player on some problems at one price. A bandit learns no more: what it does is its best arm."""
    asked = matches(puzzles, (price,))
    played = [bench.play(policy, asked) for policy in controllers]
    ends = [own for _, own in played]
    rewards = np.array([[bench.total(match, end) for match, end in zip(asked, own, strict=True)] for own in ends])
    on_test = np.array(
        [[worth_on_test(bench, match, end) for match, end in zip(asked, own, strict=True)] for own in ends]
    )
    took = np.array([[spent(bench, *one) for one in zip(asked, own.episodes, end, strict=True)] for own, end in played])
    return Result(rewards, tuple(ends), on_test, took)


def _reached(bench: Bench, asked: Sequence[Match], policy: Policy) -> tuple[Node, ...]:
    return bench.play(policy, asked)[1]


def oracle(bench: Bench, puzzles: Sequence[int], price: float) -> Result:
    """The best there is in each problem, by the whole table."""
    asked = matches(puzzles, (price,))
    return judged(bench, puzzles, price, [Oracle(bench, asked)])


def summary(results: Mapping[str, Mapping[float, Result]], best: Mapping[float, Result]) -> dict[str, Any]:
    """Every player at every price, with intervals; and the gardener that learnt less each of them, at one price."""
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
    """Write what every player came to in each problem, a line each: at each price, by controller.

    With what it was paid, what it would have been paid on test, and what it kept: the seed by its number among those of
    the table, the decision at which it was planted, and that at which it was blended in.
    """
    with file.open("w", encoding="utf-8") as lines:
        for place, number in enumerate(puzzles):
            players = {
                name: {f"{price:g}": _of_one(own, place) for price, own in by_price.items()}
                for name, by_price in results.items()
            }
            lines.write(json.dumps({"problem": bench.table.puzzles[number].name, "players": players}) + "\n")


def _of_one(result: Result, place: int) -> dict[str, Any]:
    kept = [[[one.sprout, one.planted, one.advanced] for one in own[place].kept] for own in result.ends]
    numbers = {"reward": result.rewards, "on_test": result.on_test}
    return {**{what: [round(float(one[place]), DIGITS) for one in own] for what, own in numbers.items()}, "kept": kept}


def at_home(
    bench: Bench, learnt_on: Sequence[int], players: Mapping[str, Mapping[float, Sequence[Policy]]]
) -> dict[str, Any]:
    """What who was tuned, and who learnt, comes to on the very problems to learn on: is what is lacking foresight?"""
    best = oracle(bench, learnt_on, HEADLINE)
    most = float(best.rewards.mean())
    found = {name: judged(bench, learnt_on, HEADLINE, players[name][HEADLINE]) for name in ("heuristic", "ppo")}
    return {
        name: {**_told(own, best), "by_controller": [(most - float(one.mean())) / most for one in own.rewards]}
        for name, own in found.items()
    }


def to_be_won(bench: Bench, learnt_on: Sequence[int]) -> dict[str, float]:
    """What the best fixed plan is worth on the problems to learn on, and what the best of each: at one price."""
    asked = matches(learnt_on, (HEADLINE,))
    best = [best_of(bench, match)[0] for match in asked]
    plan = best_fixed(bench, asked)
    return {"best_fixed": float(np.mean([bench.total(match, plan) for match in asked])), "best": float(np.mean(best))}


def less_by_price(results: Mapping[str, Mapping[float, Result]], one: str, other: str) -> dict[str, Any]:
    """One player less another at each price, problem by problem."""
    return {
        f"{price:g}": interval(own.rewards.mean(0) - results[other][price].rewards.mean(0))
        for price, own in results[one].items()
    }


def schooling(
    rules: Mapping[float, Result], schools: Mapping[str, Mapping[float, Result]]
) -> dict[str, dict[str, Any]]:
    """What gardeners came to at each price, by their school; beside the heuristic, and less by what the first has."""
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


def worth_a_look(bench: Bench, puzzles: Sequence[int], homes: Sequence[Path]) -> dict[str, Any]:
    """By price, what a first look at what is new brings these gardeners on these problems."""
    asked = matches(puzzles, PRICES)
    looked, plain = (
        np.mean([_worths(bench, asked, trained(bench, home, **how)) for home in homes], axis=0) for how in (AT_ONCE, {})
    )
    return _at_each_price(looked - plain)


def highest(worth: Mapping[str, Mapping[str, Any]]) -> float:
    """The highest price up to which a look pays on average; 0: it never does.

    >>> highest({"10": {"mean": 0.5}, "20": {"mean": 0.1}, "40": {"mean": -1.0}})
    20.0
    """
    bound = 0.0
    for price, found in worth.items():
        if found["mean"] <= 0.0:
            break
        bound = float(price)
    return bound


def newcomers(
    bench: Bench, puzzles: Sequence[int], blueprint: str, ways: Mapping[str, tuple[Sequence[Path], Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """What gardeners that never saw a blueprint do with it, by the way in which they learnt, or look at it.

    How often it is the best buy, and is bought then; and what each way is worth at each price beside the first of them,
    problem by problem. ways: by name where the gardeners are, and how they are set.
    """
    asked = matches(puzzles, PRICES)
    wanted = next(number for number, (_, own) in enumerate(SPROUTS) if own == blueprint)
    best = [_has(best_of(bench, match)[1], wanted) for match in asked]
    found: list[dict[str, Any]] = []
    first: NDArray[np.float64] | None = None
    for way, (homes, how) in ways.items():
        bought: dict[str, list[bool]] = {f"{price:g}": [] for price in PRICES}
        worths: list[NDArray[np.float64]] = []
        for home in homes:
            ends = _reached(bench, asked, trained(bench, home, **how))
            for match, end, due in zip(asked, ends, best, strict=True):
                bought[f"{match.price:g}"] += [_has(end, wanted)] if due else []
            worths.append(_by_problem(bench, asked, ends))
        by_problem = np.mean(worths, axis=0)
        first = by_problem if first is None else first
        found.append(
            {
                "blueprint": blueprint,
                "way": way,
                "cases_where_it_is_best": sum(best),
                "by_price": {price: [sum(own), len(own)] for price, own in bought.items()},
                "episodes": sum(map(len, bought.values())),
                "bought": sum(map(sum, bought.values())),
                "reward": _at_each_price(by_problem),
                "less_first": _at_each_price(by_problem - first),
            }
        )
    return found


def _at_each_price(by_problem: NDArray[np.float64]) -> dict[str, Any]:
    return {f"{price:g}": interval(own) for price, own in zip(PRICES, by_problem.T, strict=True)}


def _worths(bench: Bench, asked: Sequence[Match], policy: Policy) -> NDArray[np.float64]:
    return _by_problem(bench, asked, _reached(bench, asked, policy))


def _by_problem(bench: Bench, asked: Sequence[Match], ends: Sequence[Node]) -> NDArray[np.float64]:
    """(problems, prices): what each episode was worth."""
    rewards = [bench.total(match, end) for match, end in zip(asked, ends, strict=True)]
    return np.array(rewards).reshape(-1, len(PRICES))


def _has(end: Node, sprout: int) -> bool:
    return any(one.sprout == sprout for one in end.kept)


def _told(result: Result, best: Result) -> dict[str, Any]:
    mean, most = float(result.rewards.mean()), float(best.rewards.mean())
    kept = [len(end.kept) for own in result.ends for end in own]
    return {
        "reward": interval(result.rewards.mean(0)),
        "on_test": interval(result.on_test.mean(0)),
        "regret": (most - mean) / most if most else None,
        "seeds_kept": sum(kept) / len(kept),
        **dict(zip(SPENT, result.spent.mean((0, 1)).tolist(), strict=True)),
    }


def interval(values: Iterable[float]) -> dict[str, float | int | None]:
    """Their mean, from where to where it may be, and how many they are."""
    found = mean_interval([float(value) for value in values], CONFIDENCE)
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


def worth_on_test(bench: Bench, match: Match, end: Node) -> float:
    """The reward, had it been paid on the test split."""
    test = [float(bench.table.row(match.puzzle, one)[TEST]) for one in (end, Node(DECISIONS))]
    gain = PER_METRIC * (test[0] - test[1])
    costs = bench.worth(match, end)
    return gain + costs["rent"] + costs["fossil_fee"]
