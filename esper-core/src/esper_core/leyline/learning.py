"""What does a policy learn from? The episodes that it played: what it saw, what it could do, did, and got for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline.actions import Action, ActionMask
    from esper_core.leyline.signals import Observation, RewardBreakdown


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision: the very objects that the policy was given and gave, and what came of it.

    reward: of the step after the action, or of the episode's end; None where it is unknown, for want of a twin.
    """

    observation: Observation
    mask: ActionMask
    action: Action
    reward: RewardBreakdown | None


@dataclass(frozen=True, slots=True)
class Played:
    """One episode. Its horizon cut it: ``final`` is what could be seen after the last action."""

    turns: tuple[Turn, ...]
    final: Observation


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one arm's policy played in a round, an episode for each of its environments in their order."""

    arm: str
    round: int
    episodes: tuple[Played, ...]


@runtime_checkable
class Learner(Protocol):
    """What a policy may be besides: one that learns from what it played. A plan that is written down has none."""

    def update(self, rollout: Rollout) -> Mapping[str, float]:
        """Learn from one round; what is to be told of it: figures by name, such as a loss. Called after each round."""
        ...
