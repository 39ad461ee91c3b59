"""What is a blueprint worth in a slot, as far as episodes told? Records of them, what to believe, and how to guess.

The worth of an arm is the sum of an episode's rewards in which it was planted: unknown, and hidden in noise of unknown
strength. What is believed of it is the usual pair for that, normal and inverse-gamma: the mean is then distributed as
Student's t. Nothing is known of a reward's unit beforehand, so the prior is told in sizes: one is the root of the mean
square of all that was ever measured, of whatever arm, or 1 as long as that is nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Op

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from esper_core.leyline import Played

Arm = tuple[str, str]
"""A slot, and what is planted there."""

WIDTH: Final = 2.0
"""Sizes by which the worth of an arm that was never tried may be off 0: next to anything may be true."""

NOISE: Final = 0.5
"""Sizes by which an arm's episodes are taken to differ; it weighs as much as two of them."""

LARGEST: Final = 1e100
"""Beyond it nothing can be learnt from a reward: its square is no number."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What an arm is taken to be worth: Student's t around ``mean``, as wide as ``deviation``."""

    mean: float
    deviation: float
    freedom: float

    def guess(self, draw: random.Random) -> float:
        """One worth that it might have, each as often as it is likely."""
        strength = draw.gammavariate(self.freedom / 2, 2 / self.freedom)
        return self.mean + self.deviation * draw.gauss(0.0, 1.0) / math.sqrt(strength)


@dataclass(frozen=True, slots=True)
class Record:
    """What an arm brought: in how many episodes, how much on average, and the sum of squares around that."""

    pulls: int = 0
    mean: float = 0.0
    spread: float = 0.0

    def and_then(self, brought: float) -> Record:
        """The record with one episode more.

        >>> Record().and_then(2.0).and_then(4.0)
        Record(pulls=2, mean=3.0, spread=2.0)
        """
        pulls, off = self.pulls + 1, brought - self.mean
        mean = self.mean + off / pulls
        return Record(pulls, mean, self.spread + off * (brought - mean))

    def belief(self, size: float, width: float = WIDTH) -> Belief:
        """What to believe of it; ``size`` is that of what was measured, ``width`` how far an unknown arm may be off.

        >>> Record().belief(size=10.0)
        Belief(mean=0.0, deviation=20.0, freedom=2.0)
        """
        noise, weight = NOISE * size, (NOISE / width) ** 2
        total = weight + self.pulls
        mean = self.pulls * self.mean / total
        shape = 1 + self.pulls / 2
        scale = noise**2 + (self.spread + weight * mean * self.mean) / 2
        return Belief(mean, math.sqrt(scale / (shape * total)), 2 * shape)


def size_of(records: Iterable[Record]) -> float:
    """The root of the mean square of all that was measured; 1 where that is nothing."""
    told = [record for record in records if record.pulls]
    squares = math.fsum(record.spread + record.pulls * record.mean**2 for record in told)
    return math.sqrt(squares / sum(record.pulls for record in told)) if squares > 0 else 1.0


def best_of_each_slot(worth: Mapping[Arm, float]) -> list[Arm]:
    """For each slot the best of those arms that are worth more than 0, the best first; of equals the first named."""
    paying = sorted((arm for arm, value in worth.items() if value > 0), key=lambda arm: -worth[arm])
    return [arm for place, arm in enumerate(paying) if arm[0] not in {slot for slot, _ in paying[:place]}]


@dataclass(frozen=True, slots=True)
class Harvest:
    """An episode with all its parts: what was planted, in this order, and what it brought; None if that is unknown."""

    planted: tuple[Arm, ...]
    brought: float | None

    def lessons(self) -> list[tuple[Arm, float]]:
        """What it says of each arm: the same share of it for all that were planted; nothing where it is unknown."""
        if self.brought is None:
            return []
        return [(arm, self.brought / len(self.planted)) for arm in self.planted]


def harvests(episodes: Sequence[Played]) -> list[Harvest]:
    """What each episode brought. What a rollback cut apart is one episode here: its seeds have to answer for all of it.

    The part behind a rollback follows it, and begins where that one ended, while an episode begins with step 0.
    """
    wholes: list[list[Played]] = []
    for one in episodes:
        before = wholes[-1][-1] if wholes else None
        goes_on = before is not None and before.terminated and _begins(one) > before.final.step
        if goes_on:
            wholes[-1].append(one)
        else:
            wholes.append([one])
    return [_harvest(parts) for parts in wholes]


def _begins(one: Played) -> int:
    return one.turns[0].observation.step if one.turns else 0


def _harvest(parts: Sequence[Played]) -> Harvest:
    turns = [turn for part in parts for turn in part.turns]
    planted = dict.fromkeys(
        (turn.action.slot, turn.action.blueprint)
        for turn in turns
        if turn.action.op is Op.GERMINATE and turn.action.slot is not None and turn.action.blueprint is not None
    )
    rewards = [turn.reward.total for turn in turns if turn.reward is not None]
    brought = math.fsum(rewards) if rewards and all(abs(one) < LARGEST for one in rewards) else None
    return Harvest(tuple(planted), brought)
