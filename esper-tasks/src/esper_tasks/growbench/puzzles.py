"""Which problems are there? Those of one family: what is to be learnt, by what host; told by their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from esper_tasks.settings import RiddleKind

if TYPE_CHECKING:
    from collections.abc import Mapping

Part = Literal["train", "held_out"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

Kind = RiddleKind | Literal["mnist1d", "mnist1d-shuffled"]
SHARES: Final[Mapping[Kind, float]] = {
    "near": 0.17,
    "far": 0.17,
    "value": 0.17,
    "joint": 0.17,
    "easy": 0.06,
    "mnist1d": 0.13,
    "mnist1d-shuffled": 0.13,
}
"""How often each comes."""
NOISE: Final = (0.8, 1.3)
EASY: Final = 0.5
"""The largest share of easy examples among those of a riddle."""
VOID: Final = 0.6
"""The largest share of the others that say nothing; half of the puzzles have none of these."""
CHANNELS: Final = (6, 8, 12)
HIDDEN: Final = (8, 16, 32)
"""Widths of the host: what a blueprint costs hangs on them."""

STEPS: Final = 20
DECISIONS: Final = 4
"""In an episode."""
EVERY: Final = 4
"""Steps from one decision to the next. What is left behind the last one is for what was kept to learn."""
LAST: Final = (DECISIONS - 1) * EVERY / STEPS
"""Share of the episode at which the last decision is taken."""
RAMP: Final = 2
SEEDS: Final = 2
"""That a host may keep, one in each slot."""
LEARNING_RATE: Final = 0.01

WAYS: Final[Mapping[str, Any]] = {
    "optimizer": {whose: {"learning_rate": LEARNING_RATE} for whose in ("host", "seed")},
    "growth": {
        "incubation": "branch",
        "auto_advance": False,
        "gates": "off",
        "seeds": SEEDS,
        "embargo": EVERY - 1,
    },
    "lanes": 1,
}
"""What a configuration says of learning and growing, for a run to be as those that the table is of."""

ROOM: Final[Mapping[str, tuple[str, ...]]] = {
    "early": ("blueprints/pointwise", "blueprints/depthwise_separable", "blueprints/dilated"),
    "late": ("blueprints/mlp",),
}
"""What may grow where."""

_FIRST_SEED: Final = 5000
_PARTED_FROM: Final = 5200
"""Up to this seed every problem is one to learn on. Those of them with odd seeds were held out once, until gardeners
had been judged by them and people had looked; from here on odd seeds are held out, and even ones to learn on."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One problem. easy, void: shares of its examples. channels, hidden: of the host. seed: of data and training."""

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
        """For files and messages."""
        return f"{self.part}-{self.number:03d}"

    def config(self, price: float = 40.0) -> dict[str, Any]:
        """The run in which it is played by the engine: one environment, whose policy is to be given."""
        return {
            "task": self._task(),
            "host": {
                "use": "tasks/pointwise-mlp",
                "settings": {"channels": self.channels, "hidden": self.hidden, "kernel": 1},
            },
            "slots": {name: {"blueprints": list(own)} for name, own in ROOM.items()},
            "policy": "policies/static",
            "reward": {"use": "rewards/team", "settings": {"price": price}},
            "seed": self.seed,
            "environments": 1,
            "episode": {"steps": STEPS, "batches": 10, "batch_size": 100},
            **WAYS,
        }

    def _task(self) -> dict[str, Any]:
        common = {"noise": self.noise, "seed": self.seed}
        if self.kind == "mnist1d" or self.kind == "mnist1d-shuffled":
            return {"use": f"tasks/{self.kind}", "settings": {**common, "samples": 2500, "validation": 600}}
        own = {"kind": self.kind, "easy": self.easy, "void": self.void, "validation": 600, "test": 600}
        return {"use": "tasks/riddles", "settings": {**common, **own}}


def puzzle(number: int, part: Part = "train") -> Puzzle:
    """The problem of this number, from 0 on; always the same one. No seed is of both parts.

    >>> puzzle(3) == puzzle(3), puzzle(3).seed, puzzle(3, "held_out").seed, puzzle(202).seed
    (True, 5003, 5207, 5204)
    """
    if part not in PARTS or number < 0:
        msg = f"a puzzle has a number from 0 on, and is of {' or '.join(PARTS)}. Received: {number}, {part!r}"
        raise ValueError(msg)
    seed = _seed_of(number, part)
    draw = np.random.RandomState(seed)
    kinds: tuple[Kind, ...] = tuple(SHARES)
    kind = kinds[draw.choice(len(kinds), p=list(SHARES.values()))]
    noise = float(f"{np.exp(draw.uniform(*np.log(NOISE))):.3g}")
    channels, hidden = CHANNELS[draw.randint(len(CHANNELS))], HIDDEN[draw.randint(len(HIDDEN))]
    easy, void = _mixture(draw)
    mixed = kind in ("near", "far", "value", "joint")
    return Puzzle(part, number, kind, noise, easy * mixed, void * mixed, channels, hidden, seed)


def _seed_of(number: int, part: Part) -> int:
    if part == "held_out":
        return _PARTED_FROM + 1 + 2 * number
    before = _PARTED_FROM - _FIRST_SEED
    return _FIRST_SEED + number if number < before else _PARTED_FROM + 2 * (number - before)


def _mixture(draw: np.random.RandomState) -> tuple[float, float]:
    easy, void = draw.uniform(0, EASY), max(0.0, draw.uniform(-VOID, VOID))
    return round(easy, 2), round((1 - easy) * void, 2)
