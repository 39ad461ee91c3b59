"""What does a policy learn from? The episodes that it played: what it saw, what it could do, did, and got for it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  pydantic reads it
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from esper_core.leyline.actions import Action, ActionMask  # noqa: TC001  pydantic reads it
from esper_core.leyline.signals import Observation, RewardBreakdown  # noqa: TC001  pydantic reads it


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
    """One episode, or a part of one that a rollback ended. ``final`` is what could be seen after the last action.

    terminated: it ended in a rollback, behind which there was nothing to hope for. Otherwise its horizon cut it, or the
    governor did since nothing more was to be expected: what the final state promised is worth what it promised.
    """

    turns: tuple[Turn, ...]
    final: Observation
    terminated: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one arm's policy played in a round: the episodes of its environments, in their order.

    An environment that was rolled back has several: the rollback is the end of one, and what follows is the next.
    """

    arm: str
    round: int
    episodes: tuple[Played, ...]


@runtime_checkable
class Learner(Protocol):
    """What a policy may be besides: one that learns from what it played. A plan that is written down has none."""

    def update(self, rollout: Rollout) -> Mapping[str, float]:
        """Learn from one round; what is to be told of it: figures by name, such as a loss. Called after each round."""
        ...
