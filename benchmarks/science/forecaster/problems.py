"""Growth problems of three host families at three learning rates, to learn on or held out.

Data, widths and length of the episodes are those of growbench (``esper_study.growbench.puzzles``), from numbers that
its table does not use, so that no problem has an RNG seed in common with another or with the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from esper_study.growbench import puzzle

if TYPE_CHECKING:
    from esper_study.growbench import Part, Puzzle

Family = Literal["pointwise-mlp", "wide-cnn1d", "cnn1d"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
LEARNED_ON: Final[tuple[Family, ...]] = ("pointwise-mlp", "wide-cnn1d")
"""The families with training problems, beside those in the table of growbench. The other one is held out."""

RATES: Final = (0.0033, 0.01, 0.03)
PRICE: Final = 40.0
CHEAP: Final = "depthwise_separable"
"""Grows after the first layer of every host."""
DEAR: Final = ("pointwise", "dilated")
"""One of these may grow there, too. ``pointwise-mlp`` also takes ``mlp`` before its head."""

_UNUSED: Final = 10_000
"""Number of the first puzzle; the table of growbench ends far below."""
_CHANNELS: Final = {"cnn1d": {6: 4, 8: 6, 12: 8}, "wide-cnn1d": {6: 10, 8: 12, 12: 16}}
"""Channels of the convolutional hosts, for each number of channels of a puzzle."""
_WIDEST: Final = 32
"""Puzzles with this hidden width get convolutions of width 3, which lack nothing; others of width 1."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the data of a puzzle, a host of a family, and a learning rate."""

    family: Family
    rate: float
    puzzle: Puzzle

    @property
    def candidates(self) -> list[tuple[str, str]]:
        """Slot and blueprint of everything that may grow."""
        early = [("early", f"blueprints/{name}") for name in (DEAR[self.seed // 2 % len(DEAR)], CHEAP)]
        return [*early, ("late", "blueprints/mlp")] if self.family == "pointwise-mlp" else early

    @property
    def name(self) -> str:
        """Name in files."""
        return f"{self.family}-{self.puzzle.name}"

    @property
    def part(self) -> Part:
        """Whether it is learned on or held out."""
        return self.puzzle.part

    @property
    def seed(self) -> int:
        """RNG seed of data and training."""
        return self.puzzle.seed

    def config(self) -> dict[str, Any]:
        """Return the configuration of a run with one environment."""
        config = self.puzzle.config(PRICE)
        growth = {"incubation": "branch", "auto_advance": False, "gates": "off", "seeds": 1, "embargo": 0}
        return {
            **config,
            "host": self._host(),
            "slots": self._slots(),
            "optimizer": {whose: {"learning_rate": self.rate} for whose in ("host", "seed")},
            "growth": {**growth, "dependence": False},
        }

    def _host(self) -> dict[str, Any]:
        puzzle = self.puzzle
        if self.family == "pointwise-mlp":
            settings = {"channels": puzzle.channels, "hidden": puzzle.hidden, "kernel": 1}
        else:
            settings = {
                "channels": _CHANNELS[self.family][puzzle.channels],
                "kernel": 3 if puzzle.hidden == _WIDEST else 1,
            }
        return {"use": f"tasks/{self.family}", "settings": settings}

    def _slots(self) -> dict[str, dict[str, list[str]]]:
        slots: dict[str, dict[str, list[str]]] = {}
        for slot, name in self.candidates:
            slots.setdefault(slot, {"blueprints": []})["blueprints"].append(name)
        return slots


def problems(part: Part, family: Family, count: int) -> list[Problem]:
    """Return problems of a family, the learning rates in turn.

    >>> [(one.name, one.rate) for one in problems("held_out", "cnn1d", 2)]
    [('cnn1d-held_out-10002', 0.0033), ('cnn1d-held_out-10005', 0.01)]
    """
    first = _UNUSED + FAMILIES.index(family)
    return [
        Problem(family, RATES[turn % len(RATES)], puzzle(first + len(FAMILIES) * turn, part)) for turn in range(count)
    ]
