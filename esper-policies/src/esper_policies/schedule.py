"""What if somebody wrote down beforehand what grows, where and when?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline import WAIT, State
from esper_policies.plan import Move, read_plan
from esper_policies.settings import PlanEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import Action, ActionMask, ActionSpace, Observation


class Schedule:
    """Carries out a fixed plan, the same in every environment, as far as what is measured there allows it.

    Each entry is carried out once, at the first step from its own on at which the mask allows it. Within a slot the
    entries keep their order: what cannot be done yet holds back what comes after it. Where entries of several slots
    could be carried out in one step, the first in the plan is, and the others wait. Step 0 starts an environment's
    plan afresh.

    >>> from esper_core.leyline import ActionSpace
    >>> space = ActionSpace({"early": ("blueprints/conv_light",)})
    >>> plan = [{"step": 0, "op": "germinate", "slot": "early", "blueprint": "conv_light"}]
    >>> [str(move) for move in Schedule(space, plan=plan).moves]
    ['plan[0]: germinate blueprints/conv_light in early, from step 0']

    space: the run's slots and blueprints. plan: entries as ``settings.PlanEntry`` has them, or as mappings.
    """

    def __init__(self, space: ActionSpace, *, plan: Sequence[PlanEntry | Mapping[str, Any]]) -> None:
        self.moves = read_plan([PlanEntry.model_validate(entry) for entry in plan], space)
        self._waiting: list[list[Move]] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """The next move of each environment's plan that is due and possible, else WAIT."""
        del self._waiting[len(observations) :]
        self._waiting += [list(self.moves) for _ in observations[len(self._waiting) :]]
        actions = []
        for place, (observation, mask) in enumerate(zip(observations, masks, strict=True)):
            if observation.step == 0:
                self._waiting[place] = list(self.moves)
            actions.append(_next(self._waiting[place], observation.step, mask))
        return actions

    def unfinished(self) -> list[tuple[str, ...]]:
        """For each environment the entries that its present episode has not carried out. Ask before the next begins."""
        return [tuple(str(move) for move in moves) for moves in self._waiting]

    def state(self) -> State:
        """For each environment the entries of the plan that are still to come, by their number."""
        return State({"waiting": [[move.index for move in moves] for moves in self._waiting]})

    def load(self, state: State) -> None:
        """Go on in the same plan where another left off."""
        self._waiting = [[self.moves[index] for index in left] for left in state.plain["waiting"]]


def _next(waiting: list[Move], step: int, mask: ActionMask) -> Action:
    """The action to take now; its move is taken off ``waiting``."""
    held_back: set[str] = set()
    for place, move in enumerate(waiting):
        if move.slot in held_back:
            continue
        if move.step <= step and mask.allows(move.action):
            return waiting.pop(place).action
        held_back.add(move.slot)
    return WAIT
