"""What policies have in common that remember each environment's episode."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter

from esper_core.leyline import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Action, ActionMask, Observation


M = TypeVar("M")


class RememberingPolicy(ABC, Generic[M]):
    """A policy that remembers each environment's episode, and nothing else.

    memory: dataclass of what it remembers of an episode, made without arguments when that begins; pydantic translates
    it to JSON and back, so the types of its fields must be importable at run time. memories: of each environment's
    present episode.
    """

    memory: type[M]

    def __init__(self) -> None:
        self.memories: list[M] = []
        self._steps: list[int] = []
        # JSON has no infinite numbers, and states hold none: they become text.
        self._json = TypeAdapter(list[self.memory], config=ConfigDict(ser_json_inf_nan="strings"))  # type: ignore[name-defined]

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
        return State({"memories": json.loads(self._json.dump_json(self.memories)), "steps": list(self._steps)})

    def load_state_dict(self, state: State) -> None:
        """Restore the memories."""
        self.memories = self._json.validate_python(state.plain["memories"])
        self._steps = list(state.plain["steps"])
