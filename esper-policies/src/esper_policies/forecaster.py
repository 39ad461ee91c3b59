"""The policy that forecasts what a seed gains in the end, and asks what another look is worth.

``Recollection`` records an episode and computes beliefs from it, ``posteriors`` has the regressions behind them.
``Choice`` compares, in points of the reward, four ways to go on with a seed: keep it, look longer, drop it for the best
candidate that was not tried, or stop. The price enters exactly, as the reward ``team`` takes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import WAIT, Action, Op, Stage
from esper_core.leyline.lifecycle import BLENDED, INCUBATING
from esper_policies.episodes import RememberingPolicy
from esper_policies.heuristic import SHARE_FOR_SEED
from esper_policies.posteriors import (
    Belief,
    error_of,
    evidence,
    load_coefficients,
    reach_of,
    relative_gain,
    situation,
)
from esper_policies.settings import ForecasterSettings, too_few_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation, SeedSignals, SlotDescription, SlotSignals
    from esper_policies.posteriors import Coefficients

POINTS: Final = 100.0
"""Points for one unit of the metric, as in the reward ``team``."""
NODES: Final = ((-1.7320508, 1 / 6), (0.0, 2 / 3), (1.7320508, 1 / 6))
"""Gauss-Hermite nodes and weights of a standard normal distribution."""
NOTHING: Final = Belief(0.0, 0.0)


@dataclass(slots=True)
class Recollection:
    """One environment's episode so far.

    losses: step and validation loss of the host. gains: by slot and blueprint of the living seeds, step and gain of
    each look, as a share of the host's loss. tried: slot, number of fossils and blueprint of everything tried.
    """

    losses: list[tuple[int, float]] = field(default_factory=list)
    gains: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    # A list, not a set: sets of text have another order in each process, and equal runs write equal checkpoints.
    tried: list[tuple[str, int, str]] = field(default_factory=list)

    def look(self, seen: Observation) -> None:
        """Update it with an observation. Gains of acting seeds beside fossils are not of them alone, and left out."""
        self.losses.append((seen.step, seen.signals.validation_loss))
        alone = not seen.signals.fossils
        for slot in seen.signals.slots:
            before = self.gains.get(slot.name, {})
            self.gains[slot.name] = {seed.blueprint: before.get(seed.blueprint, []) for seed in slot.seeds}
            for seed in slot.seeds:
                if (trial := (slot.name, slot.fossils, seed.blueprint)) not in self.tried:
                    self.tried.append(trial)
                gain = relative_gain(seen, seed)
                if math.isfinite(gain) and (alone or seed.stage in INCUBATING):
                    self.gains[slot.name][seed.blueprint].append((seen.step, gain))


@dataclass(frozen=True, slots=True)
class Choice:
    """One environment at one step: the beliefs about its seeds and candidates, and the values of what can be done."""

    space: ActionSpace
    seen: Observation
    mask: ActionMask
    memory: Recollection
    coefficients: Coefficients
    settings: ForecasterSettings

    def action(self) -> Action:
        """Return the best action."""
        seeds = [(slot, seed) for slot in self.seen.signals.slots for seed in slot.seeds]
        acting = [pair for pair in seeds if pair[1].stage in BLENDED]
        actions = [self._decide(*pair, 1) for pair in acting if pair[1].stage is Stage.HOLDING]
        if not acting and self.seen.step % self.settings.every == 0:
            actions += [self._decide(*pair, self.settings.every) for pair in self._previewed(seeds)]
            actions.append(self._germinate())
        return next((action for action in actions if action is not None and self.mask.allows(action)), WAIT)

    def belief(self, slot: SlotSignals, seed: SeedSignals) -> Belief | None:
        """Return the belief of a seed's gain beyond its cost; None without a look at it."""
        looks = self.memory.gains.get(slot.name, {}).get(seed.blueprint)
        if not looks or seed.gain is None:
            return None
        place = self._places.get(slot.name)
        facts = situation(self.seen, self.memory.losses, seed.parameters, reach_of(place, seed.blueprint)[1])
        share = self.coefficients.tried.predict(evidence(facts, self.seen, seed, looks))
        return self._net(share, seed.parameters)

    def hope(self, slot: str, blueprint: str, delay: int) -> Belief:
        """Return how the net gain of a candidate will be believed after a preview, if it germinates in some steps."""
        if self._time_to_blend - delay < self.settings.preview:
            return NOTHING
        place = self._places.get(slot)
        parameters, reach = reach_of(place, blueprint)
        later = replace(self.seen, step=self.seen.step + delay)
        facts = situation(later, self.memory.losses, parameters or 0, reach)
        return self._net(self.coefficients.untried.predict(facts), parameters or 0).after_looking(
            self.coefficients.doubt
        )

    def candidates(self) -> Iterator[tuple[str, str]]:
        """Yield slot and blueprint of everything that was not tried with the slot's present number of fossils."""
        if self.seen.signals.fossils < self.settings.seeds:
            for slot in self.seen.signals.slots:
                possible = self.mask.blueprints.get(slot.name, ())
                for name in dict.fromkeys([*self.space.blueprints.get(slot.name, ()), *possible]):
                    if (slot.name, slot.fossils, name) not in self.memory.tried:
                        yield slot.name, name

    def values(self, belief: Belief, time: int, every: int) -> tuple[float, float, float]:
        """Return what it is worth to keep a seed, to look once more, and to drop it for the best candidate.

        After a look, the better of going on with the seed and of the best candidate is taken. A seed that is dropped
        makes room for another at the next decision.

        time: steps until the last decision on the seed. every: steps between decisions.
        """
        if time < every:
            return belief.mean, -math.inf, 0.0
        shrink = self.coefficients.shrink**every
        step, other = belief.after_looking(shrink), self._best_hope(2 * every)
        remaining = Belief(0.0, belief.deviation * shrink).after_looking(self.coefficients.shrink ** (time - every))
        means = ((step.mean + step.deviation * node, weight) for node, weight in NODES)
        look = sum(weight * max(replace(remaining, mean=mean).option, other) for mean, weight in means)
        return belief.mean, (1.0 - self.coefficients.hazard) ** every * look, self._best_hope(every)

    def _previewed(self, seeds: Sequence[tuple[SlotSignals, SeedSignals]]) -> Iterator[tuple[SlotSignals, SeedSignals]]:
        """Yield the incubating seeds after their preview; of the seeds that pay in a slot only the best."""
        beliefs = [self.belief(*pair) for pair in seeds]
        for (slot, seed), belief in zip(seeds, beliefs, strict=True):
            rivals = (
                other for pair, other in zip(seeds, beliefs, strict=True) if pair[0] is slot and other is not None
            )
            outdone = belief is not None and 0 < belief.mean < max(other.mean for other in rivals)
            if (seed.age or 0) >= self.settings.preview and not outdone:
                yield slot, seed

    def _decide(self, slot: SlotSignals, seed: SeedSignals, every: int) -> Action | None:
        """Return how to go on with a seed: keep it, that is first to blend it in, or drop it; None: look longer."""
        if (belief := self.belief(slot, seed)) is None:
            return None
        holding = seed.stage is Stage.HOLDING
        time = self.seen.steps - 2 - self.seen.step if holding else self._time_to_blend
        keep, look, drop = self.values(belief, time, every)
        if self.seen.signals.fossils + 1 < self.settings.seeds:
            keep += drop
        if look > max(keep, drop) + self.settings.effort:
            return None
        if keep > drop:
            return Action(Op.FOSSILISE, slot.name) if holding else Action(Op.ADVANCE, slot.name, seed.blueprint)
        return Action(Op.PRUNE, slot.name, seed.blueprint, speed=self.settings.speed)

    def _germinate(self) -> Action | None:
        """Return the germination with the greatest hope, if it is worth the effort."""
        hopes = [
            (self.hope(slot, name, 0).option, Action(Op.GERMINATE, slot, name, speed=self.settings.speed))
            for slot, name in self.candidates()
            if name in self.mask.blueprints.get(slot, ())
        ]
        hopes = [(hope, action) for hope, action in hopes if hope > self.settings.effort and self.mask.allows(action)]
        return max(hopes, key=lambda pair: pair[0], default=(0.0, None))[1]

    def _best_hope(self, delay: int) -> float:
        """Return the value of the best candidate, if it germinates in some steps; 0 if it is not worth the effort."""
        best = max((self.hope(slot, name, delay).option for slot, name in self.candidates()), default=0.0)
        return best if best > self.settings.effort else 0.0

    def _net(self, share: Belief, parameters: int) -> Belief:
        points = POINTS * error_of(self.seen)
        price = self.seen.price if self.settings.price is None else self.settings.price
        rent = parameters / max(1, self.seen.signals.host_parameters) + SHARE_FOR_SEED
        return Belief(points * share.mean, points * share.deviation).minus((price or 0.0) * rent)

    @property
    def _places(self) -> Mapping[str, SlotDescription]:
        return self.space.descriptions if self.seen.descriptions is None else self.seen.descriptions

    @property
    def _time_to_blend(self) -> int:
        """Steps until the last decision that can blend in a seed: after it, it is ramped up and kept."""
        last = min(self.seen.steps - 3 - self.settings.speed, int(self.settings.last * self.seen.steps))
        return last - self.seen.step


