"""The policy that tries what can grow, keeps what pays, and stops when nothing does.

``Forecast`` predicts a seed's gain from its preview and subtracts its price; ``Memory`` records what was tried in an
episode; ``RULES`` are the decisions, in order of precedence; ``Heuristic`` applies the first that fits.

Every slot gets a chance: one candidate of each slot germinates first, then the others, side by side on branches of one
host. The gain of a young seed still rises: on a branch, that of ``conv_light`` after three steps is between a third and
a half of its final gain, and after ten steps nearly all of it. The forecast is ``gain · (1 + rise / age)``, three times
the gain at most, with an interval around it; age is counted in steps of 32 batches, however long a step is. It is made
for the mean of the last third of a seed's looks. A preview goes on while the interval contains the price, up to twice
its length, and longer for seeds that seem to pay, by the lower bound. Once all previews of a network have cost their
share of its training, in operations, they end as soon as a gate could have decided, but for seeds that pay on average.
The forecast only selects which seeds are worth a trial; a seed is kept for its measured gain.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, TypeAdapter

from esper_core.leyline import WAIT, Action, Op, SettingError, Stage, State
from esper_core.leyline.constants import FIRST_LOOK, GATE_DECISIONS
from esper_core.leyline.errors import plural
from esper_core.leyline.lifecycle import BLENDED, INCUBATING
from esper_core.leyline.signals import Finding
from esper_policies.forecasts import Forecast
from esper_policies.memories import Life, Memory
from esper_policies.settings import LONGEST, HeuristicSettings

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
    space: ActionSpace
    branched: bool

    @property
    def slots(self) -> tuple[SlotSignals, ...]:
        """Every slot."""
        return self.observation.signals.slots

    @property
    def acting(self) -> list[tuple[SlotSignals, SeedSignals]]:
        """The seeds that were blended in and are neither kept nor gone, with their slots."""
        return [(slot, seed) for slot in self.slots for seed in slot.seeds if seed.stage in BLENDED]

    @property
    def previewed(self) -> list[tuple[SlotSignals, SeedSignals]]:
        """The seeds that incubate, with their slots."""
        return [(slot, seed) for slot in self.slots for seed in slot.seeds if seed.stage in INCUBATING]

    @property
    def left(self) -> int:
        """Decisions still to come in this episode."""
        return self.observation.steps - 1 - self.observation.step

    @property
    def ages(self) -> list[float]:
        """The ages of the seeds that incubate; unknown: infinite."""
        return [math.inf if seed.age is None else seed.age for _, seed in self.previewed]

    @property
    def is_spent(self) -> bool:
        """Whether previews have cost as much of the episode as they may."""
        return self.memory.has_spent(self.settings.share, self.observation.steps)

    @property
    def preview(self) -> int:
        """The age at which a seed is judged first; earlier if all is spent."""
        return min(self.settings.preview, LEAST) if self.is_spent else self.settings.preview

    def life(self, slot: SlotSignals, seed: SeedSignals) -> Life:
        """Return the record of a seed."""
        return self.memory.life(slot.name, seed)

    def pays(self, slot: SlotSignals, seed: SeedSignals) -> float:
        """Return the lower bound of a seed's gain beyond its price: as measured, else as forecast, else −∞."""
        return self.life(slot, seed).lower

    def may_pay(self, slot: SlotSignals, seed: SeedSignals) -> float:
        """Return the upper bound of a seed's gain beyond its price.

        For one that acts it is the best of its latest looks, and infinite for the first of them: it was shown to pay
        once, and the twin that it is compared with moves, too.
        """
        life = self.life(slot, seed)
        if seed.stage in INCUBATING:
            return life.upper
        return math.inf if len(life.hopes) < self.forecast.looks else max(life.hopes)

    def has_time(self, slot: SlotSignals, seed: SeedSignals) -> bool:
        """Return whether the steps left suffice to ramp a seed out and, while it incubates, to blend it in first.

        A branch needs no ramps: there one that pays incubates while it can be kept after a decision of its gate.
        """
        incubates, pays = seed.stage in INCUBATING, self.pays(slot, seed)
        if self.left >= (2 * self.settings.speed if incubates else self.settings.speed + 1):
            return True
        looks = self.observation.step - self.life(slot, seed).since + 1
        is_decided = not incubates or _is_shown(seed, pays)
        decision = looks if is_decided else next((look for look in GATE_DECISIONS if look > looks), math.inf)
        needed = decision - looks + (STEPS_AFTER_RAMP if incubates else 0)
        return self.branched and pays > 0 and self.left >= needed


