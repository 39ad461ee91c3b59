"""The policy that tries what can grow, keeps what pays, and stops when nothing does.

``Forecast`` predicts a seed's gain from its preview and subtracts its cost, all in nats; ``Memory`` records what was
tried in an episode; ``RULES`` are the decisions, in order of precedence; ``Heuristic`` applies the first that fits.

The gain of a young seed still rises: on a branch, that of ``conv_light`` after three steps is between a third and a
half of its final gain, and after ten steps nearly all of it. The forecast is ``gain · (1 + rise / age)``, with an
interval around it; age is counted in steps of 32 batches, however long a step is. A preview goes on while the interval
contains the cost, for ``preview + patience`` steps at most. The forecast only selects which seeds are worth a trial; a
seed is kept for its measured gain.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, TypeAdapter

from esper_core.leyline import WAIT, Action, Op, SettingError, Stage, State
from esper_core.leyline.constants import EPISODE_BATCHES, FIRST_LOOK, NATS_PER_PARAMETER
from esper_core.leyline.lifecycle import BLENDED, INCUBATING
from esper_policies.settings import FEE, LONGEST, MOST_NATS, HeuristicSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation, SeedSignals, SlotSignals


@dataclass(frozen=True, slots=True)
class Scene:
    """One environment at one step, with the memory of its episode."""

    observation: Observation
    mask: ActionMask
    memory: Memory
    forecast: Forecast
    settings: HeuristicSettings

    @property
    def slots(self) -> tuple[SlotSignals, ...]:
        """Every slot."""
        return self.observation.signals.slots

    @property
    def acting(self) -> list[tuple[SlotSignals, SeedSignals]]:
        """The seeds that were blended in and are neither kept nor gone, with their slots."""
        return [(slot, seed) for slot in self.slots for seed in slot.seeds if seed.stage in BLENDED]

    @property
    def left(self) -> int:
        """Decisions still to come in this episode."""
        return self.observation.steps - 1 - self.observation.step

    def life(self, slot: SlotSignals, seed: SeedSignals) -> Life:
        """Return the record of a seed."""
        return self.memory.life(slot.name, seed)

    def pays(self, slot: SlotSignals, seed: SeedSignals) -> float:
        """Return the lower bound of a seed's gain beyond its cost: as measured, else as forecast, else −∞."""
        measured = self.forecast.net(seed)
        margin = self.life(slot, seed).promise if measured is None else measured
        return -math.inf if margin is None else margin

    def may_pay(self, slot: SlotSignals, seed: SeedSignals) -> float:
        """Return the upper bound of a seed's gain beyond its cost: the best of its latest looks, of three at least.

        Gains fluctuate from step to step by more than their standard errors. Unknown: infinite.
        """
        hopes = self.life(slot, seed).hopes
        return (
            math.inf
            if len(hopes) < self.forecast.looks and seed.stage not in INCUBATING
            else max(hopes, default=math.inf)
        )


def fossilise(scene: Scene) -> Action | None:
    """Fossilise the holding seed that pays best, if one pays."""
    paying = [
        (scene.pays(slot, seed), Action(Op.FOSSILISE, slot.name))
        for slot, seed in scene.acting
        if seed.stage is Stage.HOLDING and scene.pays(slot, seed) > 0
    ]
    return _best((gain, action) for gain, action in paying if scene.mask.allows(action))


def prune(scene: Scene) -> Action | None:
    """Prune the worst of the holding seeds that surely do not pay, or were not fossilised within ``patience`` steps.

    It does so earlier if the remaining steps are only enough to ramp the seed out. It waits while another seed drains,
    because gains are clearer after that.
    """
    if any(seed.stage is Stage.DRAINING for _, seed in scene.acting):
        return None
    hurry = scene.left <= scene.settings.speed
    late = [
        (-scene.pays(slot, seed), Action(Op.PRUNE, slot.name, seed.blueprint, speed=scene.settings.speed))
        for slot, seed in scene.acting
        if seed.stage is Stage.HOLDING
        and (hurry or _held(scene, slot, seed) >= scene.settings.patience or scene.may_pay(slot, seed) <= 0)
    ]
    return _best((loss, action) for loss, action in late if scene.mask.allows(action))


