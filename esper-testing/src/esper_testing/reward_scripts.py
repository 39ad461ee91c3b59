"""Scripted episodes with which rewards are checked for exploits: one sane course, and four that should not pay.

Each script says for every step what is in each slot, and by how much the metric is better than the twin's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from esper_core.leyline import Metric, Signals, Stage
from esper_testing.reward_episodes import HOST, SANE, SEED, Moment, moments, slot_in, without_seeds

STEPS: Final = 20
"""Steps of an episode."""

SLOTS: Final = 6
"""Slots of the scripted network."""

Slots = Mapping[int, tuple[int, Stage | None]]
"""For each slot the number of its fossils and the stage of its seed."""

Script = Callable[[int], tuple[Slots, float]]
"""Returns the slots and the gain in the metric at a step."""


def scripted_episode(metric: Metric, name: str) -> list[Moment]:
    """Return the calls that a run would make to a reward for the script of this name."""
    steps = [SCRIPTS[name](step) for step in range(STEPS)]
    own = [_signals(metric, step, slots, gain) for step, (slots, gain) in enumerate(steps)]
    twin = [_signals(metric, step, {}, 0.0) for step in range(STEPS)]
    return moments([*own, without_seeds(own[-1])], [*twin, twin[-1]])


def _sane(step: int) -> tuple[Slots, float]:
    return {0: _one_life(step)}, _gain(step)


def _churner(step: int) -> tuple[Slots, float]:
    cycle = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.DRAINING, None)
    return {slot: (0, cycle[(step + slot) % 5]) for slot in range(SLOTS)}, 0.0


def _hoarder(step: int) -> tuple[Slots, float]:
    return {slot: _one_life(step + 3) for slot in range(SLOTS)}, _gain(step)


def _last_moment(step: int) -> tuple[Slots, float]:
    return {0: _one_life(step - STEPS + 10)}, 0.0


SCRIPTS: Final[Mapping[str, Script]] = MappingProxyType(
    {
        SANE: _sane,  # one useful seed, fossilised at step 9, improves the metric by 0.25
        "churner": _churner,  # germinates and prunes again and again
        "hoarder": _hoarder,  # fossilises a seed in every slot; together they improve no more than one
        "never-act": lambda step: ({}, 0.0),
        "last-moment": _last_moment,  # fossilises a useless seed in the last step
    }
)


def _gain(step: int) -> float:
    return 0.25 * min(max(step - 4, 0) / 5, 1.0)


def _one_life(step: int) -> tuple[int, Stage | None]:
    """Return fossils and stage of a slot whose seed germinates at step 1 and is fossilised at step 9."""
    if step < 1:
        return 0, None
    if step >= 9:
        return 1, None
    if step == 1:
        return 0, Stage.GERMINATED
    return 0, Stage.TRAINING if step < 4 else Stage.BLENDING if step < 7 else Stage.HOLDING


def _signals(metric: Metric, step: int, slots: Slots, gain: float) -> Signals:
    usual = 0.4 + 0.01 * step if metric.direction == "up" else 0.6 - 0.01 * step
    value = usual + gain if metric.direction == "up" else usual - gain
    draw = random.Random(step)
    reported = tuple(
        slot_in(f"slot-{place}", stage, fossils=fossils, age=step, draw=draw)
        for place, (fossils, stage) in slots.items()
    )
    added = sum(fossils + (stage is not None) for fossils, stage in slots.values())
    loss = 2.0 - 0.05 * step - gain
    return Signals(step, loss, loss, value, HOST + SEED * added, HOST, reported)
