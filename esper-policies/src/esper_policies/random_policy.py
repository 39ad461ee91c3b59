"""What if chance decided? The control of every study: whoever chooses with care has to beat it.

Nothing is drawn from a generator. Each draw is a hash of where it is made: the policy's seed, the episode, the place
of the environment among those of its arm, the step, and what is drawn. So no environment's choices depend on how many
stand beside it, and all that there is to remember is which episode each of them is in.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

from esper_core.leyline import ARGUMENTS, WAIT, Action, Blend, Op, State
from esper_core.leyline.constants import FULL, RAMP_STEPS
from esper_policies.settings import RandomSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation


T = TypeVar("T")

BITS: Final = 64


class Random:
    """Does one of the things that are possible, each as likely as any other; to wait is one of them.

    What it draws from are the ops by slot and by what they act on: each blueprint that could germinate in a slot, each
    seed that could be advanced or pruned, and WAIT, once. How a seed is blended in is no choice of its own: it is drawn
    afterwards, so that another blend in the list makes nothing else likelier. RETARGET is among the choices where
    ``targets`` has several; with one target it would only begin the same way anew.

    It sees the mask and nothing else. Step 0 begins an environment's next episode, with other draws than the last.

    >>> from esper_core.leyline import ActionMask, ActionSpace
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/mlp", "blueprints/conv_light")})
    >>> [(str(one.op), one.blueprint) for one in Random(ActionSpace(mask.blueprints)).choices(mask)]
    [('wait', None), ('germinate', 'blueprints/mlp'), ('germinate', 'blueprints/conv_light')]

    space: the run's slots and blueprints.
    seed, blends, speeds, targets: as ``settings.RandomSettings`` says.
    """

    def __init__(
        self,
        space: ActionSpace,
        *,
        seed: int = 0,
        blends: Sequence[str] = (Blend.ADD.value,),
        speeds: Sequence[int] = (RAMP_STEPS,),
        targets: Sequence[float] = (FULL,),
    ) -> None:
        self.space = space
        self.settings = RandomSettings.model_validate(
            {"seed": seed, "blends": blends, "speeds": speeds, "targets": targets}
        )
        self._episodes: list[int] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """For each environment one of the things that its mask allows."""
        self._episodes += [0] * (len(observations) - len(self._episodes))
        actions = []
        for place, (observation, mask) in enumerate(zip(observations, masks, strict=True)):
            self._episodes[place] += observation.step == 0
            actions.append(self._drawn(mask, (self._episodes[place], place, observation.step)))
        return actions

    def state(self) -> State:
        """Which episode each environment is in."""
        return State({"episodes": list(self._episodes)})

    def load(self, state: State) -> None:
        """Go on in these episodes."""
        self._episodes = list(state.plain["episodes"])

    def choices(self, mask: ActionMask) -> list[Action]:
        """What it would draw from, in the order of the run's slots, of the ops, and of names."""
        return [WAIT, *(action for slot in self.space.slots for action in self._in(slot, mask))]

    def _in(self, slot: str, mask: ActionMask) -> Iterator[Action]:
        possible = mask.ops.get(slot, frozenset())
        if Op.GERMINATE in possible:
            yield from (Action(Op.GERMINATE, slot, blueprint) for blueprint in mask.blueprints.get(slot, ()))
        for op in (Op.ADVANCE, Op.PRUNE):
            if op in possible and slot not in mask.seeds:
                yield Action(op, slot)
            elif op in possible:
                yield from (Action(op, slot, name) for name, ops in sorted(mask.seeds[slot].items()) if op in ops)
        if Op.RETARGET in possible and len(self.settings.targets) > 1:
            yield Action(Op.RETARGET, slot)
        if Op.FOSSILISE in possible:
            yield Action(Op.FOSSILISE, slot)

    def _drawn(self, mask: ActionMask, where: tuple[int, ...]) -> Action:
        """One of the choices, with all that its op reads."""
        action = self._one_of(self.choices(mask), "action", where)
        own, reads = self.settings, ARGUMENTS[action.op]
        if "blend" in reads:
            action = replace(action, blend=Blend(self._one_of(own.blends, "blend", where)))
        if "speed" in reads:
            action = replace(action, speed=self._one_of(own.speeds, "speed", where))
        if "target" in reads:
            action = replace(action, target=self._one_of(own.targets, "target", where))
        return action

    def _one_of(self, things: Sequence[T], what: str, where: tuple[int, ...]) -> T:
        """One of the things, each as likely as any other; always the same one in the same place."""
        key = " ".join(map(str, (self.settings.seed, *where, what)))
        number = int.from_bytes(blake2b(key.encode(), digest_size=BITS // 8).digest(), "big")
        return things[number * len(things) >> BITS]
