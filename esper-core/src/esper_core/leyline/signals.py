"""What is measured in a step, what a policy sees of it, and what a reward says to it?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from esper_core.leyline.evidence import Gain, Opinion
from esper_core.leyline.lifecycle import SlotState, Stage
from esper_core.leyline.terrain import Place

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
