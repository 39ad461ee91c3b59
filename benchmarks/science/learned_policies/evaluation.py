"""Rewards on held-out problems of the table, and what an episode costs.

Rewards are paid on the validation split, as in a run. Beside them are the rewards on the test split, on which no policy
was trained. Costs are multiples of those of the host that never grows, since hosts have several sizes.
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.learned_policies.policies import (
    PRICES,
    TRAININGS,
    heuristic,
    matches,
    random_actions,
    trained,
)
from benchmarks.science.learned_policies.training import tune_one_preview
from esper_core.leyline import WAIT, Op
from esper_study.growbench import CANDIDATES, COLUMNS, Bench, FixedPlan, Node, Oracle, after, best_fixed_plan, mask_at
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from esper_core.leyline import Action, Candidate, Policy, SlotDescription, Trajectory
    from esper_study.growbench import Match, PuzzleRun

    ByPrice = Mapping[float, Sequence[Policy]]

DIGITS: Final = 4
BEST: Final = "best possible"
_LENGTHS: Final = (*[DECIDE_EVERY] * (DECISIONS - 1), STEPS - 1 - DECIDE_EVERY * (DECISIONS - 1))
"""Steps after each decision. One step comes before the first."""


def policies_by_price(
    bench: Bench, problems: Sequence[int], folder: Path, rules: Mapping[str, Any]
) -> dict[str, dict[float, list[Policy]]]:
    """Return each policy, fitted on the training problems, by name and price; all trainings of it."""
    fixed = best_fixed_plan(bench, matches(problems, PRICES))
    learned: list[Policy] = [trained(bench, folder / f"ppo-{seed}") for seed in range(TRAININGS)]
    policies: dict[str, dict[float, list[Policy]]] = {}
    for price in PRICES:
        at_price: dict[str, list[Policy]] = {
            "no growth": [FixedPlan(Node(DECISIONS))],
            "random actions": [random_actions(bench, seed) for seed in range(TRAININGS)],
            "best fixed plan": [FixedPlan(fixed)],
            "best fixed plan per price": [FixedPlan(best_fixed_plan(bench, matches(problems, (price,))))],
            "plan with one preview": [tune_one_preview(bench, problems, price)],
            "heuristic": [heuristic(bench, dict(rules[f"{price:g}"]))],
            "ppo": learned,
        }
        for name, several in at_price.items():
            policies.setdefault(name, {})[price] = several
    return policies


def best_possible(bench: Bench, problems: Sequence[int]) -> dict[float, list[Policy]]:
    """Return the policy that takes the best plan of each problem."""
    return {price: [Oracle(bench, matches(problems, (price,)))] for price in PRICES}


def write_rewards(file: Path, bench: Bench, problems: Sequence[int], policies: Mapping[str, ByPrice]) -> None:
    """Evaluate the policies on the table, and write a line per problem: by policy, price and training."""
    played = {
        (name, price): [bench.play(policy, matches(problems, (price,)))[1] for policy in several]
        for name, by_price in policies.items()
        for price, several in by_price.items()
    }
    with file.open("w", encoding="utf-8") as lines:
        for place, number in enumerate(problems):
            by_policy: dict[str, dict[str, Any]] = {}
            for (name, price), ends in played.items():
                (match,) = matches([number], (price,))
                by_policy.setdefault(name, {})[f"{price:g}"] = {
                    "reward": [round(bench.total_reward(match, nodes[place]), DIGITS) for nodes in ends],
                    "on_test": [round(reward_on_test(bench, match, nodes[place]), DIGITS) for nodes in ends],
                    "kept": [
                        [[seed.candidate, seed.planted, seed.advanced] for seed in nodes[place].kept] for nodes in ends
                    ],
                }
            lines.write(json.dumps({"problem": bench.table.puzzles[number].name, "policies": by_policy}) + "\n")


def reward_on_test(bench: Bench, match: Match, end: Node) -> float:
    """Return the reward as if it were paid on the test split."""
    costs = bench.potential(match, end)
    return accuracy_gained(bench, match, end) + costs["rent"] + costs["fossil_fee"]


def accuracy_gained(bench: Bench, match: Match, end: Node) -> float:
    """Return the gain in test accuracy over the host that never grew, in points."""
    column = COLUMNS.index("test_metric")
    grown, alone = (float(bench.table.row(match.puzzle, node)[column]) for node in (end, Node(DECISIONS)))
    return 100.0 * (grown - alone)


# --- costs


def costs_of(bench: Bench, match: Match, episode: Trajectory, end: Node) -> tuple[float, float]:
    """Return the parameters of the final network, and the operations of the episode.

    An incubating seed trains on a branch, beside a copy of the host whose operations are counted.
    """
    host = float(bench.table.row(match.puzzle, Node(0))[COLUMNS.index("parameters")])
    places = bench.table.places[match.puzzle]
    seeds = [_candidate(places, number) for number in range(len(CANDIDATES))]
    of_host = _known(next(iter(places.values())).host_flops)
    operations = of_host
    for length, (kept, incubating) in zip(
        _LENGTHS, trained_seeds([turn.action for turn in episode.turns]), strict=True
    ):
        hosts, numbers = (1, kept) if incubating is None else (2, [*kept, incubating])
        operations += length * (hosts * of_host + sum(_known(seeds[number].flops) for number in numbers))
    final = host + sum(_known(seeds[seed.candidate].parameters) for seed in end.kept)
    return final / host, operations / (of_host * STEPS)


def seconds_of(run: PuzzleRun, actions: Sequence[Action]) -> float:
    """Return the training time of an episode without its twin."""
    grown, alone = ([run.seconds(node) for node in nodes_of(way)] for way in (actions, [WAIT] * DECISIONS))
    return sum(grown) / sum(alone)


def nodes_of(actions: Sequence[Action]) -> list[Node]:
    """Return the nodes of an episode, from its beginning to its end."""
    return list(accumulate(actions, after, initial=Node(0)))


def trained_seeds(actions: Sequence[Action]) -> list[tuple[list[int], int | None]]:
    """Return the trained seeds after each decision: those kept, and the incubating one, if any."""
    by_decision: list[tuple[list[int], int | None]] = []
    for action, (node, now) in zip(actions, pairwise(nodes_of(actions)), strict=True):
        possible, incubating = mask_at(node).allows(action), None
        if possible and action.op is Op.GERMINATE and action.slot is not None and action.blueprint is not None:
            incubating = CANDIDATES.index((action.slot, action.blueprint))
        elif node.pending is not None and (not possible or action.op is Op.WAIT):
            incubating = node.pending[0]
        by_decision.append(([seed.candidate for seed in now.kept], incubating))
    return by_decision


def _candidate(places: Mapping[str, SlotDescription], number: int) -> Candidate:
    slot, blueprint = CANDIDATES[number]
    candidate = places[slot].candidate(blueprint)
    assert candidate is not None, f"the table has no {blueprint} in {slot}"
    return candidate


def _known(number: float | None) -> float:
    assert number is not None, "every cost in the table was counted"
    return float(number)