def advance_or_prune(scene: Scene) -> Action | None:
    """Blend in the best of the seeds that were previewed, if it surely pays; drop those that surely do not.

    Those of one slot are judged together once the youngest has had its preview. The others, and the best one as long as
    its gate refuses it or another may turn out better, are looked at for ``patience`` steps more.
    """
    nurseries = [slot for slot in scene.slots if slot.seeds and all(seed.stage in INCUBATING for seed in slot.seeds)]
    if not scene.acting:
        ready = (judged for slot in nurseries for judged in _ready(scene, slot))
        if (best := _best(ready)) is not None:
            return best
    prunes = (
        Action(Op.PRUNE, slot.name, seed.blueprint)
        for slot in nurseries
        for seed in slot.seeds
        if _is_hopeless(scene, slot, seed)
    )
    return next(filter(scene.mask.allows, prunes), None)


def germinate(scene: Scene) -> Action | None:
    """Germinate the first blueprint, in the order of the file, that was not tried yet in a slot that has room."""
    if not can_germinate_at(scene.observation.step, scene.observation.steps, scene.settings):
        return None
    wishes = (
        Action(Op.GERMINATE, slot.name, blueprint, speed=scene.settings.speed)
        for slot in scene.slots
        if _age(slot, max) < scene.settings.preview
        for blueprint in scene.mask.blueprints.get(slot.name, ())
        if scene.memory.may_try(slot, blueprint)
    )
    return next(filter(scene.mask.allows, wishes), None)


RULES: Final[tuple[Callable[[Scene], Action | None], ...]] = (fossilise, prune, advance_or_prune, germinate)
"""Rules in order of precedence."""


def can_germinate_at(step: int, steps: int, settings: HeuristicSettings) -> bool:
    """Return whether ``step`` is neither too early nor too late to germinate a seed.

    There has to be time for the preview, to blend in, and to take out again.
    """
    life = settings.preview + 2 * settings.speed
    return settings.first * steps <= step <= settings.last * steps and step + life < steps


def _ready(scene: Scene, slot: SlotSignals) -> Iterator[tuple[float, Action]]:
    """Yield the seeds of a slot that can be blended in now, pay and are not outdone, each with its gain."""
    if _age(slot, min) < scene.settings.preview or not _time_to_blend(scene):
        return
    late = _is_late(scene, slot) or scene.left <= 2 * scene.settings.speed
    for seed in slot.seeds:
        action, gain = Action(Op.ADVANCE, slot.name, seed.blueprint), scene.pays(slot, seed)
        rivals = (scene.may_pay(slot, other) for other in slot.seeds if other is not seed)
        if gain > 0 and scene.mask.allows(action) and (late or gain >= max(rivals, default=0.0)):
            yield gain, action


def _is_hopeless(scene: Scene, slot: SlotSignals, seed: SeedSignals) -> bool:
    """Return whether a seed will not be blended in: it surely does not pay, or time is up."""
    if not _time_to_blend(scene):
        return True
    previewed = _age(slot, min) >= scene.settings.preview
    return previewed and (scene.may_pay(slot, seed) <= 0 or _is_late(scene, slot))


def _is_late(scene: Scene, slot: SlotSignals) -> bool:
    """Return whether the preview of a slot's seeds has lasted as long as it may."""
    return _age(slot, min) >= scene.settings.preview + scene.settings.patience


def _time_to_blend(scene: Scene) -> bool:
    """Return whether a seed could still be blended in and, if it does not pay, taken out again."""
    return scene.left >= 2 * scene.settings.speed


def _held(scene: Scene, slot: SlotSignals, seed: SeedSignals) -> int:
    """Return for how many steps a seed has been holding."""
    return scene.observation.step - scene.life(slot, seed).since


def _age(slot: SlotSignals, extreme: Callable[..., float]) -> float:
    """Return the age of a slot's oldest (``max``) or youngest (``min``) seed; unknown: infinite; no seed: 0."""
    return extreme((math.inf if seed.age is None else seed.age for seed in slot.seeds), default=0)


def _best(judged: Iterator[tuple[float, Action]]) -> Action | None:
    """Return the action with the largest number, the first of several."""
    return max(judged, key=lambda pair: pair[0], default=(0.0, None))[1]


LOOKS: Final = 3
"""Consecutive looks that must all show that a seed does not pay before it is pruned, for steps of 32 batches."""

