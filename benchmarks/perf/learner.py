"""P6: time of one policy update after a round: ``ppo`` with its default settings."""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from benchmarks.perf.turns import timed
from benchmarks.table import Row, Table, answer
from esper_core.leyline import Played, RewardBreakdown, Rollout, Turn
from esper_policies.ppo.policy import Ppo
from esper_testing.policies import episode, space_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import ActionSpace
    from esper_testing.policies import Scene

ENVIRONMENTS: Final = 8
STEPS: Final = 40
TURNS: Final = 5
MOST: Final = 1.0
"""Seconds."""


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure the median of some updates on one thread, each by the rollout since the one before."""
    torch.set_num_threads(1)
    space = space_of(2)
    policy = Ppo(space)
    steps = 4 if quick else STEPS
    taken = []
    for number in range(2 if quick else TURNS):
        rollout = _played(policy, space, number, steps)
        taken.append(timed(lambda rollout=rollout: policy.update(rollout))())  # type: ignore[misc]
    title = f"learner update, {ENVIRONMENTS} environments × {STEPS} steps, 2 slots, median of {TURNS}"
    return [Table("P6", title, (Row("one update", statistics.median(taken), MOST, "s"),))]


def _played(policy: Ppo, space: ActionSpace, number: int, steps: int) -> Rollout:
    """Build a rollout of environments in random states, with random rewards."""
    draw = random.Random(number)
    scenes = [_scenes(space, 1000 * number + 100 * place, steps) for place in range(ENVIRONMENTS)]
    turns: list[list[Turn]] = [[] for _ in scenes]
    for now in zip(*scenes, strict=True):
        actions = policy.act([one.observation for one in now], [one.mask for one in now])
        for own, scene, action in zip(turns, now, actions, strict=True):
            reward = RewardBreakdown({"drawn": draw.gauss(0.0, 1.0)})
            own.append(Turn(scene.observation, scene.mask, action, reward))
    return Rollout("ppo", number, tuple(Played(tuple(own), own[-1].observation) for own in turns))


def _scenes(space: ActionSpace, seed: int, steps: int) -> list[Scene]:
    """Build the observations of one environment for so many steps."""
    drawn: list[Scene] = []
    while len(drawn) < steps:
        drawn += episode(space, seed + len(drawn))
    return [
        replace(scene, observation=replace(scene.observation, step=step, steps=steps))
        for step, scene in enumerate(drawn[:steps])
    ]


if __name__ == "__main__":
    sys.exit(answer(measure))