class Forecaster(RememberingPolicy[Recollection]):
    """Forecasts what a seed gains in the end, and keeps it, looks longer, tries another or stops by what each is worth.

    It needs a metric that is a share, such as accuracy, and works best with the reward ``team``, whose price it knows.
    It uses no random numbers, and blueprints and hosts that it was not fitted on are no different to it.

    >>> from esper_core.leyline import ActionMask, ActionSpace, Observation, Signals, SlotSignals, SlotState
    >>> policy = Forecaster(ActionSpace({"early": ("blueprints/conv_light",)}))
    >>> free = SlotSignals("early", SlotState.FREE, fossils=0)
    >>> seen = Observation(0, 40, Signals(0, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,)))
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/conv_light",)})
    >>> [action] = policy.act([seen], [mask])
    >>> str(action.op), action.slot, action.blueprint
    ('germinate', 'early', 'blueprints/conv_light')

    space: the run's slots and blueprints. settings: those of ``ForecasterSettings``.
    """

    memory = Recollection

    def __init__(self, space: ActionSpace, **settings: Any) -> None:
        super().__init__()
        self.space = space
        self.settings = ForecasterSettings.model_validate(settings)
        self.coefficients = load_coefficients(self.settings.coefficients)

    def choose(self, memory: Recollection, seen: Observation, mask: ActionMask) -> Action:
        """Return the best action."""
        memory.look(seen)
        return self.choice(memory, seen, mask).action()

    def choice(self, memory: Recollection, seen: Observation, mask: ActionMask) -> Choice:
        """Return the choice in an environment, from what is remembered of it."""
        return Choice(self.space, seen, mask, memory, self.coefficients, self.settings)

    def impossible(self, steps: int) -> tuple[str, ...]:
        """Return a notice if an episode of so many steps is too short for any seed to be kept."""
        life = f"a preview of {self.settings.preview} and a ramp of {self.settings.speed}"
        needed = self.settings.preview + self.settings.speed + 3
        return too_few_steps(steps, lambda n: n >= needed, life)
