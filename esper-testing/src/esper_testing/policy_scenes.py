"""What could a policy be shown? Environments in any state, with the masks that the tables of the lifecycle allow."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline import ActionMask, ActionSpace, Metric, Observation, Op, SeedEvent, SlotState
from esper_core.leyline.lifecycle import INCUBATING, may
from esper_testing.reward_scripts import random_signals, random_slot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import SlotSignals

EVENTS: Final = {Op.ADVANCE: SeedEvent.ADVANCE, Op.PRUNE: SeedEvent.PRUNE, Op.FOSSILISE: SeedEvent.FOSSILISE}
STEPS: Final = 12
CROWDED: Final = 0.3
"""Share of the incubating seeds that have all other blueprints of their slot beside them."""

UNDONE: Final = 0.1
"""Share of the steps that the governor undid: then nothing is possible."""

METRIC: Final = Metric("accuracy")
STRANGER: Final = "elsewhere/never-seen"
"""A blueprint of no action space."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One environment at one step, as a policy is shown it."""

    observation: Observation
    mask: ActionMask


def space_of(slots: int, plugin: str = "tried") -> ActionSpace:
    """An action space with so many slots; each takes one to three blueprints."""
    names = [f"slot-{place}" for place in range(slots)]
    return ActionSpace(
        {
            name: tuple(f"{plugin}/blueprint-{number}" for number in range(1 + place % 3))
            for place, name in enumerate(names)
        }
    )


def episode(space: ActionSpace, seed: int, *, stranger: bool = False) -> list[Scene]:
    """One environment over an episode, in a new random state at each step.

    stranger: whether the seeds that live there are of a blueprint that is in no action space.
    """
    draw = random.Random(seed)
    return [_scene(space, draw, step, stranger) for step in range(STEPS)]


def side_by_side(episodes: Sequence[Sequence[Scene]]) -> list[tuple[list[Observation], list[ActionMask]]]:
    """For each step what a policy is shown of all environments together."""
    return [
        ([scene.observation for scene in step], [scene.mask for scene in step]) for step in zip(*episodes, strict=True)
    ]


def _scene(space: ActionSpace, draw: random.Random, step: int, stranger: bool) -> Scene:
    slots = tuple(_named(random_slot(draw, name), space, draw, stranger) for name in space.slots)
    signals = replace(random_signals(draw, METRIC, step), slots=slots)
    fitting = {slot.name: _fitting(slot, space, draw) for slot in slots}
    seeds = {slot.name: _possible(slot) for slot in slots if slot.seeds}
    ops = {slot.name: _ops(fitting[slot.name], seeds.get(slot.name, {})) for slot in slots}
    mask = ActionMask(ops, fitting, seeds)
    return Scene(Observation(step, STEPS, signals), mask.shut() if draw.random() < UNDONE else mask)


def _named(slot: SlotSignals, space: ActionSpace, draw: random.Random, stranger: bool) -> SlotSignals:
    """The slot with seeds of its own blueprints: one, or while they incubate sometimes several side by side."""
    if slot.living is None:
        return slot
    own = space.blueprints[slot.name]
    crowded = not stranger and slot.living.stage in INCUBATING and draw.random() < CROWDED
    names = [STRANGER] if stranger else draw.sample(own, len(own) if crowded else 1)
    return replace(slot, seeds=tuple(replace(slot.living, blueprint=name) for name in names))


def _fitting(slot: SlotSignals, space: ActionSpace, draw: random.Random) -> tuple[str, ...]:
    """A slot that is free takes some of its blueprints: others may have been withdrawn."""
    if slot.state is not SlotState.FREE:
        return ()
    return tuple(id_ for id_ in space.blueprints[slot.name] if draw.random() < 0.7)


def _possible(slot: SlotSignals) -> dict[str, frozenset[Op]]:
    return {
        seed.blueprint: frozenset(op for op, event in EVENTS.items() if may(seed.stage, event)) for seed in slot.seeds
    }


def _ops(fitting: tuple[str, ...], seeds: Mapping[str, frozenset[Op]]) -> frozenset[Op]:
    return frozenset({Op.GERMINATE} if fitting else ()).union(*seeds.values())
