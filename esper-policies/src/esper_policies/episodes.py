"""What policies have in common that remember each environment's episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from esper_core.leyline import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import Action, ActionMask, Observation


class EpisodeMemory(Protocol):
    """What a policy remembers of one environment's episode; made without arguments when it begins."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Return what ``plain`` describes."""


M = TypeVar("M", bound=EpisodeMemory)


class RememberingPolicy(ABC, Generic[M]):
    """A policy that remembers each environment's episode, and nothing else.

    memory: class of what it remembers of an episode. memories: of each environment's present episode.
    """

    memory: type[M]

    def __init__(self) -> None:
        self.memories: list[M] = []
        self._steps: list[int] = []

    @abstractmethod
    def choose(self, memory: M, seen: Observation, mask: ActionMask) -> Action:
        """Return the action in an environment, and remember what was seen."""

    @abstractmethod
    def impossible(self, steps: int) -> tuple[str, ...]:
        """Return a notice if an episode of so many steps is too short for any seed to be kept."""

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the action for each environment."""
        memories = [*self.memories, *(self.memory() for _ in observations)]
        pairs = zip(observations, memories, strict=False)
        self.memories = [self.memory() if seen.step == 0 else memory for seen, memory in pairs]
        self._steps = [seen.steps for seen in observations]
        return [self.choose(*arguments) for arguments in zip(self.memories, observations, masks, strict=True)]

    def unfinished(self) -> list[tuple[str, ...]]:
        """Return for each environment a notice if its episode is too short for any seed to be kept."""
        return [self.impossible(steps) for steps in self._steps]

    def state_dict(self) -> State:
        """Return the memory of each environment's episode."""
        return State({"memories": [memory.plain() for memory in self.memories], "steps": list(self._steps)})

    def load_state_dict(self, state: State) -> None:
        """Restore the memories."""
        self.memories = [self.memory.of(plain) for plain in state.plain["memories"]]
        self._steps = list(state.plain["steps"])
