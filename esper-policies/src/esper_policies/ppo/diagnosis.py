"""Does it learn? Signs that it does not, in words, each told once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATIENCE: Final = 5
"""Rounds running of a bad sign before it is told."""

BLIND: Final = -0.2
"""Explained variance below which the values say less than their mean would."""

STILL: Final = 1e-6
"""KL divergence below which a round changed nothing."""

WILD: Final = 0.5
"""Share of clipped decisions from which on a round changed too much."""

DECIDED: Final = 1e-3
"""Nats of entropy below which nothing is tried any more."""


@dataclass(slots=True)
class Diagnosis:
    """The signs of the rounds so far: how long each has lasted, and which were told."""

    lasting: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def heed(self, figures: Mapping[str, float], *, unknown: int, episodes: int) -> list[str]:
        """What is to be said of one more round. unknown: episodes with rewards that nobody knows."""
        present = dict(_signs(figures, unknown, episodes))
        self.lasting = {sign: self.lasting.get(sign, 0) + 1 for sign in present}
        due = [sign for sign in present if self.lasting[sign] >= PATIENCE and sign not in self.told]
        due += [sign for sign in present if sign == "unknown" and sign not in self.told and sign not in due]
        self.told += due
        return [present[sign] for sign in due]


def _signs(figures: Mapping[str, float], unknown: int, episodes: int) -> Iterator[tuple[str, str]]:
    if unknown and not episodes:
        yield "unknown", "no reward is known that could be learnt from: rewards are counted against a twin (twin: true)"
    if not figures:
        return
    rounds = f"for {PATIENCE} rounds"
    if figures.get("explained_variance", 0.0) < BLIND:
        yield "blind", f"{rounds} its values foretold less than their mean would: a smaller learning_rate may help"
    if figures.get("kl", 1.0) < STILL:
        yield "still", f"{rounds} nothing changed in what it does: a larger learning_rate, or more passes, may help"
    if figures.get("clipped", 0.0) > WILD:
        yield "wild", f"{rounds} most of its decisions were clipped: a smaller learning_rate, or fewer passes, may help"
    undecided = [value for name, value in figures.items() if name.startswith("entropy_")]
    if undecided and sum(undecided) < DECIDED:
        yield "decided", f"{rounds} it has tried nothing new: a larger entropy_end would keep it trying"
    if episodes > 1 and figures.get("spread_of_returns", 1.0) == 0.0:
        yield "flat", f"{rounds} every episode came to the same: there is nothing to learn from"
