"""Compute the verdicts of gates at each price over the kept gains, and whether they were right.

A gain is measured in every step, whether gates are on or off. So one forced episode shows what strict gates would have
decided at any price: G2 over the steps in which the seed was in training, G5 over those in which it was holding.

The truth is the gain of the seed at the end, on the test split, which no gate sees: the loss of the twin less that of
the network that kept the seed, in nats. A seed is worth its price where this is more than the price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_core.growth.gates import Gate
from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.science.incubation.runs import Cell, Episode

PRICES: Final = (0.0, 1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3)
"""Nats of loss for each parameter."""


def opened(episode: Episode, stage: Stage, price: float) -> int | None:
    """Return the step at which the strict gate after ``stage`` first opened at this price per parameter, or None."""
    gate = Gate("strict", looks=len(episode.stages))
    nats = episode.added * price
    for step, (now, gain) in enumerate(zip(episode.stages, episode.gains, strict=True)):
        if now == stage and gate.look(gain, nats).opens:
            return step
    return None


def highest_price(episode: Episode, stage: Stage) -> float | None:
    """Return the highest price per parameter at which the gate after ``stage`` opened; None without measurements.

    If the seed passed and left the stage, later looks are missing, and this is a lower bound.
    """
    gate, highest = Gate("strict", looks=len(episode.stages)), None
    for now, gain in zip(episode.stages, episode.gains, strict=True):
        if now == stage and (evidence := gate.look(gain, 0.0).evidence) is not None:
            price = evidence.lower / episode.added
            highest = price if highest is None else max(highest, price)
    return highest


def passes(episode: Episode, price: float) -> tuple[bool, bool]:
    """Return whether G2 opened while the seed was in training, and G5 while it was holding."""
    first, second = (opened(episode, stage, price) for stage in (Stage.TRAINING, Stage.HOLDING))
    return first is not None, second is not None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the gates say to the seeds of a forced cell at one price, and how often that is right.

    advanced: seeds that G2 lets pass. kept: seeds that G2 and then G5 let pass. worth: seeds that brought more than
    their price in the end. rightly: kept and worth it, or not kept and not worth it. wrongly_kept and wrongly_refused
    are the others.
    """

    price: float
    advanced: int
    kept: int
    worth: int
    wrongly_kept: int
    wrongly_refused: int
    seeds: int

    @property
    def rightly(self) -> int:
        """Verdicts that the end bears out."""
        return self.seeds - self.wrongly_kept - self.wrongly_refused


def verdicts(cell: Cell, twin: Cell, price: float) -> Verdicts:
    """Return the verdicts on the seeds of a forced cell at ``price`` nats per parameter."""
    said = [passes(episode, price) for episode in cell.episodes]
    kept = [first and second for first, second in said]
    worth = [
        alone.test_loss - episode.test_loss > episode.added * price
        for episode, alone in zip(cell.episodes, twin.episodes, strict=True)
    ]
    return Verdicts(
        price=price,
        advanced=sum(first for first, _ in said),
        kept=sum(kept),
        worth=sum(worth),
        wrongly_kept=sum(yes and not good for yes, good in zip(kept, worth, strict=True)),
        wrongly_refused=sum(good and not yes for yes, good in zip(kept, worth, strict=True)),
        seeds=len(said),
    )


def mean_gain(episodes: Sequence[Episode], stage: Stage) -> float | None:
    """Return the mean, over seeds, of the last gain measured in ``stage``, in nats."""
    last = []
    for episode in episodes:
        gains = [gain.mean for now, gain in zip(episode.stages, episode.gains, strict=True) if now == stage and gain]
        last += gains[-1:]
    return sum(last) / len(last) if last else None
