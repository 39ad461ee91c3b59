"""What is measured in a step, what a policy sees of it, and what a reward says to it?

What is known of a seed's gain, and what does a gate say to it? Records of a measurement, a look and an opinion.

How is an environment judged? What is looked at, and a verdict with the reason for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from esper_core.leyline.lifecycle import SlotState, Stage
from esper_core.leyline.specs import Place

if TYPE_CHECKING:
    from collections.abc import Iterable


Strictness = Literal["strict", "permissive", "off"]
"""How much a gate asks for. ``growth.evidence.judge`` says what each means."""

_READ: Final = {"ser_json_inf_nan": "strings", "extra": "forbid"}
"""How pydantic reads and writes these records at the file boundary: nothing unknown, and NaN by its name."""


class Finding(StrEnum):
    """What a gate found. Only SHOWN opens it; UNKNOWN says nothing against the seed."""

    SHOWN = "shown"
    NOT_SHOWN = "not-shown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much the loss of host and seed was below that of the undisturbed host, over the same examples.

    One difference for each example, host less trial, in nats: positive where the seed helps. Every number but ``n`` is
    NaN or infinite where a loss was.
    """

    __pydantic_config__ = _READ
    n: int
    """Examples."""
    mean: float
    deviation: float
    """Standard deviation of the differences, with n − 1."""
    skewness: float
    """Third central moment in standard deviations (with n); below 0 where a few examples got far worse."""
    worst: float
    """The smallest difference."""
    best: float
    """The largest difference."""

    @property
    def standard_error(self) -> float:
        """Of the mean, in nats: deviation / √n."""
        return self.deviation / math.sqrt(self.n)

    @property
    def finite(self) -> bool:
        """Whether every number is one: then every loss was."""
        return all(map(math.isfinite, (self.mean, self.deviation, self.skewness, self.worst, self.best)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look of a gate saw: the gain of this step's network, in nats, and how low and how high it may be.

    ``lower`` and ``upper`` are one-sided bounds; each is wrong with probability ``alpha``.
    """

    __pydantic_config__ = _READ
    n: int
    mean: float
    standard_error: float
    lower: float
    upper: float
    alpha: float
    """What this look spends of the gate's chance to be wrong."""
    looks: int
    """Looks of this gate at this seed so far, this one with them."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a gate says of a seed in one step, and why. ``evidence`` is None where there was none or nobody looked."""

    __pydantic_config__ = _READ
    finding: Finding
    reason: str
    evidence: Evidence | None = None
    price: float | None = None
    """What the gain was held against, in nats; None where the gates are off."""

    @property
    def opens(self) -> bool:
        """Whether the gate lets the seed pass."""
        return self.finding is Finding.SHOWN


RECORD: Final = {"ser_json_inf_nan": "strings", "extra": "forbid"}
"""How pydantic reads and writes these records at the file boundary: nothing unknown, and NaN by its name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a task is judged by, and which way is better.

    unit: "%" for shares of a whole, from 0 to 1, which are shown in percent; else it stands behind no figure.
    exponential: whether it is e to the mean of the scores, as a perplexity is to the mean loss, and not the mean.
    """

    name: str
    direction: Literal["up", "down"] = "up"
    unit: str = ""
    exponential: bool = False

    @property
    def is_share(self) -> bool:
        """Whether figures are shares of a whole."""
        return self.unit == "%"

    def gain(self, value: float, baseline: float) -> float:
        """By how much ``value`` is better than ``baseline``; negative where it is worse."""
        return value - baseline if self.direction == "up" else baseline - value


@dataclass(frozen=True, slots=True)
class GradientHealth:
    """The gradients of one seed over the batches of a step, before any clipping.

    A parameter's norm is the Euclidean norm of its gradient on one batch; 0 where it got none. The shares are over
    parameters and batches, by the thresholds of ``leyline.constants``.
    """

    __pydantic_config__ = RECORD
    global_norm: float
    """Norm of all parameters' gradients together, mean over batches."""
    mean_parameter_norm: float
    """Mean of the parameters' own norms: not the global norm."""
    largest_parameter_norm: float
    vanishing: float
    """Share of norms below VANISHING_NORM."""
    exploding: float
    """Share of norms above EXPLODING_NORM that are numbers."""
    non_finite: float
    """Share of norms that are no numbers."""

    @property
    def health(self) -> float:
        """1 − vanishing − exploding − non_finite: the share of gradients that can be learnt from."""
        return 1.0 - self.vanishing - self.exploding - self.non_finite


@dataclass(frozen=True, slots=True)
class SeedSignals:
    """One living seed in one step. None is unknown: it was not measured, which is not the same as 0."""

    __pydantic_config__ = RECORD
    blueprint: str
    stage: Stage
    alpha: float
    parameters: int
    age: int | None = None
    """Steps since germination."""
    incubation_loss: float | None = None
    """Mean training loss (nats) that the seed would cause at its target, over this step's batches."""
    gradients: GradientHealth | None = None
    """How the seed's gradients were in this step; None where it was not trained."""
    gain: Gain | None = None
    """By how much the validation loss is lower with the seed than without, over the same examples.

    Against the undisturbed host: the host itself while the seed incubates or is on a branch, the twin at the same step,
    with what had grown before, when it acts. None where there is no such host.
    """
    dependence: Gain | None = None
    """By how much the validation loss would rise if the seed, which acts on the host, were left out.

    It says how much the network leans on the seed, and nothing of what the seed is good for: a network leans on
    whatever it was trained with.
    """
    opinion: Opinion | None = None
    """What the gate before the seed said to it; None where the seed stands before none."""


@dataclass(frozen=True, slots=True)
class SlotSignals:
    """One slot in one step, with the seeds whose fate is open: one at most, or as many as the nursery holds."""

    __pydantic_config__ = RECORD
    name: str
    state: SlotState
    fossils: int
    seeds: tuple[SeedSignals, ...] = ()

    @property
    def living(self) -> SeedSignals | None:
        """The seed that lives alone here; None where there is none, or there are several to choose from."""
        return self.seeds[0] if len(self.seeds) == 1 else None


@dataclass(frozen=True, slots=True)
class Signals:
    """What one environment measured in one step. Losses in nats, means over examples."""

    __pydantic_config__ = RECORD
    step: int
    train_loss: float
    validation_loss: float
    validation_metric: float
    parameters: int
    host_parameters: int
    slots: tuple[SlotSignals, ...]
    loss_scale: float | None = None
    """Factor on the training loss that keeps small gradients from vanishing in float16; None in other precisions."""
    flops: int | None = None
    """Floating-point operations for one example, forwards, of host, fossils and the seeds that act; None where no
    reward of the run has a price for them."""
    host_flops: int | None = None
    """Those of the host alone."""

    @property
    def seeds(self) -> tuple[SeedSignals, ...]:
        """The seeds whose fate is open, whatever their slot."""
        return tuple(seed for slot in self.slots for seed in slot.seeds)

    @property
    def fossils(self) -> int:
        """Seeds kept for good so far."""
        return sum(slot.fossils for slot in self.slots)

    @property
    def finite(self) -> bool:
        """Whether every loss that was measured is a number."""
        losses = [self.train_loss, self.validation_loss]
        losses += [seed.incubation_loss for seed in self.seeds if seed.incubation_loss is not None]
        return all(math.isfinite(loss) for loss in losses)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees of one environment when it decides. ``leyline.features`` makes rows of numbers of it."""

    __pydantic_config__ = RECORD
    step: int
    steps: int
    """Length of the episode, in decision steps."""
    signals: Signals
    twin: Signals | None = None
    """The same host without growth, at the same step; None where there is no twin."""
    price: float | None = None
    """What the reward asks for growth, in its own units; None where it names no price."""
    rolled_back: bool = False
    """Whether the governor rolled the environment back in this step: for who learns an episode ends here, and the next
    begins. Nothing can be done but to wait."""
    places: Mapping[str, Place] | None = None
    """What is known of this environment's slots, where they are not those of the action space: where one policy plays
    several problems at once. None: ``ActionSpace.places`` says it."""


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """One step's reward as named terms that add up to ``total``."""

    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return math.fsum(self.terms.values())


class Level(StrEnum):
    """How bad it is, the least first.

    ENOUGH says that the episode may end: nothing is wrong, and nothing more is to be expected of it.
    """

    CALM = "calm"
    WARNING = "warning"
    ENOUGH = "enough"
    PANIC = "panic"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level and the reason for it. After PANIC nothing goes on as it was."""

    level: Level
    reason: str = ""


CALM = Verdict(Level.CALM)


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """One environment after a step, as it was measured: which it is, and its signals."""

    round: int
    arm: str
    seed: int
    signals: Signals


def most_severe(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that counts: the worst, and of several the first. CALM where there is none.

    >>> most_severe([CALM, Verdict(Level.PANIC, "too hot"), Verdict(Level.PANIC, "too cold")]).reason
    'too hot'
    """
    order = list(Level)
    return max(verdicts, key=lambda verdict: order.index(verdict.level), default=CALM)