def fossilise(scene: Scene) -> Action | None:
    """Fossilise the holding seed that pays best, if one is shown to pay, or pays by forecast where gates are off."""
    paying = [
        (gain, Action(Op.FOSSILISE, slot.name))
        for slot, seed in scene.acting
        if seed.stage is Stage.HOLDING and (gain := scene.forecast.net(seed)) is not None and _is_shown(seed, gain)
    ]
    return _best((gain, action) for gain, action in paying if scene.mask.allows(action))


def prune(scene: Scene) -> Action | None:
    """Prune the worst of the holding seeds that surely do not pay, or were not fossilised within ``patience`` steps.

    It does so earlier if the remaining steps are only enough to ramp the seed out. It waits while another seed drains,
    because gains are clearer after that.
    """
    if any(seed.stage is Stage.DRAINING for _, seed in scene.acting):
        return None
    late = [
        (-scene.pays(slot, seed), Action(Op.PRUNE, slot.name, seed.blueprint, speed=scene.settings.speed))
        for slot, seed in scene.acting
        if seed.stage is Stage.HOLDING and _is_hopeless(scene, slot, seed)
    ]
    return _best((loss, action) for loss, action in late if scene.mask.allows(action))


def advance_or_prune(scene: Scene) -> Action | None:
    """Blend in the best of the seeds that were previewed, if it is shown to pay; drop those that surely do not.

    All are judged together once the youngest has had its preview. The best one waits while another may turn out better,
    and no longer than ``preview`` steps more.
    """
    if scene.acting or min(scene.ages, default=0) < scene.preview:
        return None
    if (best := _advance(scene)) is not None:
        return best
    prunes = (
        Action(Op.PRUNE, slot.name, seed.blueprint) for slot, seed in scene.previewed if _is_hopeless(scene, slot, seed)
    )
    return next(filter(scene.mask.allows, prunes), None)


def germinate(scene: Scene) -> Action | None:
    """Germinate a blueprint that was not tried yet, where fewest were; of those of a slot the cheapest first."""
    if scene.acting or not can_germinate_at(scene.observation.step, scene.observation.steps, scene.settings):
        return None
    if scene.is_spent or max(scene.ages, default=0) >= scene.settings.preview:
        return None
    wishes = [
        (
            scene.memory.tries(slot),
            _parameters(scene.space, slot.name, blueprint),
            Action(Op.GERMINATE, slot.name, blueprint, speed=scene.settings.speed),
        )
        for slot in scene.slots
        for blueprint in scene.mask.blueprints.get(slot.name, ())
        if scene.memory.may_try(slot, blueprint)
    ]
    legal = [wish for wish in wishes if scene.mask.allows(wish[-1])]
    return min(legal, key=lambda wish: wish[:2])[-1] if legal else None


RULES: Final[tuple[Callable[[Scene], Action | None], ...]] = (fossilise, prune, advance_or_prune, germinate)
"""Rules in order of precedence."""


def can_germinate_at(step: int, steps: int, settings: HeuristicSettings) -> bool:
    """Return whether ``step`` is neither too early nor too late to germinate a seed.

    There has to be time for the preview, to blend in, and to take out again.
    """
    life = settings.preview + 2 * settings.speed
    return settings.first * steps <= step <= settings.last * steps and step + life < steps


