"""Which problems are there? Those of one family: a riddle, its noise, the width of the host; told by their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from esper_tasks.settings import RiddleKind

if TYPE_CHECKING:
    from collections.abc import Mapping

Part = Literal["train", "held_out"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

KINDS: Final[tuple[RiddleKind, ...]] = get_args(RiddleKind)
NOISE: Final = (0.8, 1.3)
CHANNELS: Final = (8, 12)
HIDDEN: Final = 16

STEPS: Final = 20
EVERY: Final = 5
"""Steps from one decision to the next."""
RAMP: Final = 2
SEEDS: Final = 2
"""That a host may keep."""

ROOM: Final[Mapping[str, tuple[str, ...]]] = {
    "early": ("blueprints/pointwise", "blueprints/depthwise_separable", "blueprints/dilated"),
    "late": ("blueprints/mlp",),
}
"""What may grow where."""

_FIRST_SEED: Final = 5000


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One problem. seed: of its data, and of the training."""

    part: Part
    number: int
    kind: RiddleKind
    noise: float
    channels: int
    seed: int

    @property
    def name(self) -> str:
        """For files and messages."""
        return f"{self.part}-{self.number:03d}"

    def config(self, price: float = 40.0) -> dict[str, Any]:
        """The run in which it is played by the engine: one environment, whose policy is to be given."""
        return {
            "task": {"use": "tasks/riddles", "settings": {"kind": self.kind, "noise": self.noise, "seed": self.seed}},
            "host": {
                "use": "tasks/pointwise-mlp",
                "settings": {"channels": self.channels, "hidden": HIDDEN, "kernel": 1},
            },
            "slots": {
                name: {"blueprints": list(own), "stack": SEEDS if name == "early" else 1} for name, own in ROOM.items()
            },
            "policy": "policies/static",
            "reward": {"use": "rewards/team", "settings": {"price": price}},
            "seed": self.seed,
            "environments": 1,
            "episode": {"steps": STEPS, "batches": 10, "batch_size": 100},
            "growth": {"auto_advance": False, "gates": "off", "seeds": SEEDS, "embargo": EVERY - 1},
            "lanes": 1,
        }


def puzzle(number: int, part: Part = "train") -> Puzzle:
    """The problem of this number, from 0 on; always the same one. Those to learn on have even seeds, others odd ones.

    >>> puzzle(3) == puzzle(3), puzzle(3).seed, puzzle(3, "held_out").seed
    (True, 5006, 5007)
    """
    if part not in PARTS or number < 0:
        msg = f"a puzzle has a number from 0 on, and is of {' or '.join(PARTS)}. Received: {number}, {part!r}"
        raise ValueError(msg)
    seed = _FIRST_SEED + 2 * number + PARTS.index(part)
    draw = np.random.RandomState(seed)
    kind = KINDS[draw.randint(len(KINDS))]
    noise = float(f"{np.exp(draw.uniform(*np.log(NOISE))):.3g}")
    return Puzzle(part, number, kind, noise, CHANNELS[draw.randint(len(CHANNELS))], seed)
