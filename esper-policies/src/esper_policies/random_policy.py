"""A policy that acts at random: the control of every study.

Draws are hashes instead of a generator: of the policy's seed, the episode, the environment's place in its arm, and the
step. So no environment's choices depend on how many others there are, and the only state is the
episode that each environment is in.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import WAIT, Action, Op, State
from esper_policies.settings import RandomSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation

BITS: Final = 64


class Random:
    """Takes a legal action at random, each equally likely; WAIT is one of them.

    The choices are the ops by slot and target: each blueprint that can germinate in a slot, each seed that can be
    advanced or pruned, and WAIT, once.

    It uses the mask only. Step 0 begins an environment's next episode, with other draws than the last.

    >>> from esper_core.leyline import ActionMask, ActionSpace
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/mlp", "blueprints/conv_light")})
    >>> [(str(one.op), one.blueprint) for one in Random(ActionSpace(mask.blueprints)).choices(mask)]
    [('wait', None), ('germinate', 'blueprints/mlp'), ('germinate', 'blueprints/conv_light')]

    space: the run's slots and blueprints. settings: those of ``RandomSettings``.
    """

    def __init__(self, space: ActionSpace, **settings: Any) -> None:
        self.space = space
        self.settings = RandomSettings.model_validate(settings)
        self._episodes: list[int] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return a random legal action for each environment."""
        self._episodes += [0] * (len(observations) - len(self._episodes))
        actions = []
        for place, (observation, mask) in enumerate(zip(observations, masks, strict=True)):
            self._episodes[place] += observation.step == 0
            choices = self.choices(mask)
            drawn = hashed(self.settings.seed, self._episodes[place], place, observation.step, "action")
            actions.append(choices[drawn * len(choices) >> BITS])
        return actions

    def state_dict(self) -> State:
        """Return which episode each environment is in."""
        return State({"episodes": list(self._episodes)})

    def load_state_dict(self, state: State) -> None:
        """Restore which episode each environment is in."""
        self._episodes = list(state.plain["episodes"])

    def choices(self, mask: ActionMask) -> list[Action]:
        """Return the legal actions in the order of the run's slots, of the ops, and of names."""
        actions = [WAIT]
        for slot in self.space.slots:
            possible = mask.ops.get(slot, frozenset())
            if Op.GERMINATE in possible:
                actions += [Action(Op.GERMINATE, slot, blueprint) for blueprint in mask.blueprints.get(slot, ())]
            for op in (Op.ADVANCE, Op.PRUNE):
                if op in possible and slot not in mask.seeds:
                    actions.append(Action(op, slot))
                elif op in possible:
                    actions += [Action(op, slot, name) for name, ops in sorted(mask.seeds[slot].items()) if op in ops]
            if Op.FOSSILISE in possible:
                actions.append(Action(Op.FOSSILISE, slot))
        return actions


def hashed(*key_parts: object) -> int:
    """Return a number below 2^64 that is a hash of the arguments."""
    digest = blake2b(" ".join(map(str, key_parts)).encode(), digest_size=BITS // 8).digest()
    return int.from_bytes(digest, "big")
