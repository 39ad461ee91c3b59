"""Play episodes on curves: the observations, masks and rewards of the engine, with nothing trained twice.

A network keeps one seed at most and grows on one branch at a time, so an episode is over once a seed is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.forecaster.problems import PRICE
from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    Finding,
    Gain,
    Observation,
    Op,
    Opinion,
    SeedSignals,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
)
from esper_study.growbench.puzzles import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.science.forecaster.curves import Curves
    from esper_core.leyline import Policy

POINTS: Final = 100.0
FEE: Final = 0.10
_OFF: Final = Opinion(Finding.OFF, "gates are off")

Seed = tuple[str, str, int]
"""A seed in training: its slot, its blueprint, and the step after which it germinated."""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode: the kept seed, if any, and the reward."""

    kept: Seed | None
    reward: float


def space_of(curves: Curves) -> ActionSpace:
    """Return the slots and blueprints of a problem, with their descriptions."""
    slots: dict[str, tuple[str, ...]] = {}
    for slot, name in curves.problem.candidates:
        slots[slot] = (*slots.get(slot, ()), name)
    return ActionSpace(slots, descriptions=curves.places)


def observe(curves: Curves, step: int, seed: Seed | None, *, holding: bool = False) -> tuple[Observation, ActionMask]:
    """Return what a policy sees after a step, and what it may do."""
    space, living, ops = space_of(curves), None, frozenset[Op]()
    if seed is not None:
        slot, name, planted = seed
        curve = curves.curve(slot, name, planted)
        n, mean, deviation, loss, keepable = curve.looks[step - planted - 1]
        gain = None if n is None else Gain(int(n), _number(mean), _number(deviation), 0.0, 0.0, 0.0)
        stage = Stage.HOLDING if holding else Stage.TRAINING
        living = SeedSignals(
            name, stage, float(holding), curve.parameters, step - planted, loss, gain=gain, opinion=_OFF
        )
        ops = frozenset(
            {Op.PRUNE, Op.FOSSILISE} if holding and keepable else {Op.PRUNE} if holding else {Op.PRUNE, Op.ADVANCE}
        )
    slots, possible, blueprints, seeds = [], {}, {}, {}
    for slot, names in space.blueprints.items():
        if seed is None:
            possible[slot], blueprints[slot] = frozenset({Op.GERMINATE}), names
        elif slot == seed[0]:
            possible[slot], seeds[slot] = ops, {seed[1]: ops}
        else:
            possible[slot] = frozenset()
        occupant = living if seed is not None and slot == seed[0] else None
        state = SlotState.FREE if occupant is None else SlotState.OCCUPIED
        slots.append(SlotSignals(slot, state, 0, () if occupant is None else (occupant,)))
    signals = _signals(curves, step, tuple(slots), 0 if living is None else living.parameters)
    twin = _signals(curves, step, (), 0)
    return Observation(step, STEPS, signals, twin, PRICE), ActionMask(possible, blueprints, seeds)


def play(make: Callable[[ActionSpace], Policy], curves: Curves) -> Played:
    """Play one episode of a problem. Actions that the mask does not allow count as waiting."""
    policy, holding = make(space_of(curves)), False
    seed: Seed | None = None
    for step in range(STEPS - 1):
        seen, mask = observe(curves, step, seed, holding=holding)
        (action,) = policy.act([seen], [mask])
        action = action if mask.allows(action) else WAIT
        if action.op is Op.GERMINATE and step < STEPS - 2:
            seed, holding = _planted(action, step), False
        elif action.op is Op.ADVANCE:
            holding = True
        elif action.op is Op.PRUNE:
            seed, holding = None, False
        elif action.op is Op.FOSSILISE:
            return result(curves, seed)
    return result(curves, None)


def result(curves: Curves, kept: Seed | None) -> Played:
    """Return the episode in which this seed is kept."""
    if kept is None:
        return Played(None, 0.0)
    curve, host = curves.curve(*kept), curves.host
    cost = PRICE * (curve.parameters / host["parameters"][0] + FEE)
    return Played(kept, POINTS * (curve.metric - host["validation_metric"][-1]) - cost)


def best_known(curves: Curves) -> Played:
    """Return the best episode among never growing and all curves of a problem that were trained."""
    ways = [result(curves, None), *(result(curves, seed) for seed in curves.seeds())]
    return max(ways, key=lambda way: way.reward)


def looks_at(curves: Curves, seed: Seed) -> Iterator[tuple[Observation, SlotSignals | None, SeedSignals | None]]:
    """Yield the observations of an episode that grows a seed and never decides on it, with slot and seed once alive."""
    for step in range(STEPS - 1):
        seen, _ = observe(curves, step, seed if step > seed[2] else None)
        slot_and_seed: Any = next(
            ((slot, living) for slot in seen.signals.slots for living in slot.seeds), (None, None)
        )
        yield seen, *slot_and_seed


def _planted(action: Action, step: int) -> Seed:
    assert action.slot is not None
    assert action.blueprint is not None
    return action.slot, action.blueprint, step


def _signals(curves: Curves, step: int, slots: tuple[SlotSignals, ...], added: int) -> Signals:
    host = curves.host
    parameters = int(host["parameters"][0])
    return Signals(
        step,
        host["train_loss"][step],
        host["validation_loss"][step],
        host["validation_metric"][step],
        parameters=parameters + added,
        host_parameters=parameters,
        slots=slots,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
