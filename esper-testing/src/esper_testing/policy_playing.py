"""How is a policy played? On scenes, with every global generator set, so that what is played twice is played alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from esper_core.leyline import ActionSpace
from esper_testing.policy_scenes import side_by_side
from esper_testing.sites import seeded

if TYPE_CHECKING:
    from esper_core.leyline import Action, ActionMask, Observation, Policy
    from esper_testing.policy_scenes import Scene

Maker = Callable[[ActionSpace], Any]
"""Builds the policy for an action space."""

Shown = tuple[Sequence["Observation"], Sequence["ActionMask"]]
"""What a policy is shown in one step of all its environments."""


def actions_in(policy: Policy, shown: Sequence[Shown], draw: int = 0) -> list[list[Action]]:
    """For each step the actions. draw: what torch, numpy and Python draw from."""
    with seeded(draw, elsewhere=draw):
        return [list(policy.act(observations, masks)) for observations, masks in shown]


def actions_by_environment(policy: Policy, episodes: Sequence[Sequence[Scene]], draw: int = 0) -> list[list[Action]]:
    """For each environment its actions over the episode."""
    steps = actions_in(policy, side_by_side(episodes), draw)
    return [[step[place] for step in steps if place < len(step)] for place in range(len(episodes))]
