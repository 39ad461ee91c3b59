"""What if nothing ever grew?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Action, ActionMask, ActionSpace, Observation


class Static:
    """Waits at every step: the control that every growing policy has to beat.

    It remembers nothing, so nothing is asked of it when a run is resumed.

    >>> from esper_core.leyline import ActionSpace
    >>> Static(ActionSpace({"early": ()})).act([], [])
    []

    space: what there would be to choose from.
    """

    def __init__(self, space: ActionSpace) -> None:
        self.space = space

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """WAIT for each environment."""
        return [WAIT] * len(observations)