STEPS_AFTER_RAMP: Final = FIRST_LOOK
"""Steps that a short loop reserves for a seed that is blended in, at whose first gains no gate looks."""

SHARE_FOR_SEED: Final = 0.10
"""Cost of a kept seed in addition to its parameters, as a share of the reward's price."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecasts the gain of a seed beyond its cost, in nats of validation loss per example. Above 0 it pays.

    >>> from esper_core.leyline import Gain, SeedSignals, Stage
    >>> gain = Gain(n=800, mean=0.12, deviation=0.4, skewness=0.0, worst=-2.0, best=2.0)
    >>> seed = SeedSignals("blueprints/conv_light", Stage.TRAINING, 0.0, parameters=656, age=5, gain=gain)
    >>> round(Forecast().net(seed), 3), round(Forecast().hope(seed), 3)
    (0.062, 0.164)

    settings: those of the policy; rise, caution, price, fee, points and average are read. pace: batches of a decision
    step, divided by 32: seeds learn by batches, and short steps show little.
    """

    settings: HeuristicSettings = field(default_factory=HeuristicSettings)
    pace: float = 1.0

    @property
    def window(self) -> int:
        """How many gains of a seed are averaged."""
        return max(1, math.ceil(self.settings.average / self.pace))

    @property
    def looks(self) -> int:
        """How many looks decide that a seed does not pay: as many as ``LOOKS`` usual steps have, ``LOOKS`` at least."""
        return max(LOOKS, math.ceil(LOOKS / self.pace))

    def at(self, observation: Observation) -> Forecast:
        """Return the forecast for steps of this length, with the price of the run's reward if it has one.

        The price is converted to nats by ``points``. As in the reward ``team``, the price is for as many parameters as
        the host has, and a tenth of it for each seed.
        """
        timed = replace(self, pace=(observation.batches or EPISODE_BATCHES) / EPISODE_BATCHES)
        if self.settings.points is None or observation.price is None:
            return timed
        nats = observation.price / self.settings.points
        costs = {"price": nats / max(1, observation.signals.host_parameters), "fee": nats * SHARE_FOR_SEED}
        return replace(timed, settings=self.settings.model_copy(update=costs))

    def net(self, seed: SeedSignals) -> float | None:
        """Return a lower bound of the seed's gain beyond its cost: forecast while it incubates, measured later.

        It is None if the gain is unknown, and -inf if a loss was not finite, or there was one example only.
        """
        return self._beyond_cost(seed, -self.settings.caution)

    def hope(self, seed: SeedSignals) -> float | None:
        """Return the upper bound, like ``net``."""
        return self._beyond_cost(seed, self.settings.caution)

    def _beyond_cost(self, seed: SeedSignals, errors: float) -> float | None:
        if seed.gain is None:
            return None
        gain = seed.gain.mean + errors * seed.gain.standard_error
        if not math.isfinite(gain):
            return -math.inf
        rises = seed.stage in INCUBATING and gain > 0
        age = max(1.0, self.pace * (seed.age or 1))
        return (gain * (1 + self.settings.rise / age) if rises else gain) - self.cost(seed)

    def cost(self, seed: SeedSignals) -> float:
        """Return the cost of keeping the seed, in nats."""
        gate_price = None if seed.opinion is None else seed.opinion.price
        price, fee = self.settings.price, self.settings.fee
        if price is None and gate_price is not None:
            return gate_price + fee
        return seed.parameters * (NATS_PER_PARAMETER if price is None else price) + fee


@dataclass(slots=True)
class Life:
    """The record of a seed: its stage, the step since which it has it, and its forecasts while it incubated.

    promise: the last lower bound in nats beyond its cost; None if nothing has been measured so far. hopes: the latest
    upper bounds. gains: the latest gains that are averaged, each with its standard error.
    """

    stage: Stage
    since: int
    promise: float | None = None
    hopes: list[float] = field(default_factory=list)
    gains: list[tuple[float, float]] = field(default_factory=list)

    def averaged(self, seed: SeedSignals, window: int) -> SeedSignals:
        """Return the seed with the average of its latest gains.

        They are measured on the same examples, so that averaging reduces only the part of the error by which they
        differ from step to step.
        """
        if seed.gain is None or window == 1 or not math.isfinite(seed.gain.mean):
            return seed
        self.gains = [*self.gains, (seed.gain.mean, seed.gain.standard_error)][-window:]
        means, errors = zip(*self.gains, strict=True)
        between = variance(means) / len(means) if len(means) > 1 else 0.0
        error = math.sqrt(fmean(error * error for error in errors) + between)
        return replace(seed, gain=replace(seed.gain, mean=fmean(means), deviation=error * math.sqrt(seed.gain.n)))


