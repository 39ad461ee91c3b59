"""What would a careful gardener do now? One small rule for each thing that can be done; the first that speaks counts.

    keep      a seed that has shown in the host that it pays
    rid       of a seed in the host that has had its time and has not
    choose    among the seeds that were previewed: blend in the best that pays, drop what does not
    plant     where there is room, what was not tried there yet, as long as there is time for a life

One seed acts on the host at a time: of two nobody can tell whose the gain is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Action, Op, Stage
from esper_core.leyline.lifecycle import BLENDED, INCUBATING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_core.leyline import ActionMask, Observation, SeedSignals, SlotSignals
    from esper_policies.forecast import Forecast
    from esper_policies.remembering import Life, Memory
    from esper_policies.settings import HeuristicSettings


@dataclass(frozen=True, slots=True)
class Scene:
    """One environment at one step, with what is remembered of it."""

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
        """What is remembered of a seed."""
        return self.memory.life(slot.name, seed)

    def pays(self, slot: SlotSignals, seed: SeedSignals) -> float:
        """What a seed brings beyond its cost: what was measured last or, where nothing is, what it had promised.

        Where there was no promise either, nothing speaks for it.
        """
        measured = self.forecast.net(seed)
        known = self.life(slot, seed).promise if measured is None else measured
        return -math.inf if known is None else known


def keep(scene: Scene) -> Action | None:
    """Fossilise the seed that pays best, of those that hold."""
    paying = [
        (scene.pays(slot, seed), Action(Op.FOSSILISE, slot.name))
        for slot, seed in scene.acting
        if seed.stage is Stage.HOLDING and scene.pays(slot, seed) > 0
    ]
    return _best((gain, action) for gain, action in paying if scene.mask.allows(action))


def rid(scene: Scene) -> Action | None:
    """Prune the seed that brings least, of those that have held for long enough: one that does not pay, or may not.

    It waits no longer than there is time left to take the seed out as gently as it was put in, and it waits while
    another is on its way out: what is left is clearer then.
    """
    if any(seed.stage is Stage.DRAINING for _, seed in scene.acting):
        return None
    hurry = scene.left <= scene.settings.speed
    late = [
        (-scene.pays(slot, seed), Action(Op.PRUNE, slot.name, seed.blueprint, speed=scene.settings.speed))
        for slot, seed in scene.acting
        if seed.stage is Stage.HOLDING and (hurry or _held(scene, slot, seed) >= scene.settings.patience)
    ]
    return _best((loss, action) for loss, action in late if scene.mask.allows(action))


def choose(scene: Scene) -> Action | None:
    """Blend in the best of the seeds that were previewed, if it pays; else drop what does not, or may not.

    Those of one slot are judged together once the youngest has had its preview. One that would pay and is refused by
    its gate gets ``patience`` steps more, and so does one of which nothing is known.
    """
    nurseries = [slot for slot in scene.slots if slot.seeds and all(seed.stage in INCUBATING for seed in slot.seeds)]
    if not scene.acting:
        ready = (found for slot in nurseries for found in _ready(scene, slot))
        if (best := _best(ready)) is not None:
            return best
    hopeless = (Action(Op.PRUNE, slot.name) for slot in nurseries if _hopeless(scene, slot))
    return next(filter(scene.mask.allows, hopeless), None)


def plant(scene: Scene) -> Action | None:
    """Germinate the first blueprint, in the order of the file, that was not tried yet in a slot that has room."""
    if not in_season(scene.observation.step, scene.observation.steps, scene.settings):
        return None
    wishes = (
        Action(Op.GERMINATE, slot.name, blueprint, speed=scene.settings.speed)
        for slot in scene.slots
        if _age(slot, max) < scene.settings.preview
        for blueprint in scene.mask.blueprints.get(slot.name, ())
        if scene.memory.may_try(slot, blueprint)
    )
    return next(filter(scene.mask.allows, wishes), None)


RULES: Final[tuple[Callable[[Scene], Action | None], ...]] = (keep, rid, choose, plant)
"""In the order in which they are asked."""


def in_season(step: int, steps: int, settings: HeuristicSettings) -> bool:
    """Whether ``step`` is neither too early nor too late to plant.

    There has to be time for the preview, to blend in, and to take out again.
    """
    life = settings.preview + 2 * settings.speed
    return settings.first * steps <= step <= settings.last * steps and step + life < steps


def _ready(scene: Scene, slot: SlotSignals) -> Iterator[tuple[float, Action]]:
    """The seeds of a slot that could be blended in now and pay, with what they bring."""
    if _age(slot, min) < scene.settings.preview or not _time_to_blend(scene):
        return
    for seed in slot.seeds:
        action = Action(Op.ADVANCE, slot.name, seed.blueprint)
        if scene.pays(slot, seed) > 0 and scene.mask.allows(action):
            yield scene.pays(slot, seed), action


def _hopeless(scene: Scene, slot: SlotSignals) -> bool:
    """Whether no seed of the slot will be blended in: none pays, or the time of those that might is over."""
    if not _time_to_blend(scene):
        return True
    age = _age(slot, min)
    if age < scene.settings.preview or any(_ready(scene, slot)):
        return False
    hoped_for = any(_may_come(scene, slot, seed) for seed in slot.seeds)
    return not hoped_for or age >= scene.settings.preview + scene.settings.patience


def _may_come(scene: Scene, slot: SlotSignals, seed: SeedSignals) -> bool:
    """Whether a seed pays, or nothing is known of it yet."""
    return scene.pays(slot, seed) > 0 or scene.life(slot, seed).promise is None


def _time_to_blend(scene: Scene) -> bool:
    """Whether a seed could still be blended in and, should it not pay, taken out again."""
    return scene.left >= 2 * scene.settings.speed


def _held(scene: Scene, slot: SlotSignals, seed: SeedSignals) -> int:
    """Steps for which a seed has held."""
    return scene.observation.step - scene.life(slot, seed).since


def _age(slot: SlotSignals, which: Callable[..., float]) -> float:
    """The age of a slot's eldest (``max``) or youngest (``min``) seed; where it is unknown, old enough. 0: no seed."""
    return which((math.inf if seed.age is None else seed.age for seed in slot.seeds), default=0)


def _best(found: Iterator[tuple[float, Action]]) -> Action | None:
    """The action of the largest number, the first of several."""
    return max(found, key=lambda pair: pair[0], default=(0.0, None))[1]
