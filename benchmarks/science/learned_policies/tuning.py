"""Choose settings on training problems only; every trial is a line in a file.

Training schemes are compared by cross-validation: a policy learns on some of the problems and is scored on the others.
"""

from __future__ import annotations

import json
import multiprocessing
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.learned_policies.players import HEADLINE, PRICES, Look, heuristic, matches
from benchmarks.science.learned_policies.training import PARTS, School, bench_of, examined, parted, taught
from esper_study.growbench import CANDIDATES, score
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.science.learned_policies.training import Rules
    from esper_study.growbench import Bench

LOOKS: Final = tuple(number * DECIDE_EVERY for number in range(1, DECISIONS))
"""Steps for which the rules may look at what they planted."""

_EARLY: Final = [blueprint for slot, blueprint in CANDIDATES if slot == "early"]
_LATE: Final = [blueprint for slot, blueprint in CANDIDATES if slot == "late"]

_SMALL: Final = {"learning_rate": 5e-4}
_NO_MEMORY: Final = {"memory": False}

SCHOOLS: Final[dict[str, School]] = {
    "from nothing": School(),
    "from nothing, averaged": School(averaged=0.9),
    "after the rules, averaged": School(first="heuristic", averaged=0.9, settings=_SMALL),
    "after the rules, averaged, without memory": School(
        first="heuristic", averaged=0.9, settings={**_SMALL, **_NO_MEMORY}
    ),
}
"""What is tried of the way in which a gardener learns."""

OTHER_SCHOOLS: Final[dict[str, School]] = {
    "that only imitate the rules": replace(SCHOOLS["after the rules, averaged"], updates=0),
    "from nothing, averaged": SCHOOLS["from nothing, averaged"],
}
"""Not tried for what is best, but to see what each part of it is worth."""

SCHOOLS_FOR_NEWCOMERS: Final[dict[str, School]] = {
    "no name is ever told": School(first="heuristic", averaged=0.9, settings={**_SMALL, "forget_names": 1.0}),
    "nor are all blueprints there": School(
        first="heuristic", averaged=0.9, rooms=True, settings={**_SMALL, "forget_names": 1.0}
    ),
}
"""Tried for those that were trained without a blueprint: what is to be done with one may be told by its description."""


def tuned_heuristic(bench: Bench, puzzles: Sequence[int], log: Path) -> dict[str, dict[str, Any]]:
    """Return, for each price, the heuristic's best settings on these problems."""
    orders = [(*own, *_LATE) for own in permutations(_EARLY)] + [(*_LATE, *own) for own in permutations(_EARLY)]
    points, caution = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0), (0.0, 0.5, 1.0)
    best: dict[str, dict[str, Any]] = {}
    for price in PRICES:
        asked = matches(puzzles, (price,))
        tried: list[tuple[float, dict[str, Any]]] = []
        for order, nat, preview, careful in product(orders, points, LOOKS, caution):
            settings = {"order": order, "points": nat, "preview": preview, "undersold": 1.0, "caution": careful}
            reward = score(bench, asked, bench.play(heuristic(bench, settings), asked)[1]).reward
            tried.append((reward, settings))
        for reward, settings in sorted(tried, key=lambda one: -one[0])[:10]:
            note(log, {"what": "heuristic", "price": price, "reward": reward, **settings})
        best[f"{price:g}"] = max(tried, key=lambda one: one[0])[1]
    return best


def tuned_look(bench: Bench, puzzles: Sequence[int], price: float) -> Look:
    """Return the best plan with one decision point on these problems at this price, of some hundreds."""
    asked = matches(puzzles, (price,))
    sprouts = range(len(CANDIDATES))
    ways = [(1, then) for then in (None, *sprouts)] + [(decision, None) for decision in range(2, DECISIONS)]
    tried = [
        Look(first, looks, enough, good, then)
        for first, (looks, then), enough, good in product(
            sprouts, ways, (-1.0, 0.0, 0.01, 0.03, 0.06, 0.1, 0.2), (0.5, 0.65, 0.75, 0.85, 1.0)
        )
    ]
    return max(tried, key=lambda one: score(bench, asked, bench.play(one, asked)[1]).reward)


@dataclass(frozen=True, slots=True)
class Trial:
    """A training scheme to be tried, in a process of its own. table: None is the shipped one."""

    table: Path | None
    name: str
    updates: int
    part: int
    rules: Rules


def tuned_school(table: Path | None, rules: Rules, log: Path, updates: int, workers: int) -> str:
    """Return the training scheme with the best cross-validated reward on the training problems.

    The heuristic was tuned on all of these problems, so schemes that imitate it know a little of the held-out folds.
    """
    done = {(one["school"], one["part"]) for one in noted(log) if one["what"] == "school"}
    wanted = [(name, part) for part in range(PARTS) for name in SCHOOLS]
    missing = [Trial(table, name, updates, part, rules) for name, part in wanted if (name, part) not in done]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for line in pool.imap_unordered(tried, missing):
            note(log, line)
    lines = [one for one in noted(log) if one["what"] == "school"]
    return max(SCHOOLS, key=lambda name: sum(one["reward"] for one in lines if one["school"] == name))


def tried(trial: Trial) -> dict[str, Any]:
    """Return the results of a training scheme."""
    bench = bench_of(trial.table)
    on, beside = parted(bench.table.of_part("train"), trial.part)
    school = SCHOOLS[trial.name]
    gardener = taught(bench, on, trial.part, replace(school, updates=trial.updates), trial.rules)
    seen, unseen = examined(bench, gardener, on), examined(bench, gardener, beside)
    return {
        "what": "school",
        "school": trial.name,
        "part": trial.part,
        "reward": unseen.reward,
        "best": unseen.best,
        "reward_on_seen": seen.reward,
        "best_on_seen": seen.best,
        "reward_at_headline": examined(bench, gardener, beside, (HEADLINE,)).reward,
        "reward_of_the_rules": sum(_by_the_rules(bench, trial.rules, beside)) / len(PRICES),
        "prices": PRICES,
        "updates": trial.updates,
    }


def _by_the_rules(bench: Bench, rules: Rules, puzzles: Sequence[int]) -> Iterator[float]:
    """Yield the heuristic's reward at each price."""
    for price in PRICES:
        asked = matches(puzzles, (price,))
        yield score(bench, asked, bench.play(heuristic(bench, rules[f"{price:g}"]), asked)[1]).reward


def note(log: Path, line: dict[str, Any]) -> None:
    """Append a trial as a line of its own, even after a line that a kill cut short."""
    cut = log.exists() and not log.read_bytes().endswith(b"\n")
    with log.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut else "") + json.dumps(line) + "\n")


def noted(log: Path) -> list[dict[str, Any]]:
    """Read the trials so far. A line that a kill cut short is ignored."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