def _parameters(space: ActionSpace, slot: str, blueprint: str) -> int:
    """Return how many parameters a blueprint would have in a slot; 0 if nothing describes it."""
    place = space.descriptions.get(slot)
    candidate = None if place is None else place.candidate(blueprint)
    return 0 if candidate is None else candidate.parameters


def _is_shown(seed: SeedSignals, pays: float) -> bool:
    """Return whether a seed's gate has found that it pays; without gates, whether it ``pays`` by itself."""
    finding = None if seed.opinion is None else seed.opinion.finding
    return finding is Finding.SHOWN or (finding in (None, Finding.OFF) and pays > 0)


def _advance(scene: Scene) -> Action | None:
    """Blend in the seed of the largest gain beyond its price, if it is shown to pay and surely the best."""
    judged = [
        (scene.forecast.surplus(seed), slot, seed, Action(Op.ADVANCE, slot.name, seed.blueprint))
        for slot, seed in scene.previewed
        if scene.has_time(slot, seed) and _is_shown(seed, scene.pays(slot, seed))
    ]
    able = [candidate for candidate in judged if candidate[0] > 0 and scene.mask.allows(candidate[-1])]
    if not able:
        return None
    _, slot, seed, action = max(able, key=lambda candidate: candidate[0])
    late = min(scene.ages) >= 2 * scene.settings.preview or scene.left <= 2 * scene.settings.speed
    return action if late or _outdoes_others(scene, slot, seed) else None


def _outdoes_others(scene: Scene, slot: SlotSignals, seed: SeedSignals) -> bool:
    """Return whether no other seed may become better: none may pay, or the best of them lies too far behind.

    They are compared by the difference on the same examples, which has less noise than two gains, and the other one may
    still rise as forecast, while this one stays where it is.
    """
    others = [(place, other) for place, other in scene.previewed if (place.name, other) != (slot.name, seed)]
    if all(scene.may_pay(place, other) <= 0 for place, other in others):
        return True
    if seed.margin is None or not seed.margin.finite:
        return False
    rival = max((other for _, other in others), key=scene.forecast.gain)
    lead = seed.margin.mean - scene.settings.caution * seed.margin.standard_error
    rises = (scene.forecast.growth(rival) - 1) * max(scene.forecast.gain(rival), 0.0)
    return lead > rises + (seed.price or 0.0) - (rival.price or 0.0)


def _is_hopeless(scene: Scene, slot: SlotSignals, seed: SeedSignals) -> bool:
    """Return whether a seed will not be blended in, or kept: it surely does not pay, or there is no more time for it.

    One that seems to pay, by the lower bound of its forecast, gets more time than one that only may. Once all is spent,
    one that does not pay on average gets none.
    """
    if not scene.has_time(slot, seed) or scene.may_pay(slot, seed) <= 0:
        return True
    if seed.stage is Stage.HOLDING:
        return scene.observation.step - scene.life(slot, seed).since >= scene.settings.patience
    seems_to_pay = scene.pays(slot, seed) > 0
    extended = 2 * scene.settings.preview if not seems_to_pay else scene.settings.preview + scene.settings.patience
    age = math.inf if seed.age is None else seed.age
    return age >= extended or (scene.is_spent and scene.life(slot, seed).mean <= 0)


def _best(judged: Iterator[tuple[float, Action]]) -> Action | None:
    """Return the action with the largest number, the first of several."""
    return max(judged, key=lambda pair: pair[0], default=(0.0, None))[1]


LEAST: Final = FIRST_LOOK + 1
"""Age of a seed before which it is not judged, whatever previews have cost: a gate has decided by then."""

STEPS_AFTER_RAMP: Final = FIRST_LOOK
"""Steps that a loop reserves for a seed that is blended in, before which no gate decides."""


# JSON has no infinite numbers, and states hold none: they become text.
_MEMORIES: Final = TypeAdapter(list[Memory], config=ConfigDict(ser_json_inf_nan="strings"))


