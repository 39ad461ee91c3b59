"""A family of tasks and hosts, whose instances are made from their number.

An instance is a task, a host and a price; its data and its host are components of a run. Held-out instances share no
example with those for training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from esper_tasks.hosts import PointwiseMlp
from esper_tasks.mnist1d import mnist1d, mnist1d_shuffled
from esper_tasks.settings import InstanceSettings

if TYPE_CHECKING:
    from esper_core.leyline import DataShape
    from esper_tasks.settings import OddWidth
    from esper_tasks.supervised import Classification


Part = Literal["train", "held_out"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

_FIRST_SEED: Final = 1000
"""Data seeds of instances begin here, far from 42, which the published data have."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One problem: a task and a host with their settings, and what a grown parameter costs.

    price: points of the metric that doubling the host's parameters costs.
    """

    part: Part
    number: int
    task: str
    seed: int
    noise: float
    samples: int
    channels: int
    hidden: int
    kernel: OddWidth
    price: float

    @property
    def task_settings(self) -> dict[str, Any]:
        """The task's settings; 16 % of the samples are held out for validation."""
        validation = self.samples * 4 // 25
        return {"samples": self.samples, "validation": validation, "seed": self.seed, "noise": self.noise}

    @property
    def host_settings(self) -> dict[str, Any]:
        """The settings of ``pointwise-mlp``."""
        return {"channels": self.channels, "hidden": self.hidden, "kernel": self.kernel}

    def config(self) -> dict[str, Any]:
        """Return the instance's part of a configuration: task, host, and the reward with its price."""
        return {
            "task": {"use": self.task, "settings": self.task_settings},
            "host": {"use": "pointwise-mlp", "settings": self.host_settings},
            "reward": {"use": "team", "settings": {"price": self.price}},
        }


@dataclass(frozen=True, slots=True)
class Family:
    """The distribution of instances; its parts are drawn independently.

    Instances of the two parts are disjoint by construction: those for training have even data seeds, held-out ones
    odd seeds, so they share no example.

    >>> SIGNALS.instance(3) == SIGNALS.instance(3), SIGNALS.instance(3) == SIGNALS.instance(3, "held_out")
    (True, False)

    tasks: names. noise, price: ranges, drawn log-uniformly. samples, channels, hidden,
    kernels: equally likely options.
    """

    tasks: tuple[str, ...]
    noise: tuple[float, float]
    samples: tuple[int, ...]
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    kernels: tuple[OddWidth, ...]
    price: tuple[float, float]

    def instance(self, number: int, part: Part = "train") -> Instance:
        """Return the instance of this number, from 0 on; equal numbers give equal instances."""
        if part not in PARTS or number < 0:
            msg = f"an instance needs a number from 0 and a part, {' or '.join(PARTS)}. Received: {number}, {part!r}"
            raise ValueError(msg)
        seed = _FIRST_SEED + 2 * number + PARTS.index(part)
        draw = np.random.RandomState(seed)
        return Instance(
            part=part,
            number=number,
            task=self.tasks[draw.randint(len(self.tasks))],
            seed=seed,
            noise=_between(draw, self.noise),
            samples=self.samples[draw.randint(len(self.samples))],
            channels=self.channels[draw.randint(len(self.channels))],
            hidden=self.hidden[draw.randint(len(self.hidden))],
            kernel=self.kernels[draw.randint(len(self.kernels))],
            price=_between(draw, self.price),
        )

    def train_instances(self, count: int) -> tuple[Instance, ...]:
        """Return the first instances of the training part."""
        return tuple(self.instance(number) for number in range(count))

    def held_out_instances(self, count: int) -> tuple[Instance, ...]:
        """Return the first held-out instances; none of them is in the training part, for any count."""
        return tuple(self.instance(number, "held_out") for number in range(count))


def _between(draw: np.random.RandomState, ends: tuple[float, float]) -> float:
    """Draw a number, log-uniformly and rounded to three digits, so that it can be written down."""
    return float(f"{np.exp(draw.uniform(*np.log(ends))):.3g}")


SIGNALS: Final = Family(
    tasks=("mnist1d", "mnist1d-shuffled"),
    noise=(0.25, 1.25),
    samples=(2000, 3000, 5000),
    channels=(4, 8, 16),
    hidden=(16, 32, 64),
    kernels=(1, 3, 5),
    price=(12.0, 50.0),
)
"""Ten digits as signals, plain or shuffled, with a host whose stem has kernel width 1, 3 or 5."""


def signals_family(*, instance: int = 0, part: Part = "train") -> Classification:
    """Generate the data of an instance: inputs (N, 1, 40), one of ten classes.

    >>> signals_family(instance=3, part="held_out").shape
    DataShape(kind='sequence', example=(1, 40), outputs=10)

    instance: its number, from 0 on. part: train or held_out; no example of one is in the other.
    """
    settings = InstanceSettings(instance=instance, part=part)
    chosen = SIGNALS.instance(settings.instance, settings.part)
    build = {"mnist1d": mnist1d, "mnist1d-shuffled": mnist1d_shuffled}[chosen.task]
    return build(**chosen.task_settings)


def signals_family_host(shape: DataShape, *, instance: int = 0, part: Part = "train") -> PointwiseMlp:
    """Build the host of an instance, a ``PointwiseMlp`` of its widths. Arguments as for ``signals_family``."""
    settings = InstanceSettings(instance=instance, part=part)
    return PointwiseMlp(shape, **SIGNALS.instance(settings.instance, settings.part).host_settings)
