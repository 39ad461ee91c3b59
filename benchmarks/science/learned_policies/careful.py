"""Measure whether more cautious policies keep fewer useless seeds, and what the caution costs.

On shuffled digits, and on hosts without a deficit, some policies occasionally keep a seed that does not pay. Here they
blend in a seed only at a given estimated probability that it pays: on these controls, in runs of the engine, and on the
training problems, which shows what the caution costs where growing pays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.learned_policies.evaluation import interval
from benchmarks.science.learned_policies.live import FIRST_SEED, arms_of, played
from benchmarks.science.learned_policies.players import CONTROLLERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.science.learned_policies.evaluation import Result
    from benchmarks.science.learned_policies.live import Visit

SURE: Final = (0.7, 0.9)
"""How likely blending in has to be; as they are it only has to be the likeliest."""


def controls(visits: Iterable[Visit]) -> list[Visit]:
    """Return the cells in which growing should not pay."""
    return [visit for visit in visits if visit.cell.name.startswith(("shuffled", "no deficit"))]


def arm_of(name: str, sure: float) -> str:
    """Return the arm's name of a controller with this caution.

    >>> arm_of("ppo-1", 0.7), arm_of("ppo-1", 0.0)
    ('ppo-1-sure-70', 'ppo-1')
    """
    return f"{name}-sure-{100 * sure:.0f}" if sure else name


def run_careful(visit: Visit) -> dict[str, Any]:
    """Run every controller on a control with each caution; return its episodes by arm and seed."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    everybody, order = arms_of(visit)
    plain = {name: arm for name, arm in everybody.items() if name.startswith("ppo-")}
    arms = {
        arm_of(name, sure): {**arm, "settings": {**arm["settings"], "sure": sure}}
        for sure in SURE
        for name, arm in plain.items()
    }
    episodes, _, _ = played(visit.cell.config(arms, FIRST_SEED, order, capacity=False))
    return {"cell": visit.cell.name, "arms": {name: own for name, own in episodes.items() if name != "twin"}}


def compared(
    at_home: Mapping[float, Result], live: Iterable[Mapping[str, Any]], careful: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return, by caution, the reward on the training problems and on each control, by controller.

    at_home: the results on the training problems, by caution, none first.
    """
    by_cell = {one["cell"]: one["arms"] for one in careful}
    as_it_is = {one["cell"]: one["arms"] for one in live if one["cell"] in by_cell}
    found = []
    for sure, own in at_home.items():
        names = [arm_of(f"ppo-{number}", sure) for number in range(CONTROLLERS)]
        arms = {cell: [several[name] for name in names] for cell, several in (by_cell if sure else as_it_is).items()}
        found.append(
            {
                "sure": sure,
                "at_home": interval(own.rewards.mean(0)),
                "at_home_less": interval(own.rewards.mean(0) - at_home[0.0].rewards.mean(0)),
                "controls": {
                    cell: [
                        {
                            "reward": interval(one["reward"] for one in episodes),
                            "kept": sum(len(one["grown"]) for one in episodes),
                        }
                        for episodes in several
                    ]
                    for cell, several in arms.items()
                },
            }
        )
    return found
