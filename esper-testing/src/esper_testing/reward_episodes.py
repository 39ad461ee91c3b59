"""Episodes that rewards are checked with: random, extreme and idle ones. Nothing is trained."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from esper_core.leyline import Gain, Metric, SeedSignals, Signals, SlotSignals, SlotState, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Reward


HOST: Final = 1000
"""Parameters of the host in every episode."""

SEED: Final = 120
"""Parameters that one seed adds."""

RANDOM_STEPS: Final = 20
"""Steps of a random episode."""

LIVING: Final = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING)


class Moment(NamedTuple):
    """The arguments of one call of a reward: a step and the one before, of an environment and of its twin."""

    now: Signals
    before: Signals | None
    twin: Signals
    twin_before: Signals | None


def random_episode(metric: Metric, seed: int) -> list[Moment]:
    """Return an episode of random signals that a run could report, its end included."""
    draw = random.Random(seed)
    network = [random_signals(draw, metric, step) for step in range(RANDOM_STEPS)]
    twin = [random_signals(draw, metric, step, grown=False) for step in range(RANDOM_STEPS)]
    return moments([*network, without_seeds(network[-1])], [*twin, twin[-1]])


def extreme_episode(metric: Metric, seed: int) -> list[Moment]:
    """Return an episode of extreme values: huge, tiny and missing ones."""
    draw = random.Random(seed)
    network = [_extreme(draw, metric, step) for step in range(RANDOM_STEPS)]
    twin = [replace(_extreme(draw, metric, step), slots=(), parameters=HOST) for step in range(RANDOM_STEPS)]
    return moments([*network, without_seeds(network[-1])], [*twin, twin[-1]])


def idle_episode(metric: Metric, seed: int) -> list[Moment]:
    """Return an episode in which nothing grows, so that network and twin are the same."""
    draw = random.Random(seed)
    slots = tuple(SlotSignals(f"slot-{place}", SlotState.FREE, fossils=0) for place in range(3))
    twin = [random_signals(draw, metric, step, grown=False) for step in range(RANDOM_STEPS)]
    network = [replace(signals, slots=slots) for signals in twin]
    return moments([*network, network[-1]], [*twin, twin[-1]])


def without_seeds(last: Signals) -> Signals:
    """Return the end of an episode: the last step without the seeds that were not fossilised."""
    parameters = last.parameters - sum(seed.parameters for seed in last.seeds)
    emptied = tuple(replace(slot, state=SlotState.EMBARGOED, seeds=()) if slot.seeds else slot for slot in last.slots)
    return replace(last, slots=emptied, parameters=parameters)


def random_signals(draw: random.Random, metric: Metric, step: int, *, grown: bool = True) -> Signals:
    """Return the signals of one step; those of a twin if not ``grown``."""
    slots = tuple(random_slot(draw, f"slot-{place}") for place in range(draw.randint(1, 3))) if grown else ()
    added = sum(SEED * (slot.fossils + len(slot.seeds)) for slot in slots)
    return Signals(
        step=step,
        train_loss=draw.choice([0.0, 1e-6, draw.uniform(0, 5), 1e4]),
        validation_loss=draw.choice([0.0, draw.uniform(0, 5), 1e4]),
        validation_metric=draw.choice([0.0, 1.0, draw.random()]),
        parameters=HOST + added,
        host_parameters=HOST,
        slots=slots,
    )


def random_slot(draw: random.Random, name: str) -> SlotSignals:
    """Return a slot in a random state, with a seed in a random stage if it is occupied."""
    return slot_in(name, draw.choice([None, *LIVING]), fossils=draw.randint(0, 3), age=draw.randint(0, 30), draw=draw)


def slot_in(name: str, stage: Stage | None, *, fossils: int = 0, age: int = 3, draw: random.Random) -> SlotSignals:
    """Return a slot whose seed is in this stage; without a seed it is free, embargoed or closed."""
    if stage is None:
        return SlotSignals(name, draw.choice([SlotState.FREE, SlotState.EMBARGOED, SlotState.CLOSED]), fossils)
    incubating = stage in (Stage.GERMINATED, Stage.TRAINING)
    alpha = 0.0 if incubating else 1.0 if stage is Stage.HOLDING else draw.random()
    loss = draw.choice([None, draw.uniform(0, 5)]) if incubating else None
    seed = SeedSignals("tried/blueprint", stage, alpha, SEED, age, loss)
    return SlotSignals(name, SlotState.OCCUPIED, fossils, (seed,))


def _extreme(draw: random.Random, metric: Metric, step: int) -> Signals:
    plain = random_signals(draw, metric, step)
    train_loss, validation_loss = (draw.choice([0.0, 5e-324, 1e30]) for _ in range(2))
    values = (0.0, 1.0, 5e-324) if metric.direction == "up" else (0.0, 5e-324, 1e6)
    slots = tuple(replace(slot, seeds=tuple(_extreme_seed(draw, seed) for seed in slot.seeds)) for slot in plain.slots)
    more = draw.choice([0, 10**12])
    return replace(
        plain,
        train_loss=train_loss,
        validation_loss=validation_loss,
        validation_metric=draw.choice(values),
        parameters=plain.parameters + more,
        slots=slots,
    )


def _extreme_seed(draw: random.Random, seed: SeedSignals) -> SeedSignals:
    """Return the seed without an age or just born, with a gain that is missing, not finite, or extreme."""
    age = draw.choice([None, 0])
    mean = draw.choice([None, math.nan, math.inf, -1e30, 0.0, 1e30])
    gain = None if mean is None else Gain(n=2, mean=mean, deviation=0.0, skewness=0.0, worst=mean, best=mean)
    return replace(seed, age=age, gain=gain)


def moments(network: Sequence[Signals], twin: Sequence[Signals]) -> list[Moment]:
    """Return the calls that a run makes for an episode."""
    return [
        Moment(now, network[step - 1] if step else None, twin[step], twin[step - 1] if step else None)
        for step, now in enumerate(network)
    ]


def earned(reward: Reward, course: Sequence[Moment]) -> float:
    """Return the sum of a reward over an episode."""
    return math.fsum(reward.score(*moment).total for moment in course)
