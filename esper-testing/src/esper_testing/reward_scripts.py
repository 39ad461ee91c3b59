"""What could an environment report? Random steps of every stage, and episodes after a script: sane, or cheating."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Gain, SeedSignals, Signals, SlotSignals, SlotState, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Metric

HOST: Final = 1000
"""Parameters of the host in every script."""

SEED: Final = 120
"""Parameters that one seed adds."""

STEPS: Final = 20
SLOTS: Final = 6
LIVING: Final = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING)


@dataclass(frozen=True, slots=True)
class Moment:
    """One call of a reward: a step and the one before, of an environment and of its twin."""

    now: Signals
    before: Signals | None
    twin: Signals
    twin_before: Signals | None


def random_episode(metric: Metric, seed: int, steps: int = STEPS) -> list[Moment]:
    """An episode in which anything may be reported that a run could report, its end included."""
    draw = random.Random(seed)
    own = [random_signals(draw, metric, step) for step in range(steps)]
    twin = [random_signals(draw, metric, step, grown=False) for step in range(steps)]
    return moments([*own, uprooted(own[-1])], [*twin, twin[-1]])


def extreme_episode(metric: Metric, seed: int, steps: int = STEPS) -> list[Moment]:
    """An episode whose numbers are as large, as small and as unknown as numbers can be that are numbers."""
    draw = random.Random(seed)
    own = [_extreme(draw, metric, step) for step in range(steps)]
    twin = [replace(_extreme(draw, metric, step), slots=(), parameters=HOST) for step in range(steps)]
    return moments([*own, uprooted(own[-1])], [*twin, twin[-1]])


def idle_episode(metric: Metric, seed: int, steps: int = STEPS) -> list[Moment]:
    """An episode in which nothing grows: network and twin are the same, whatever they learn."""
    draw = random.Random(seed)
    slots = tuple(SlotSignals(f"slot-{place}", SlotState.FREE, fossils=0) for place in range(3))
    twin = [random_signals(draw, metric, step, grown=False) for step in range(steps)]
    own = [replace(one, slots=slots) for one in twin]
    return moments([*own, own[-1]], [*twin, twin[-1]])


def uprooted(last: Signals) -> Signals:
    """The last moment of an episode: the last step once more, and what still grew was taken out."""
    parameters = last.parameters - sum(seed.parameters for seed in last.seeds)
    emptied = tuple(replace(slot, state=SlotState.EMBARGOED, seeds=()) if slot.seeds else slot for slot in last.slots)
    return replace(last, slots=emptied, parameters=parameters)


def random_signals(draw: random.Random, metric: Metric, step: int, *, grown: bool = True) -> Signals:
    """One step's signals; those of a twin where nothing has grown."""
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
    """A slot in any state, with a seed of any stage where it is occupied."""
    return slot_in(name, draw.choice([None, *LIVING]), fossils=draw.randint(0, 3), age=draw.randint(0, 30), draw=draw)


def slot_in(name: str, stage: Stage | None, *, fossils: int = 0, age: int = 3, draw: random.Random) -> SlotSignals:
    """A slot whose seed is in this stage; one without a seed may be free, embargoed or closed."""
    if stage is None:
        return SlotSignals(name, draw.choice([SlotState.FREE, SlotState.EMBARGOED, SlotState.CLOSED]), fossils)
    incubating = stage in (Stage.GERMINATED, Stage.TRAINING)
    alpha = 0.0 if incubating else 1.0 if stage is Stage.HOLDING else draw.random()
    loss = draw.choice([None, draw.uniform(0, 5)]) if incubating else None
    seed = SeedSignals("tried/blueprint", stage, alpha, SEED, age, loss)
    return SlotSignals(name, SlotState.OCCUPIED, fossils, (seed,))


def _extreme(draw: random.Random, metric: Metric, step: int) -> Signals:
    plain = random_signals(draw, metric, step)
    losses = [draw.choice([0.0, 5e-324, 1e30]) for _ in range(2)]
    values = (0.0, 1.0, 5e-324) if metric.direction == "up" else (0.0, 5e-324, 1e6)
    slots = tuple(
        replace(
            slot, seeds=tuple(replace(seed, age=draw.choice([None, 0]), gain=_odd_gain(draw)) for seed in slot.seeds)
        )
        for slot in plain.slots
    )
    more = draw.choice([0, 10**12])
    return replace(
        plain,
        train_loss=losses[0],
        validation_loss=losses[1],
        validation_metric=draw.choice(values),
        parameters=plain.parameters + more,
        slots=slots,
    )


def _odd_gain(draw: random.Random) -> Gain | None:
    """One that was not measured, came to no number, or is as large as it may be."""
    mean = draw.choice([None, float("nan"), float("inf"), -1e30, 0.0, 1e30])
    return None if mean is None else Gain(n=2, mean=mean, deviation=0.0, skewness=0.0, worst=mean, best=mean)


def moments(own: Sequence[Signals], twin: Sequence[Signals]) -> list[Moment]:
    """The calls that a run makes for an episode."""
    return [
        Moment(now, own[step - 1] if step else None, twin[step], twin[step - 1] if step else None)
        for step, now in enumerate(own)
    ]


# Scripted episodes. Each says at each step what stands in each slot, and by how much the metric is better.

_Slots = Mapping[int, tuple[int, Stage | None]]
_Script = Callable[[int], tuple[_Slots, float]]


def sane(metric: Metric) -> list[Moment]:
    """One seed, tried with care, kept at step 9, that makes the metric better by 0.25."""
    return _episode(metric, lambda step: ({0: _one_life(step)}, 0.25 * min(max(step - 4, 0) / 5, 1.0)))


def churner(metric: Metric) -> list[Moment]:
    """Germinates and prunes without end; the network never becomes better."""
    cycle = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.DRAINING, None)
    return _episode(metric, lambda step: ({slot: (0, cycle[(step + slot) % 5]) for slot in range(SLOTS)}, 0.0))


def hoarder(metric: Metric) -> list[Moment]:
    """Keeps a seed in every slot as soon as it can; together they do no more than one."""
    return _episode(
        metric,
        lambda step: ({slot: _one_life(step + 3) for slot in range(SLOTS)}, 0.25 * min(max(step - 4, 0) / 5, 1.0)),
    )


def never_acter(metric: Metric) -> list[Moment]:
    """Grows nothing: the twin once more."""
    return _episode(metric, lambda step: ({}, 0.0))


def last_moment_actor(metric: Metric) -> list[Moment]:
    """Does nothing of use, and at the last step keeps a seed that brought nothing."""
    return _episode(metric, lambda step: ({0: _one_life(step - STEPS + 10)}, 0.0))


def _one_life(step: int) -> tuple[int, Stage | None]:
    """Fossils and stage of a slot whose seed germinates at step 1 and is kept at step 9."""
    if step < 1:
        return 0, None
    if step >= 9:
        return 1, None
    return 0, Stage.GERMINATED if step == 1 else Stage.TRAINING if step < 4 else _later(step)


def _later(step: int) -> Stage:
    return Stage.BLENDING if step < 7 else Stage.HOLDING


def _episode(metric: Metric, script: _Script) -> list[Moment]:
    told = [script(step) for step in range(STEPS)]
    own = [_scripted(metric, step, slots, gain) for step, (slots, gain) in enumerate(told)]
    twin = [_scripted(metric, step, {}, 0.0) for step in range(STEPS)]
    return moments([*own, uprooted(own[-1])], [*twin, twin[-1]])


def _scripted(metric: Metric, step: int, slots: _Slots, gain: float) -> Signals:
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
