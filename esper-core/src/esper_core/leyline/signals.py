"""Signals: what is measured in a step, and what gates, governor and rewards conclude from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from esper_core.leyline.constants import FIRST_LOOK, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.lifecycle import SlotState, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable


RECORD: Final = {"ser_json_inf_nan": "strings"}
"""How pydantic reads and writes these records: unknown fields are ignored, and NaN is written as a name."""


class Finding(StrEnum):
    """What a gate found. SHOWN and OFF open it. UNKNOWN means that a measurement is missing, OFF that gates are off."""

    SHOWN = "shown"
    OFF = "off"
    NOT_SHOWN = "not-shown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better a network is with a seed than the undisturbed host, over the same examples.

    The difference of each example is positive if the seed helps: by how much the loss is lower, in nats, or the metric
    better (``growth.evidence``). All values except ``n`` are NaN or infinite if a loss was.
    """

    __pydantic_config__ = RECORD
    n: int
    """Number of examples."""
    mean: float
    deviation: float
    """Standard deviation of the differences, with divisor n − 1."""
    skewness: float
    """Third standardised moment, with divisor n; negative if a few examples became much worse."""
    worst: float
    """The smallest difference."""
    best: float
    """The largest difference."""
    repeats: float = 1.0
    """How much the differences correlate with those of the look before, at least 0; 1 if that is unknown."""

    @property
    def standard_error(self) -> float:
        """Standard error of the mean: deviation / √n."""
        return self.deviation / math.sqrt(self.n)

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return all(map(math.isfinite, (self.mean, self.deviation, self.skewness, self.worst, self.best)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a gate saw up to one look: the gain that lasts, with one-sided bounds.

    ``lower`` and ``upper`` are each wrong with probability ``alpha``.
    """

    __pydantic_config__ = RECORD
    n: int
    mean: float
    standard_error: float
    """That of the examples."""
    between: float
    """The standard error of the mean from step to step; 0 if only one look counts."""
    lower: float
    upper: float
    alpha: float
    """The part of the gate's error probability that this look spends."""
    looks: int
    """Looks of this gate at this seed so far, including this one."""


class Lack(StrEnum):
    """What a gate did not have: a measured gain, enough examples, losses that are finite, enough looks."""

    GAIN = "gain"
    EXAMPLES = "examples"
    FINITE = "finite"
    LOOKS = "looks"


_LACKS: Final = {
    None: "gates are off",
    Lack.GAIN: "the gain was not measured",
    Lack.EXAMPLES: f"{{}} examples are too few to judge by: {MIN_EXAMPLES_FOR_EVIDENCE} at least",
    Lack.FINITE: "a loss is not finite",
    Lack.LOOKS: f"the gate decides from look {FIRST_LOOK} on; this is look {{}}",
}


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a gate concludes about a seed in one step. ``evidence`` is None if the gate did not look."""

    __pydantic_config__ = RECORD
    finding: Finding
    lack: Lack | None = None
    """Why it did not look; None: it did, or gates are off."""
    n: int = 0
    """The examples or looks that are too few."""
    evidence: Evidence | None = None
    price: float | None = None
    """The gain that is required; None if the gates are off."""

    @property
    def opens(self) -> bool:
        """Whether the seed passes the gate."""
        return self.finding in (Finding.SHOWN, Finding.OFF)

    @property
    def reason(self) -> str:
        """In words why the gate did not look, or what was compared, and what is lacking."""
        if self.evidence is None or self.price is None:
            return _LACKS[self.lack].format(self.n)
        evidence, price = self.evidence, self.price
        sign = ">" if evidence.lower > price else "≤"
        looked = f"(look {evidence.looks}, {evidence.n} examples)"
        return f"lower bound {evidence.lower:.4f} {sign} price {price:.4f} {looked}{self.lacking}"

    @property
    def lacking(self) -> str:
        """What a gate lacks that sees a gain above the price and is not sure: examples, or steps; empty if nothing."""
        if self.evidence is None or self.price is None or self.opens or not self.evidence.mean > self.price:
            return ""
        evidence = self.evidence
        if evidence.between > evidence.standard_error:
            return f": the mean {evidence.mean:.4f} moves from step to step, and needs more of them"
        ratio = (evidence.mean - evidence.lower) / (evidence.mean - self.price)
        examples = float(f"{evidence.n * ratio * ratio:.2g}")
        return f": a mean of {evidence.mean:.4f} needs about {examples:,.0f} examples"


class Cause(StrEnum):
    """What made a seed change its stage."""

    POLICY = "policy"
    STEP = "step"
    RAMP = "ramp"
    DRAINED = "drained"
    GAIN = "gain"
    NURSERY = "nursery"
    ROLLBACK = "rollback"
    LOST = "lost"
    EPISODE_END = "episode-end"
    LOOP_END = "loop-end"
    SET = "set"


_IN_WORDS: Final = {
    Cause.POLICY: "by the policy",
    Cause.STEP: "a step began",
    Cause.RAMP: "alpha at its target",
    Cause.DRAINED: "drained",
    Cause.GAIN: "its gain is shown",
    Cause.NURSERY: "another was chosen",
    Cause.ROLLBACK: "rolled back",
    Cause.LOST: "lost",
    Cause.EPISODE_END: "the episode is over",
    Cause.LOOP_END: "the loop is over",
    Cause.SET: "by its set",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a seed changed its stage; ``str`` gives it in words."""

    __pydantic_config__ = RECORD
    cause: Cause
    """policy, step (it began), ramp (alpha is at its target), drained (alpha is at 0), gain (it is shown), nursery
    (another seed was chosen), rollback, lost, episode-end, loop-end, set (of which it is one)."""
    detail: str = ""
    """What the cause leaves open: the blueprint that was chosen, why the network was rolled back, what the lost seed
    did."""
    gate: Literal["blending", "fossilisation"] | None = None
    """What the latest gate guards that looked at the seed; None: gates are off, or none looked."""
    opinion: Opinion | None = None
    """The last conclusion of that gate."""

    @property
    def words(self) -> str:
        """The cause in words, without what it leaves open."""
        return _IN_WORDS[self.cause]

    def __str__(self) -> str:
        cause = f"{self.words}: {self.detail}" if self.detail else self.words
        gate = "keeping it" if self.gate == "fossilisation" else self.gate
        return cause if self.opinion is None else f"{cause}; gate before {gate}: {self.opinion.reason}"


@dataclass(frozen=True, slots=True)
class Metric:
    """The metric of a task, and whether higher (up) or lower (down) is better.

    ``unit`` is "%" for shares from 0 to 1, which are shown in percent, and otherwise empty. An ``exponential`` metric
    is exp(mean of scores), like a perplexity, instead of the mean.
    """

    name: str
    direction: Literal["up", "down"] = "up"
    unit: str = ""
    exponential: bool = False

    @property
    def is_share(self) -> bool:
        """Whether values are shares from 0 to 1."""
        return self.unit == "%"

    def gain(self, value: float, baseline: float) -> float:
        """Return by how much ``value`` is better than ``baseline``; negative if it is worse."""
        return value - baseline if self.direction == "up" else baseline - value


@dataclass(frozen=True, slots=True)
class GradientHealth:
    """The gradients of one seed over the batches of a step, before clipping.

    A parameter's norm is the Euclidean norm of its gradient on one batch, or 0 without a gradient. Shares are taken
    over parameters and batches, with the thresholds in ``leyline.constants``.
    """

    __pydantic_config__ = RECORD
    global_norm: float
    """Norm of all gradients together, averaged over batches."""
    vanishing: float
    """Share of norms below VANISHING_NORM."""
    exploding: float
    """Share of finite norms above EXPLODING_NORM."""
    non_finite: float
    """Share of norms that are NaN or infinite."""

    @property
    def health(self) -> float:
        """Share of usable gradients: 1 − vanishing − exploding − non_finite."""
        return 1.0 - self.vanishing - self.exploding - self.non_finite


@dataclass(frozen=True, slots=True)
class SeedSignals:
    """One living seed in one step. None means not measured, which is not the same as 0."""

    __pydantic_config__ = RECORD
    blueprint: str
    stage: Stage
    alpha: float
    parameters: int
    age: int | None = None
    """Steps since germination."""
    incubation_loss: float | None = None
    """Mean training loss in nats with the seed at its target alpha, over this step's batches."""
    gradients: GradientHealth | None = None
    """The seed's gradients in this step; None if it was not trained."""
    gain: Gain | None = None
    """How much lower the validation loss is with the seed than on the undisturbed host: the host itself until the seed
    acts on it, then the twin at the same step. None if there is no such host."""
    opinion: Opinion | None = None
    """What the seed's next gate concluded; None if the seed is not waiting for a gate."""
    price: float | None = None
    """What its gain has to exceed, in the unit of gains."""
    margin: Gain | None = None
    """How much better the network is with it than with the best other seed that incubates, in any slot, over the same
    examples. None if no other does."""


@dataclass(frozen=True, slots=True)
class SlotSignals:
    """One slot in one step, with its living seeds: at most one, or as many as the nursery holds."""

    __pydantic_config__ = RECORD
    name: str
    state: SlotState
    fossils: int
    seeds: tuple[SeedSignals, ...] = ()

    @property
    def living(self) -> SeedSignals | None:
        """The only living seed; None if there is none or more than one."""
        return self.seeds[0] if len(self.seeds) == 1 else None


@dataclass(frozen=True, slots=True)
class Signals:
    """What was measured in one environment in one step. Losses are means over examples, in nats."""

    __pydantic_config__ = RECORD
    step: int
    train_loss: float
    validation_loss: float
    validation_metric: float
    parameters: int
    host_parameters: int
    slots: tuple[SlotSignals, ...]
    loss_scale: float | None = None
    """Loss scale in float16; None in other precisions."""
    flops: int | None = None
    """Floating-point operations of a forward pass for one example: host, fossils and acting seeds. None: unknown."""
    host_flops: int | None = None
    """The same for the host alone."""

    @property
    def seeds(self) -> tuple[SeedSignals, ...]:
        """All living seeds."""
        return tuple(seed for slot in self.slots for seed in slot.seeds)

    @property
    def fossils(self) -> int:
        """Number of fossilised seeds."""
        return sum(slot.fossils for slot in self.slots)

    @property
    def doublings(self) -> float:
        """How often the host has doubled in operations; in parameters, if operations are unknown."""
        if self.flops is None or self.host_flops is None:
            return math.log2(self.parameters / self.host_parameters)
        return math.log2(self.flops / self.host_flops)

    @property
    def finite(self) -> bool:
        """Whether all measured losses are finite."""
        losses = [self.train_loss, self.validation_loss]
        losses += [seed.incubation_loss for seed in self.seeds if seed.incubation_loss is not None]
        return all(math.isfinite(loss) for loss in losses)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees of one environment. ``esper_policies.observations`` encodes it as numbers."""

    __pydantic_config__ = RECORD
    step: int
    steps: int
    """Length of the episode in decision steps."""
    signals: Signals
    twin: Signals | None = None
    """Signals of the twin, the same host without growth, at the same step; None without a twin."""
    price: float | None = None
    """The reward's price of growth in its own units; None if it has no price."""
    rolled_back: bool = False
    """Whether the governor rolled the environment back in this step. For a learner, an episode ends here. Only WAIT is
    possible."""
    batches: int | None = None
    """Batches on which the host was trained in this step; None if unknown."""


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """The reward of one step as named terms."""

    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return math.fsum(self.terms.values())


class Level(StrEnum):
    """The severity of a verdict, in rising order.

    ENOUGH means that the episode may end early: nothing is wrong, and no further improvement is expected.
    """

    CALM = "calm"
    WARNING = "warning"
    ENOUGH = "enough"
    PANIC = "panic"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level and the reason for it. PANIC leads to a rollback or stops the run."""

    level: Level
    reason: str = ""


CALM = Verdict(Level.CALM)


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The signals of one environment after a step, as passed to health checks."""

    round: int
    arm: str
    seed: int
    signals: Signals


def most_severe(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict, the first of several; CALM if there is none.

    >>> most_severe([CALM, Verdict(Level.PANIC, "too hot"), Verdict(Level.PANIC, "too cold")]).reason
    'too hot'
    """
    # By the order of definition: as texts, levels would compare by the alphabet.
    return max(verdicts, key=lambda verdict: list(Level).index(verdict.level), default=CALM)