@dataclass(slots=True)
class Memory:
    """One environment's episode so far.

    lives: the living seeds, by slot and blueprint. heights: the number of fossils by slot. refused: slot, fossils of
    the whole network and blueprint of each failed trial, which is not repeated until the network has grown.
    """

    lives: dict[str, dict[str, Life]] = field(default_factory=dict)
    heights: dict[str, int] = field(default_factory=dict)
    # A list, not a set: sets of text have another order in each process, and equal runs write equal checkpoints.
    refused: list[tuple[str, int, str]] = field(default_factory=list)

    def germinated(self, slot: str, blueprint: str, step: int) -> None:
        """Record a germination. If the seed is missing at the next look, it could not be built."""
        self.lives.setdefault(slot, {})[blueprint] = Life(Stage.GERMINATED, step)

    def look(self, slots: Sequence[SlotSignals], step: int, forecast: Forecast) -> tuple[SlotSignals, ...]:
        """Update the memory with the observation after ``step``, and return the slots with averaged gains."""
        looked = []
        for slot in slots:
            self._forget_gone(slot)
            self.heights[slot.name] = slot.fossils
            seeds = tuple(self._follow(slot.name, seed, step, forecast) for seed in slot.seeds)
            looked.append(replace(slot, seeds=seeds))
        return tuple(looked)

    def life(self, slot: str, seed: SeedSignals) -> Life:
        """Return the life of a seed that was there at the last look."""
        return self.lives[slot][seed.blueprint]

    def may_try(self, slot: SlotSignals, blueprint: str) -> bool:
        """Return whether the blueprint has not failed yet in this slot of the network as it is now."""
        return (slot.name, self._fossils, blueprint) not in self.refused

    @property
    def _fossils(self) -> int:
        return sum(self.heights.values())

    def _follow(self, slot: str, seed: SeedSignals, step: int, forecast: Forecast) -> SeedSignals:
        life = self.lives.setdefault(slot, {}).setdefault(seed.blueprint, Life(seed.stage, step))
        if life.stage is not seed.stage:
            life.stage, life.since, life.hopes, life.gains = seed.stage, step, [], []
        seed = life.averaged(seed, forecast.window)
        if (hope := forecast.hope(seed)) is not None:
            life.hopes = [*life.hopes, hope][-forecast.looks :]
        if seed.stage in INCUBATING and (promise := forecast.net(seed)) is not None:
            life.promise = promise
        return seed

    def _forget_gone(self, slot: SlotSignals) -> None:
        """Forget seeds that are gone: fossilised, dropped for a better one, or failed.

        One that was dropped although it promised to pay may be tried again if the better one fails.
        """
        living = {seed.blueprint for seed in slot.seeds}
        lives = self.lives.get(slot.name, {})
        kept = slot.fossils > self.heights.get(slot.name, slot.fossils)
        outdone = any(seed.stage in BLENDED for seed in slot.seeds)
        for blueprint in [name for name in lives if name not in living]:
            life = lives.pop(blueprint)
            hopeful = life.promise is None or life.promise > 0
            if not (kept or (outdone and hopeful)):
                self.refused.append((slot.name, self._fossils, blueprint))


# JSON has no infinite numbers, and states hold none: they become text.
_MEMORIES: Final = TypeAdapter(list[Memory], config=ConfigDict(ser_json_inf_nan="strings"))


