"""What the policy ``heuristic`` remembers of an episode: what was tried, what became of it, and what that has cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import FIRST_LOOK
from esper_core.leyline.lifecycle import BLENDED, INCUBATING, Stage
from esper_core.leyline.signals import Finding

if TYPE_CHECKING:
    from esper_core.leyline import ActionSpace, Observation, SeedSignals, SlotSignals
    from esper_policies.forecasts import Forecast

LONG: Final = 40
"""Steps of an episode that count for what previews may cost: in a longer one they take no longer to show."""


@dataclass(slots=True)
class Life:
    """The record of a seed: its stage, the step since which it has it, and its mean gains since then.

    lower, mean, upper: the mean of the last third of these gains beyond its price, as forecast, with its bounds.
    hopes: the upper bounds of single looks, as many of the latest as decide on a seed that acts. judged: whether its
    gate, if it has one, has decided. pruned: whether the policy took it out. late: whether it did so for want of time.
    """

    stage: Stage
    since: int
    gains: list[float] = field(default_factory=list)
    lower: float = -math.inf
    mean: float = -math.inf
    upper: float = math.inf
    hopes: list[float] = field(default_factory=list)
    judged: bool = False
    pruned: bool = False
    late: bool = False


@dataclass(slots=True)
class Memory:
    """One environment's episode so far.

    lives: the living seeds, by slot and blueprint. heights: the number of fossils by slot. refused: slot, fossils of
    the whole network and blueprint of each failed trial, which is not repeated until the network has grown. unjudged:
    those of them in which the seed was lost, or no gate could decide. late: those for which no time was left. spent:
    what the steps cost in which seeds incubated that were not kept, as a multiple of a step of the host.
    """

    lives: dict[str, dict[str, Life]] = field(default_factory=dict)
    heights: dict[str, int] = field(default_factory=dict)
    # A list, not a set: sets of text have another order in each process, and equal runs write equal checkpoints.
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    unjudged: list[tuple[str, int, str]] = field(default_factory=list)
    late: list[tuple[str, int, str]] = field(default_factory=list)
    spent: float = 0.0

    def look(self, seen: Observation, forecast: Forecast, space: ActionSpace, *, branched: bool) -> None:
        """Update the memory with what was seen after a step; ``branched``: only seeds that are kept act on the host."""
        slots = seen.signals.slots
        previewed = [(slot.name, seed.blueprint) for slot in slots for seed in slot.seeds if seed.stage in INCUBATING]
        # Where nothing else counts operations, it would take a pass through the user's model to describe a candidate.
        counted = seen.signals.host_flops is not None
        self.spent += math.fsum(_cost(space, *place) if counted else 1.0 for place in previewed)
        if any(slot.fossils > self.heights.get(slot.name, slot.fossils) for slot in slots):
            self.spent = 0.0  # what was spent has brought something
        outdone = any(seed.stage in BLENDED for slot in slots for seed in slot.seeds)
        # A rollback is no fault of seeds that did not act on the host.
        harmless = (INCUBATING | BLENDED if branched else INCUBATING) if seen.rolled_back else frozenset()
        for slot in slots:
            self._forget_gone(slot, harmless, outdone=outdone)
            self.heights[slot.name] = slot.fossils
            for seed in slot.seeds:
                self._follow(slot.name, seed, seen.step, forecast)

    def has_spent(self, share: float, steps: int) -> bool:
        """Return whether previews have cost this share of an episode of so many steps."""
        return self.spent >= share * min(steps, LONG)

    def life(self, slot: str, seed: SeedSignals) -> Life:
        """Return the life of a seed that was there at the last look."""
        return self.lives[slot][seed.blueprint]

    def may_try(self, slot: SlotSignals, blueprint: str) -> bool:
        """Return whether the blueprint has not failed yet in this slot of the network as it is now."""
        return (slot.name, self._fossils, blueprint) not in self.refused

    def tries(self, slot: SlotSignals) -> int:
        """Return how many blueprints were tried, or are, in this slot of the network as it is now."""
        failed = sum(name == slot.name and fossils == self._fossils for name, fossils, _ in self.refused)
        return failed + len(self.lives.get(slot.name, {}))

    def untried(self, space: ActionSpace) -> list[tuple[str, str]]:
        """Return slot and blueprint of what has not failed yet in the network as it is now."""
        refused = {(slot, blueprint) for slot, fossils, blueprint in self.refused if fossils == self._fossils}
        places = [(slot, blueprint) for slot, names in space.blueprints.items() for blueprint in names]
        return [place for place in places if place not in refused]

    def count(self, trials: list[tuple[str, int, str]]) -> int:
        """Return how many of these trials were in the network as it is now."""
        return sum(fossils == self._fossils for _, fossils, _ in trials)

    @property
    def _fossils(self) -> int:
        return sum(self.heights.values())

    def _follow(self, slot: str, seed: SeedSignals, step: int, forecast: Forecast) -> None:
        life = self.lives.setdefault(slot, {}).setdefault(seed.blueprint, Life(seed.stage, step))
        if life.stage is not seed.stage:
            life.stage, life.since, life.gains, life.hopes = seed.stage, step, [], []
        if seed.gain is not None:
            life.gains.append(seed.gain.mean)
            life.judged = seed.opinion is None or seed.opinion.finding is not Finding.UNKNOWN
            # Of several looks: a single one moves by more than its error, and would drop a seed on one bad step. Of the
            # last ones: the first gains are neither full nor lasting.
            recent = life.gains[-max(FIRST_LOOK, math.ceil(len(life.gains) / 3)) :]
            lasting = replace(seed, gain=replace(seed.gain, mean=fmean(recent)))
            life.lower, life.mean, life.upper = forecast.interval(lasting)
            if seed.stage not in INCUBATING:
                life.hopes = [*life.hopes, forecast.interval(seed)[2]][-forecast.looks :]

    def _forget_gone(self, slot: SlotSignals, harmless: frozenset[Stage], *, outdone: bool) -> None:
        """Forget seeds that are gone: fossilised, dropped for a better one or by a rollback, or failed.

        One that was dropped although it promised to pay may be tried again if the better one fails, and one that was in
        a harmless stage after the rollback.
        """
        living = {seed.blueprint for seed in slot.seeds}
        lives = self.lives.get(slot.name, {})
        kept = slot.fossils > self.heights.get(slot.name, slot.fossils)
        for blueprint in [name for name in lives if name not in living]:
            life = lives.pop(blueprint)
            if undone := life.stage in harmless and not life.pruned:
                self.spent = 0.0  # what was spent has shown nothing yet
            if not (kept or undone or (outdone and (life.lower > 0 or not life.gains))):
                self.refused.append((slot.name, self._fossils, blueprint))
                if life.late:
                    self.late.append(self.refused[-1])
                elif not (outdone or (life.pruned and life.judged)):
                    self.unjudged.append(self.refused[-1])


def _cost(space: ActionSpace, slot: str, blueprint: str) -> float:
    """Return what a step of a preview costs as a multiple of one of the host, at most; 1 if operations are unknown."""
    place = space.descriptions.get(slot)
    candidate = None if place is None else place.candidate(blueprint)
    if place is None or candidate is None or candidate.flops is None or not place.host_flops:
        return 1.0
    return 1 + candidate.flops / place.host_flops