class Heuristic:
    """Tries what could grow, keeps what pays, and stops when nothing does.

    One candidate of every slot germinates first, then the others, as many at once as nurseries hold. After ``preview``
    steps it drops the seeds that surely do not pay, and blends in the best one as soon as its gate is open. It keeps
    that seed as soon as its next gate is, and prunes it if it is not within ``patience`` steps. Once previews have
    cost their ``share`` of the episode, or all was tried, it tries nothing more until the network has grown, and
    concludes that nothing pays. The rules are ``RULES``, the forecast is ``Forecast``. Actions that gates refuse are
    not in the action mask. It uses no random numbers.

    >>> from esper_core.leyline import ActionMask, ActionSpace, Observation, Signals, SlotSignals, SlotState
    >>> policy = Heuristic(ActionSpace({"early": ("blueprints/conv_light",)}), first=0.0)
    >>> free = SlotSignals("early", SlotState.FREE, fossils=0)
    >>> seen = Observation(0, 40, Signals(0, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,)))
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/conv_light",)})
    >>> [action] = policy.act([seen], [mask])
    >>> str(action.op), action.slot, action.blueprint
    ('germinate', 'early', 'blueprints/conv_light')

    space: the run's slots and blueprints, with descriptions, by which the cheapest are tried first.
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
        self.branched = False
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
        memory.look(seen, forecast, self.space, branched=self.branched)
        scene = Scene(seen, mask, memory, forecast, self.settings, self.space, self.branched)
        action = next((action for rule in RULES if (action := rule(scene)) is not None), WAIT)
        slot, blueprint = action.slot or "", action.blueprint or ""
        if action.op is Op.GERMINATE:  # if the seed is missing at the next look, it could not be built
            memory.lives.setdefault(slot, {})[blueprint] = Life(Stage.GERMINATED, seen.step)
        elif action.op is Op.PRUNE:
            life = memory.lives[slot][blueprint]
            life.pruned, life.late = True, scene.left < 2 * self.settings.speed and life.upper > 0
        return action

    def unfinished(self) -> list[tuple[str, ...]]:
        """Return for each environment a notice if its episode is too short for any seed to be kept."""
        return [self.impossible(steps) for steps in self._steps]

    def conclusions(self) -> list[str]:
        """Return for each environment why nothing more is tried; empty while something is."""
        return [self._conclude(memory, steps) for memory, steps in zip(self.memories, self._steps, strict=False)]

    def _conclude(self, memory: Memory, steps: int) -> str:
        untried = memory.untried(self.space)
        if any(memory.lives.values()) or (untried and not memory.has_spent(self.settings.share, steps)):
            return ""
        more = " more" if any(memory.heights.values()) else ""
        unjudged, late = memory.count(memory.unjudged), memory.count(memory.late)
        pays = f"nothing{more} is shown to pay" if unjudged else f"nothing{more} pays"
        ran_out = f"{plural(late, 'candidate')} ran out of steps and may pay with more" if late else ""
        doubt = f", but {plural(unjudged, 'candidate')} failed or could not be judged" if unjudged else ""
        if not untried:
            return f"{ran_out or pays}: all candidates were tried{doubt}"
        so_far, left = ran_out or f"{pays} so far", plural(len(untried), "candidate")
        return f"{so_far}, and previews have cost their share of the training: {left} not tried{doubt}"

    def for_loop(self, steps: int) -> Heuristic:
        """Return the policy for an own loop of so many steps, whose seeds act on branches until they are kept.

        Where the steps are too few, the preview ends with an earlier decision of the gate, and ramps become shorter.
        """
        settings, room = self.settings, steps - STEPS_AFTER_RAMP
        decisions = [look for look in GATE_DECISIONS if look + 2 <= room] or [max(1, room - 2)]
        look = next((look for look in decisions if look >= settings.preview), decisions[-1])
        speed = max(1, min(settings.speed, (room - look) // 2))
        settings = settings.model_copy(update={"speed": speed, "preview": min(settings.preview, look)})
        policy = Heuristic(self.space, **settings.model_dump())
        policy.branched = True
        return policy

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
