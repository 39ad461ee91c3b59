"""What does it do with a blueprint that it never saw? It looks at it first: whatever is dropped has left no trace.

What it learnt tells it which of the blueprints that it knows is worth a look, and of a new one nothing. But what it
learnt of seeds that are looked at, by their gain and their price, holds for any. So it plants a newcomer once in each
episode, where it would have planted something else, or waited; and then decides about it as about any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import Action, Op

if TYPE_CHECKING:
    from collections.abc import Collection

    from esper_core.leyline import ActionMask
    from esper_policies.ppo.encoding import Seen


def first_look(
    seen: Seen, mask: ActionMask, decided: Action, known: Collection[str], looked_at: Collection[str]
) -> Action | None:
    """The newcomer to be planted instead of what was decided; None: there is none, or there are better things to do."""
    if decided.op not in (Op.WAIT, Op.GERMINATE):
        return None
    for slot, blueprint in seen.candidates:
        plant = Action(Op.GERMINATE, slot, blueprint)
        if blueprint not in known and blueprint not in looked_at and mask.allows(plant):
            return plant
    return None
