"""What could a policy be shown? Environments in any state, with the masks that the tables of the lifecycle allow."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline import ActionMask, ActionSpace, Metric, Observation, Op, SeedEvent, SlotState
from esper_core.leyline.lifecycle import may
from esper_testing.reward_scripts import random_signals, random_slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import SlotSignals

EVENTS: Final = {Op.ADVANCE: SeedEvent.ADVANCE, Op.PRUNE: SeedEvent.PRUNE, Op.FOSSILISE: SeedEvent.FOSSILISE}
STEPS: Final = 12
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
    ops = {slot.name: _ops(slot, fitting[slot.name]) for slot in slots}
    return Scene(Observation(step, STEPS, signals), ActionMask(ops, fitting))


def _named(slot: SlotSignals, space: ActionSpace, draw: random.Random, stranger: bool) -> SlotSignals:
    if slot.blueprint is None:
        return slot
    return replace(slot, blueprint=STRANGER if stranger else draw.choice(space.blueprints[slot.name]))


def _fitting(slot: SlotSignals, space: ActionSpace, draw: random.Random) -> tuple[str, ...]:
    """A slot that is free takes some of its blueprints: others may have been withdrawn."""
    if slot.state is not SlotState.FREE:
        return ()
    return tuple(id_ for id_ in space.blueprints[slot.name] if draw.random() < 0.7)


def _ops(slot: SlotSignals, fitting: tuple[str, ...]) -> frozenset[Op]:
    if slot.stage is None:
        return frozenset({Op.GERMINATE}) if fitting else frozenset()
    return frozenset(op for op, event in EVENTS.items() if may(slot.stage, event))
