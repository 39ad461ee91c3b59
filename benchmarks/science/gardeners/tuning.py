"""What was tried before anything was judged? On problems to learn on alone; every try is a line in a file.

The problems are parted: on some of them a gardener learns, on the others it is seen what that was worth.
"""

from __future__ import annotations

import json
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.gardeners.players import HEADLINE, PRICES, Look, heuristic, matches
from benchmarks.science.gardeners.training import School, examined, taught
from esper_tasks.growbench.plans import SPROUTS
from esper_tasks.growbench.regret import standing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from esper_tasks.growbench.playing import Bench

LEARN_ON: Final = 0.75
"""Share of the problems to learn on that a gardener learns on while it is tuned."""

_EARLY: Final = [blueprint for slot, blueprint in SPROUTS if slot == "early"]
_LATE: Final = [blueprint for slot, blueprint in SPROUTS if slot == "late"]

SCHOOLS: Final[dict[str, School]] = {
    "from nothing": School(settings={"learning_rate": 1e-3}),
    "large steps": School(settings={"learning_rate": 2e-3}),
    "undecided": School(settings={"learning_rate": 1e-3, "entropy": 0.05, "entropy_end": 0.005, "entropy_rounds": 150}),
    "shown first": School(shown=True, settings={"learning_rate": 5e-4}),
    "by description": School(settings={"learning_rate": 1e-3, "forget_names": 1.0}),
}
"""What is tried of the way in which a gardener learns."""


def tuned_heuristic(bench: Bench, puzzles: Sequence[int], log: Path) -> dict[str, Any]:
    """The settings of the rules that were best on these puzzles at the headline's price."""
    tried: list[tuple[float, dict[str, Any]]] = []
    orders = [(*own, *_LATE) for own in permutations(_EARLY)] + [(*_LATE, *own) for own in permutations(_EARLY)]
    asked = matches(puzzles, (HEADLINE,))
    for order, points, undersold, caution in product(
        orders, (15.0, 60.0, 240.0, 960.0, 4000.0, 16000.0), (4.0, 8.0), (0.0, 0.5, 1.0)
    ):
        settings = {"order": order, "points": points, "undersold": undersold, "caution": caution}
        reward = standing(bench, asked, bench.play(heuristic(bench, settings), asked)[1]).reward
        tried.append((reward, settings))
    for reward, settings in sorted(tried, key=lambda one: -one[0])[:20]:
        note(log, {"what": "heuristic", "reward": reward, **settings})
    return max(tried, key=lambda one: one[0])[1]


def tuned_look(bench: Bench, puzzles: Sequence[int], price: float) -> Look:
    """The plan that looks once which is best on these puzzles at this price, of some hundreds."""
    asked = matches(puzzles, (price,))
    sprouts = range(len(SPROUTS))
    tried = [
        Look(first, enough, good, then)
        for first, enough, good, then in product(
            sprouts, (-1.0, 0.0, 0.005, 0.01, 0.02, 0.04), (0.5, 0.65, 0.75, 0.85, 1.0), (None, *sprouts)
        )
    ]
    return max(tried, key=lambda one: standing(bench, asked, bench.play(one, asked)[1]).reward)


def tuned_school(bench: Bench, puzzles: Sequence[int], log: Path, updates: int) -> str:
    """The name of the way to learn that was best on problems it had not seen, of those to learn on."""
    part = int(LEARN_ON * len(puzzles))
    on, beside = puzzles[:part], puzzles[part:]
    found: dict[str, float] = {}
    done = {one["school"]: one["reward"] for one in noted(log) if one["what"] == "school"}
    for name, school in SCHOOLS.items():
        if name not in done:
            own = School(updates, school.episodes, school.shown, school.settings)
            gardener = taught(bench, on, 0, own)
            seen, unseen = examined(bench, gardener, on), examined(bench, gardener, beside)
            note(
                log,
                {
                    "what": "school",
                    "school": name,
                    "reward": unseen.reward,
                    "best": unseen.best,
                    "reward_on_seen": seen.reward,
                    "best_on_seen": seen.best,
                    "reward_at_headline": examined(bench, gardener, beside, (HEADLINE,)).reward,
                    "prices": PRICES,
                },
            )
            done[name] = unseen.reward
        found[name] = done[name]
    return max(found, key=lambda name: found[name])


def note(log: Path, line: dict[str, Any]) -> None:
    """Write down a try."""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def noted(log: Path) -> list[dict[str, Any]]:
    """What was tried so far."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]  # one that a kill cut short is none
