"""The policy that never grows anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Action, ActionMask, ActionSpace, Observation


class Static:
    """Waits at every step: the control that every growing policy has to beat.

    It has no state.

    >>> from esper_core.leyline import ActionSpace
    >>> Static(ActionSpace({"early": ()})).act([], [])
    []

    Args:
        space: the run's slots and blueprints; not used.
    """

    def __init__(self, space: ActionSpace) -> None:
        self.space = space

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return WAIT for each environment."""
        return [WAIT] * len(observations)
