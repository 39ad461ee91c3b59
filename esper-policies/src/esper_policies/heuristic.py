"""What would somebody do who looks at the measurements and thinks for a moment?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from esper_core.leyline import WAIT, Op, SettingError, State
from esper_core.leyline.constants import RAMP_STEPS
from esper_policies.forecast import CAUTION, FEE, UNDERSOLD, Forecast
from esper_policies.remembering import Memory
from esper_policies.rules import RULES, Scene, in_season
from esper_policies.settings import HeuristicSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Action, ActionMask, ActionSpace, Observation


class Heuristic:
    """Tries what could grow, keeps what pays, and stops when nothing does.

    In each slot it plants what was not tried there yet, as many side by side as the nursery holds; after a preview of
    ``preview`` steps it blends in the one whose forecast exceeds its cost the most, and drops the others; it keeps that
    one as soon as it is shown in the host that it pays, and takes it out if it is not after ``patience`` steps. The
    rules stand in ``rules``, the forecast with its figures in ``forecast``. Gates it takes as they come: what they
    refuse is not in its mask. It draws no random numbers.

    >>> from esper_core.leyline import ActionMask, ActionSpace, Observation, Signals, SlotSignals, SlotState
    >>> policy = Heuristic(ActionSpace({"early": ("blueprints/conv_light",)}), first=0.0)
    >>> free = SlotSignals("early", SlotState.FREE, fossils=0)
    >>> seen = Observation(0, 40, Signals(0, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,)))
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/conv_light",)})
    >>> [action] = policy.act([seen], [mask])
    >>> str(action.op), action.slot, action.blueprint
    ('germinate', 'early', 'blueprints/conv_light')

    space: the run's slots and blueprints; the file's order is the order in which they are tried.
    preview, patience, first, last, speed, undersold, caution, price, fee, points: as in ``settings.HeuristicSettings``.
    """

    def __init__(
        self,
        space: ActionSpace,
        *,
        preview: int = 5,
        patience: int = 5,
        first: float = 0.1,
        last: float = 0.6,
        speed: int = RAMP_STEPS,
        undersold: float = UNDERSOLD,
        caution: float = CAUTION,
        price: float | None = None,
        fee: float = FEE,
        points: float | None = None,
    ) -> None:
        if first > last:
            at, message = "first", "planting begins before it ends"
            raise SettingError(at, message, f"first is at most last. Received: {first} and {last}")
        self.space = space
        self.settings = HeuristicSettings(
            preview=preview,
            patience=patience,
            first=first,
            last=last,
            speed=speed,
            undersold=undersold,
            caution=caution,
            price=price,
            fee=fee,
            points=points,
        )
        self.forecast = Forecast(undersold, caution, price, fee, points)
        self._memories: list[Memory] = []
        self._steps: list[int] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """For each environment what the first rule says that has something to say, else WAIT."""
        del self._memories[len(observations) :]
        self._memories += [Memory() for _ in observations[len(self._memories) :]]
        self._steps = [observation.steps for observation in observations]
        return [self._one(place, *seen) for place, seen in enumerate(zip(observations, masks, strict=True))]

    def unfinished(self) -> list[tuple[str, ...]]:
        """For each environment: that nothing could be tried, where the episode is too short for a single life."""
        return [self._too_short(steps) for steps in self._steps]

    def state(self) -> State:
        """What it remembers of each environment's episode."""
        return State({"memories": [memory.plain() for memory in self._memories], "steps": list(self._steps)})

    def load(self, state: State) -> None:
        """Go on with what another remembered."""
        self._memories = [Memory.of(plain) for plain in state.plain["memories"]]
        self._steps = list(state.plain["steps"])

    def _one(self, place: int, observation: Observation, mask: ActionMask) -> Action:
        if observation.step == 0:
            self._memories[place] = Memory()
        memory, forecast = self._memories[place], self.forecast.asked(observation)
        memory.look(observation.signals.slots, observation.step, forecast)
        scene = Scene(observation, mask, memory, forecast, self.settings)
        action = next((found for rule in RULES if (found := rule(scene)) is not None), WAIT)
        if action.op is Op.GERMINATE:
            assert action.slot is not None
            assert action.blueprint is not None
            memory.planted(action.slot, action.blueprint, observation.step)
        return action

    def _too_short(self, steps: int) -> tuple[str, ...]:
        own = self.settings
        if in_season(math.ceil(own.first * steps), steps, own):
            return ()
        return (
            f"anything: {own.preview} steps of preview and two ramps of {own.speed} leave no room in {steps} steps",
        )