class Heuristic:
    """Tries what could grow, keeps what pays, and stops when nothing does.

    In each slot it germinates blueprints that it has not tried there, as many at once as the nursery holds. After
    ``preview`` steps it drops the seeds that surely do not pay, and blends in the best one as soon as it surely does.
    It keeps that seed as soon as its measured gain pays, and prunes it if it does not within ``patience`` steps. The
    rules are ``RULES``, the forecast is ``Forecast``. Actions that gates refuse are not in the action mask. It uses no
    random numbers.

    >>> from esper_core.leyline import ActionMask, ActionSpace, Observation, Signals, SlotSignals, SlotState
    >>> policy = Heuristic(ActionSpace({"early": ("blueprints/conv_light",)}), first=0.0)
    >>> free = SlotSignals("early", SlotState.FREE, fossils=0)
    >>> seen = Observation(0, 40, Signals(0, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,)))
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/conv_light",)})
    >>> [action] = policy.act([seen], [mask])
    >>> str(action.op), action.slot, action.blueprint
    ('germinate', 'early', 'blueprints/conv_light')

    space: the run's slots and blueprints; the file's order is the order in which they are tried.
    settings: those of ``HeuristicSettings``.
    """

    def __init__(self, space: ActionSpace, **settings: Any) -> None:
        self.space = space
        self.settings = checked = HeuristicSettings.model_validate(settings)
        if checked.first > checked.last:
            at, message = "first", "first is later than last"
            hint = f"Seeds germinate between first and last. Received: {checked.first} and {checked.last}"
            raise SettingError(at, message, hint)
        self.forecast = Forecast(checked)
        self.memories: list[Memory] = []
        self._steps: list[int] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the action for each environment."""
        memories = [*self.memories, *(Memory() for _ in observations)]
        pairs = zip(observations, memories, strict=False)
        self.memories = [Memory() if seen.step == 0 else memory for seen, memory in pairs]
        self._steps = [seen.steps for seen in observations]
        return [self._choose(*scene) for scene in zip(self.memories, observations, masks, strict=True)]

    def _choose(self, memory: Memory, seen: Observation, mask: ActionMask) -> Action:
        """Return the action of the first rule that applies, else WAIT."""
        forecast = self.forecast.at(seen)
        slots = memory.look(seen.signals.slots, seen.step, forecast)
        seen = replace(seen, signals=replace(seen.signals, slots=slots))
        scene = Scene(seen, mask, memory, forecast, self.settings)
        action = next((action for rule in RULES if (action := rule(scene)) is not None), WAIT)
        if action.op is Op.GERMINATE:
            assert action.slot is not None
            assert action.blueprint is not None
            memory.germinated(action.slot, action.blueprint, seen.step)
        return action

    def unfinished(self) -> list[tuple[str, ...]]:
        """Return for each environment a notice if its episode is too short for any seed to be kept."""
        return [self.impossible(steps) for steps in self._steps]

    def for_loop(self, steps: int, price: float) -> Heuristic:
        """Return the policy for an own loop of so many steps, in which a parameter costs ``price`` nats.

        Where the steps are too few, the ramps become shorter, then the preview. The fee is in proportion to the price:
        one that stayed would decide alone where a user makes parameters cheap.
        """
        costs = {"price": price, "fee": min(price * (FEE / NATS_PER_PARAMETER), MOST_NATS)}
        settings = self.settings.model_copy(update=costs)
        if self.impossible(steps):
            room = steps - STEPS_AFTER_RAMP - settings.preview
            speed = max(1, min(settings.speed, room // 2))
            preview = max(1, min(settings.preview, steps - STEPS_AFTER_RAMP - 2 * speed))
            settings = settings.model_copy(update={"speed": speed, "preview": preview})
        return Heuristic(self.space, **settings.model_dump())

    def impossible(self, steps: int) -> tuple[str, ...]:
        """Return a notice if an episode of so many steps is too short for any seed to be kept."""
        settings = self.settings

        def fits(steps: int) -> bool:
            return can_germinate_at(math.ceil(settings.first * steps), steps, settings)

        if fits(steps):
            return ()
        needed = next((longer for longer in range(steps + 1, LONGEST + 1) if fits(longer)), None)
        if needed is None:
            return ("any blueprint: the settings first and last leave no step for a germination",)
        life = f"a preview of {settings.preview} and two ramps of {settings.speed}"
        return (f"any blueprint, which needs {needed} steps ({life})",)

    def state_dict(self) -> State:
        """Return the memory of each environment's episode."""
        return State({"memories": json.loads(_MEMORIES.dump_json(self.memories)), "steps": list(self._steps)})

    def load_state_dict(self, state: State) -> None:
        """Restore the memories."""
        self.memories = _MEMORIES.validate_python(state.plain["memories"])
        self._steps = list(state.plain["steps"])
