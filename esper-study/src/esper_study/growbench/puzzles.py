"""The puzzles of growbench: which data, which host, and the configuration of their run.

A puzzle is identified by its part and number; everything else is drawn from a seed that these two determine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Part = Literal["train", "held_out"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

Kind = Literal["near", "far", "value", "joint", "easy", "mnist1d", "mnist1d-shuffled"]
"""The data: a kind of the task ``riddles``, or one of the two tasks ``mnist1d``."""

SHARES: Final[Mapping[Kind, float]] = {
    "near": 0.17,
    "far": 0.17,
    "value": 0.17,
    "joint": 0.17,
    "easy": 0.06,
    "mnist1d": 0.13,
    "mnist1d-shuffled": 0.13,
}
"""Probability of each kind."""
NOISE: Final = (0.8, 1.3)
"""Range of the noise factor, drawn log-uniformly."""
EASY: Final = 0.5
"""Largest share of easy examples in a ``riddles`` puzzle."""
VOID: Final = 0.6
"""Largest share of uninformative examples among the rest; half of the puzzles have none."""
CHANNELS: Final = (6, 8, 12)
HIDDEN: Final = (8, 16, 32)
"""Widths of the host, which determine the relative cost of each blueprint."""

STEPS: Final = 20
"""Steps of an episode."""
DECISIONS: Final = 4
"""Decisions of an episode."""
DECIDE_EVERY: Final = 4
"""Steps from one decision to the next; the steps after the last one train what was kept."""
LAST_DECISION: Final = (DECISIONS - 1) * DECIDE_EVERY / STEPS
"""Fraction of the episode at which the last decision is taken."""
RAMP: Final = 2
"""Steps over which a seed is blended in."""
MAX_SEEDS: Final = 2
"""Seeds that a host may keep, one in each slot."""
LEARNING_RATE: Final = 0.01

RUN_SETTINGS: Final[Mapping[str, Any]] = {
    "optimizer": {whose: {"learning_rate": LEARNING_RATE} for whose in ("host", "seed")},
    "growth": {
        "incubation": "branch",
        "auto_advance": False,
        "gates": "off",
        "seeds": MAX_SEEDS,
        "embargo": DECIDE_EVERY - 1,
    },
    "lanes": 1,
}
"""Configuration of training and growth that every puzzle shares."""

SLOTS: Final[Mapping[str, tuple[str, ...]]] = {
    "early": ("blueprints/pointwise", "blueprints/depthwise_separable", "blueprints/dilated"),
    "late": ("blueprints/mlp",),
}
"""Blueprints that can be planted in each slot."""

_FIRST_SEED: Final = 5000
_ALTERNATING_FROM: Final = 5200
"""Seeds below belong to ``train``; from here on even seeds belong to ``train`` and odd ones to ``held_out``."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A growth problem.

    Attributes:
        easy: Share of examples that any host can classify.
        void: Share of examples that carry no information.
        channels: Features per position of the host.
        hidden: Width of the host's hidden layer.
        seed: Seed of the data and of the training.
    """

    part: Part
    number: int
    kind: Kind
    noise: float
    easy: float
    void: float
    channels: int
    hidden: int
    seed: int

    @property
    def name(self) -> str:
        """Name in files and messages, such as ``train-003``."""
        return f"{self.part}-{self.number:03d}"

    def config(self, price: float = 40.0) -> dict[str, Any]:
        """Return the configuration of a run with one environment, as data for a YAML file."""
        return {
            "task": self._task(),
            "host": {
                "use": "tasks/pointwise-mlp",
                "settings": {"channels": self.channels, "hidden": self.hidden, "kernel": 1},
            },
            "slots": {name: {"blueprints": list(blueprints)} for name, blueprints in SLOTS.items()},
            "policy": "policies/static",
            "reward": {"use": "rewards/team", "settings": {"price": price}},
            "seed": self.seed,
            "environments": 1,
            "episode": {"steps": STEPS, "batches": 10, "batch_size": 100},
            **RUN_SETTINGS,
        }

    def _task(self) -> dict[str, Any]:
        common = {"noise": self.noise, "seed": self.seed}
        if self.kind == "mnist1d" or self.kind == "mnist1d-shuffled":
            return {"use": f"tasks/{self.kind}", "settings": {**common, "samples": 2500, "validation": 600}}
        shape = {"kind": self.kind, "easy": self.easy, "void": self.void, "validation": 600, "test": 600}
        return {"use": "tasks/riddles", "settings": {**common, **shape}}


def puzzle(number: int, part: Part = "train") -> Puzzle:
    """Return the puzzle of a number. The same arguments always give the same puzzle, and parts share no seed.

    >>> puzzle(3) == puzzle(3), puzzle(3).seed, puzzle(3, "held_out").seed, puzzle(202).seed
    (True, 5003, 5207, 5204)

    Raises:
        ValueError: If the number is negative or the part is unknown.
    """
    if part not in PARTS or number < 0:
        msg = f"a puzzle needs a number from 0 and a part, {' or '.join(PARTS)}. Received: {number}, {part!r}"
        raise ValueError(msg)
    seed = _seed_of(number, part)
    draw = np.random.RandomState(seed)
    kinds: tuple[Kind, ...] = tuple(SHARES)
    kind = kinds[draw.choice(len(kinds), p=list(SHARES.values()))]
    noise = float(f"{np.exp(draw.uniform(*np.log(NOISE))):.3g}")
    channels, hidden = CHANNELS[draw.randint(len(CHANNELS))], HIDDEN[draw.randint(len(HIDDEN))]
    easy, void = draw.uniform(0, EASY), max(0.0, draw.uniform(-VOID, VOID))
    mixed = kind in ("near", "far", "value", "joint")
    return Puzzle(
        part=part,
        number=number,
        kind=kind,
        noise=noise,
        easy=round(easy, 2) * mixed,
        void=round((1 - easy) * void, 2) * mixed,
        channels=channels,
        hidden=hidden,
        seed=seed,
    )


def _seed_of(number: int, part: Part) -> int:
    if part == "held_out":
        return _ALTERNATING_FROM + 1 + 2 * number
    before = _ALTERNATING_FROM - _FIRST_SEED
    return _FIRST_SEED + number if number < before else _ALTERNATING_FROM + 2 * (number - before)
