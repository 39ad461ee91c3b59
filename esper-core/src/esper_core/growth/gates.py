"""Gates: whether a seed's lasting gain pays for it. G2 before it is blended in, G5 before it is kept.

At each step the same validation examples go through the undisturbed host and through host and seed. A gate collects the
means of these differences, and decides at a few of its looks: it opens if a lower confidence bound on the gain that
lasts is above the price. The gate before a seed is kept is wrong about worthless seeds with probability ``GATE_ALPHA``
at most in a network's whole training, over all seeds, retries and looks.

The error of a mean gain has two parts. One is that of the examples; they are the same at each look, so that further
looks do not lessen what repeats from look to look. The other is that weights move from step to step, and the gain with
them; it lessens with further looks, slowly where averages of weights overlap. docs/concepts/gates.md derives the bound.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise
from statistics import NormalDist, linear_regression
from typing import TYPE_CHECKING, Final, Literal

import torch
from pydantic import TypeAdapter

from esper_core.growth.serialization import decode_state, encode_state
from esper_core.leyline.constants import (
    BLENDING_ALPHA,
    FIRST_LOOK,
    GATE_ALPHA,
    GATE_DECISIONS,
    GATE_LOOKS,
    MIN_EXAMPLES_FOR_EVIDENCE,
)
from esper_core.leyline.lifecycle import Op, Stage
from esper_core.leyline.signals import Evidence, Finding, Gain, Lack, Opinion, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from esper_core.growth.incubation import Incubation
    from esper_core.growth.seeds import Seed
    from esper_core.leyline.protocols import State
    from esper_core.settings import GrowthConfig

MOST_SEEN: Final = 0.97
"""Correlation from look to look that gains can show at most: an estimate beyond it would let nothing pass."""


def paired(host: Tensor, trial: Tensor, before: Tensor | None = None) -> Tensor:
    """Return the statistics of the differences host − trial, on the device in float64.

    Both are (n,): losses in nats, or scores of which a lower one is better; so are the differences at the look
    ``before``, if there was one. Seven numbers: n, mean, variance with n − 1, third central moment with n, smallest,
    largest, correlation with ``before`` (1 without it). A loss that is not finite shows in the mean, and with fewer
    than two examples the variance is NaN.
    """
    if host.shape != trial.shape or host.dim() != 1 or len(host) == 0:
        shapes = f"{tuple(host.shape)} and {tuple(trial.shape)}"
        msg = f"host and trial need one number each for every example, and at least one. Received: {shapes}"
        raise ValueError(msg)
    # In float64, because differences of nearly equal losses have few digits left.
    difference_N = host.detach().double() - trial.detach().double()
    n = difference_N.new_full((), len(difference_N))
    mean = difference_N.mean()
    centred_N = difference_N - mean
    variance = centred_N.square().sum() / (n - 1)
    correlation = torch.ones_like(mean)
    if before is not None:
        before_N = before.double() - before.double().mean()
        correlation = (centred_N @ before_N) / (centred_N.norm() * before_N.norm())
    return torch.stack(
        [n, mean, variance, centred_N.pow(3).mean(), difference_N.min(), difference_N.max(), correlation]
    )


def read_gain(numbers: Sequence[float]) -> Gain:
    """Return the Gain that the numbers of ``paired`` describe; its skewness is 0 if all differences are equal."""
    n, mean, variance, third, worst, best, correlation = numbers
    deviation = math.sqrt(variance) if variance >= 0 else math.nan
    spread = deviation * math.sqrt((n - 1) / n)
    skewness = third / spread**3 if spread**3 > 0 else 0.0
    # Where differences are all equal, or were not finite at the look before, there is no correlation.
    repeats = 1.0 if math.isnan(correlation) else min(max(correlation, 0.0), 1.0)
    return Gain(int(n), mean, deviation, skewness, worst, best, repeats)


def lower_bound(gain: Gain, alpha: float) -> float:
    """Return what the true mean gain exceeds with probability 1 − ``alpha``; for alpha up to ½.

    Formula: m' − 3 s x / (1 + r + r²), with x = z(1 − alpha) / √n − γ / 6n, r³ = 1 + γ x, γ = min(skewness, 0) and s
    the deviation: Hall's bound, which is m' − s z / √n for γ = 0. It corrects the t statistic for a tail of examples
    that got far worse. A tail of those that got better may not raise it, and r is −½ at least, below which the bound
    would rise again as the tail grows. m' is the mean if one more example were as bad as the worst:
    (n · mean + worst) / (n + 1), for the tail that the sample has not shown.

    >>> round(lower_bound(Gain(800, 0.10, 0.5, skewness=0.0, worst=-1.5, best=1.5), 0.05), 4)
    0.0689
    """
    n, skewness = gain.n, min(gain.skewness, 0.0)
    mean = gain.mean + (gain.worst - gain.mean) / (n + 1)
    x = NormalDist().inv_cdf(1 - alpha) / math.sqrt(n) - skewness / (6 * n)
    root = max(math.cbrt(1 + skewness * x), -0.5)
    return mean - 3 * gain.deviation * x / (1 + root + root * root)


def upper_bound(gain: Gain, alpha: float) -> float:
    """Return what the true mean gain stays below with probability 1 − ``alpha``."""
    return -lower_bound(Gain(gain.n, -gain.mean, gain.deviation, -gain.skewness, -gain.best, -gain.worst), alpha)


def compare_losses(host: Tensor, trial: Tensor, alpha: float) -> Evidence:
    """Return what losses of the same examples show of the mean gain host − trial at one look, examples alone.

    Each bound is wrong with probability ``alpha``. How the gain moves from step to step is not in them.
    """
    gain = read_gain(paired(host, trial).tolist())
    lower, upper = lower_bound(gain, alpha), upper_bound(gain, alpha)
    return Evidence(gain.n, gain.mean, gain.standard_error, 0.0, lower, upper, alpha, 1)


def lasting_mean(means: Sequence[float], correlations: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a gain over several looks, and its standard error from step to step.

    What a step's weights add to the gain is taken as a stationary process of first order: at each look it is what it
    was at the look before, times a known correlation, and something new of its own. Weighted least squares on

        (mean now − correlation · mean before) / √(1 − correlation²)

    gives the mean with the smallest error. Two looks that correlate by 0.9 count little more than one. Needs two looks;
    the first correlation is not used.

    >>> lasting_mean([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    (2.0, 0.5773502691896257)
    """
    values, weights = [means[0]], [1.0]
    for before, now, correlation in zip(means, means[1:], correlations[1:], strict=False):
        new = math.sqrt(1 - correlation * correlation)
        values.append((now - correlation * before) / new)
        weights.append((1 - correlation) / new)
    information = math.fsum(weight * weight for weight in weights)
    mean = math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / information
    residual = math.fsum((value - mean * weight) ** 2 for value, weight in zip(values, weights, strict=True))
    return mean, math.sqrt(residual / (len(means) - 1) / information)


def seen_correlation(means: Sequence[float]) -> float:
    """Return how much the means of successive looks correlate, as far as they show it; 0 if they are too few.

    A straight rise is taken out. What is left correlates less than all was, by about (2 + 4ρ) / looks, since two
    numbers of the rise are estimated; this is put back.

    >>> seen_correlation([0.1, 0.2, 0.4, 0.3, 0.1, 0.0, 0.1, 0.2, 0.4])
    0.97
    """
    if (looks := len(means)) < GATE_DECISIONS[2]:
        return 0.0
    rise, start = linear_regression(range(looks), means)
    left = [mean - start - rise * look for look, mean in enumerate(means)]
    seen = sum(before * now for before, now in pairwise(left)) / (sum(mean * mean for mean in left) or 1.0)
    return min((looks * seen + 2) / (looks - 4), MOST_SEEN)


def lasting_evidence(
    gain: Gain, means: Sequence[float], correlations: Sequence[float], alpha: float, look: int, *, rising: bool = False
) -> Evidence:
    """Return what several looks show of the gain that lasts; each bound is wrong with probability ``alpha``.

    ``gain`` is that of the latest look, whose ``means`` come last. The distance of a bound from the mean is
    √(examples² + steps²): the first is that of ``lower_bound``, the second a quantile of Student's t times the
    standard error from step to step (the method of variance estimates recovery). Noise of the examples that is new at
    each look moves the means from look to look, so that it is in the second; the first has what repeats.

    ``rising``: a straight rise of the means is taken out, and the mean is the level that was reached. Its error is at
    most twice as large, since the rise is estimated, too.
    """
    freedom = len(means) - 1
    if rising:
        rise = max(0.0, linear_regression(range(len(means)), means).slope)
        means = [mean + rise * (freedom - place) for place, mean in enumerate(means)]
    mean, between = lasting_mean(means, correlations)
    if rising:
        mean, freedom = min(mean, gain.mean), freedom - 1
        between *= 2 * math.sqrt((freedom + 1) / freedom)
    deviation, shift = gain.deviation * math.sqrt(gain.repeats), mean - gain.mean
    here = replace(gain, mean=mean, deviation=deviation, worst=gain.worst + shift, best=gain.best + shift)
    steps = students_quantile(alpha, freedom) * between
    lower = mean - math.hypot(mean - lower_bound(here, alpha), steps)
    upper = mean + math.hypot(upper_bound(here, alpha) - mean, steps)
    return Evidence(gain.n, mean, here.standard_error, between, lower, upper, alpha, look)


@cache
def students_quantile(alpha: float, freedom: int) -> float:
    """Return what Student's t with so many degrees of freedom exceeds with probability ``alpha``, at most ½.

    Found by bisection on the distribution function, which for whole degrees of freedom is a finite sum.

    >>> round(students_quantile(0.025, 2), 3), round(students_quantile(0.025, 12), 3)
    (4.303, 2.179)
    """
    low, high = 0.0, 1.0
    while students_tail(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(60):  # halvings that a float can resolve
        middle = (low + high) / 2
        low, high = (middle, high) if students_tail(middle, freedom) > alpha else (low, middle)
    return high


def students_tail(value: float, freedom: int) -> float:
    """Return the probability that Student's t exceeds a ``value`` ≥ 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    cosine2 = freedom / (freedom + value * value)
    sine = value / math.sqrt(freedom + value * value)
    term, total = 1.0, 1.0 if freedom > 1 else 0.0
    for k in range(2 + freedom % 2, freedom - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    if freedom % 2:
        angle = math.atan(value / math.sqrt(freedom))
        inside = 2 / math.pi * (angle + sine * math.sqrt(cosine2) * total)
    else:
        inside = sine * total
    return (1 - inside) / 2


@dataclass(slots=True)
class Gate:
    """One gate before one seed, which looks once in each step.

    It decides at looks 3, 5, 8, 13 and so on, and what it decided holds until the next of them. Each decision spends
    the same share of ``alpha``, even if nothing was measured, because when a gate decides must not depend on the data.
    A decision rests on the last half of the looks: a seed's first gains are neither full nor lasting.

    Attributes:
        looks: How often it may look: the steps of an episode.
        alpha: Probability with which it may pass a seed that is not worth its price.
        steps: How often it has looked.
        means: The mean gains that were measured.
        correlations: How much the averages of weights of each of these looks correlate with those of the one before.
        decided: What it decided last.
        decides_last: Whether it decides at its last look, too, as before a set, which grows from the first step on. The
            level that a rising gain has reached there counts as well, each with half of the error probability.
        learns: Whether what it looks at has just begun to learn, so that gains rise. If not, gains correlate by what
            their averages of weights have in common, or by what they show themselves if that is more.
    """

    looks: int = GATE_LOOKS
    alpha: float = GATE_ALPHA
    steps: int = 0
    means: list[float] = field(default_factory=list)
    correlations: list[float] = field(default_factory=list)
    decided: Opinion | None = None
    decides_last: bool = False
    learns: bool = True

    def look(self, gain: Gain | None, price: float, correlation: float) -> Opinion:
        """Return the gate's opinion after this step; call it once a step.

        ``correlation`` is that of this step's averages of weights with those of the step before.
        """
        self.steps += 1
        if gain is None:
            return Opinion(Finding.UNKNOWN, Lack.GAIN, price=price)
        if gain.n < MIN_EXAMPLES_FOR_EVIDENCE or not gain.finite:
            return Opinion(Finding.UNKNOWN, Lack.EXAMPLES if gain.finite else Lack.FINITE, gain.n, price=price)
        self.means.append(gain.mean)
        self.correlations.append(correlation)
        decisions = {look for look in GATE_DECISIONS if look <= self.looks}
        if self.decides_last:
            decisions.add(self.looks)
        if self.steps in decisions and len(self.means) >= FIRST_LOOK:
            self.decided = self._decide(gain, price, self.alpha / len(decisions))
        return self.decided or Opinion(Finding.UNKNOWN, Lack.LOOKS, len(self.means), price=price)

    def _decide(self, gain: Gain, price: float, alpha: float) -> Opinion:
        recent = slice(-max(FIRST_LOOK, math.ceil(len(self.means) / 2)), None)
        least = 0.0 if self.learns else seen_correlation(self.means)
        correlations = [max(least, assumed) for assumed in self.correlations[recent]]
        # A set may still learn when the training ends.
        ways = (False, True) if self.decides_last and self.steps == self.looks else (False,)
        seen = gain, self.means[recent], correlations, alpha / len(ways), self.steps
        evidence = max((lasting_evidence(*seen, rising=way) for way in ways), key=lambda view: view.lower)
        return Opinion(Finding.SHOWN if evidence.lower > price else Finding.NOT_SHOWN, evidence=evidence, price=price)


_GATES_OF: Final = TypeAdapter(dict[tuple[int, Op], Gate])
_OPINIONS_OF: Final = TypeAdapter(dict[tuple[int, Op], Opinion])

_OP_BEHIND: Final = {Stage.TRAINING: Op.ADVANCE, Stage.HOLDING: Op.FOSSILISE}
"""The op that needs a gate, by the seed's stage."""

_GATES: Final[Mapping[Op, Literal["blending", "fossilisation"]]] = {
    Op.FOSSILISE: "fossilisation",
    Op.ADVANCE: "blending",
}
"""What the gates guard, by the op that they allow, the later one first."""


class Gates:
    """The gates of one garden.

    Args:
        settings: whether they are off, and whether seeds advance by themselves.
        looks: how often each may look: the steps of an episode.
    """

    def __init__(self, settings: GrowthConfig, looks: int = GATE_LOOKS) -> None:
        self._settings = settings
        self._looks = looks
        self._gates: dict[tuple[int, Op], Gate] = {}
        self._opinions: dict[tuple[int, Op], Opinion] = {}
        self._leads: dict[int, float] = {}
        self._candidates = 0

    @property
    def open(self) -> bool:
        """Whether gates are off."""
        return self._settings.gates == "off"

    def look(
        self,
        seeds: Iterable[Seed | Incubation],
        gains: Mapping[int, Gain],
        prices: Mapping[int, float],
        correlation: float,
    ) -> None:
        """Evaluate the gates on this step's gains and prices, keyed by numbers of seeds; call it once a step.

        A set of seeds is named by its incubation. Its gate is that before a seed is kept. Those of its seeds, before
        they are blended in, have an error probability of their own each.
        """
        self._leads = {number: gain.mean - prices[number] for number, gain in gains.items() if gain.finite}
        for seed in seeds:
            if (op := _OP_BEHIND.get(seed.stage)) is not None:
                key = (seed.number, op)
                if self.open:
                    self._opinions[key] = Opinion(Finding.OFF)
                    continue
                if key not in self._gates:
                    self._gates[key] = self._new_gate(op, decides_last=seed.is_set)
                self._opinions[key] = self._gates[key].look(gains.get(seed.number), prices[seed.number], correlation)

    def _new_gate(self, op: Op, *, decides_last: bool) -> Gate:
        """Return the gate before a seed.

        A seed that is blended in can be taken out again, so that its gate may be wrong more often. Those that may be
        kept share ``GATE_ALPHA``: the first has a half of it, the next a sixth, then a twelfth; all together, however
        many there are, less than the whole.
        """
        if op is Op.ADVANCE:
            return Gate(self._looks, BLENDING_ALPHA)
        self._candidates += 1
        alpha = GATE_ALPHA / (self._candidates * (self._candidates + 1))
        return Gate(self._looks, alpha, decides_last=decides_last, learns=decides_last)

    def opinion(self, seed: Seed | Incubation) -> Opinion | None:
        """Return the latest opinion of the gate before the seed; None if there is no gate or no opinion."""
        return self._opinions.get((seed.number, _OP_BEHIND.get(seed.stage, Op.WAIT)))

    def explain(self, reason: Reason, seed: Seed | Incubation) -> Reason:
        """Return ``reason`` with the last conclusion of the latest gate that looked at the seed, if gates are on."""
        for op, guarded in _GATES.items():
            if not self.open and (opinion := self._opinions.get((seed.number, op))) is not None:
                return replace(reason, gate=guarded, opinion=opinion)
        return reason

    def lead(self, seed: Seed) -> float:
        """Return the seed's gain in the latest step, less its price; −∞ if it is unknown."""
        return self._leads.get(seed.number, -math.inf)

    def refusal(self, seed: Seed | Incubation, op: Op) -> str | None:
        """Return why the gate before ``op`` is closed; None if it is open, or there is none."""
        if self.open or op not in _OP_BEHIND.values():
            return None
        opinion = self._opinions.get((seed.number, op))
        if opinion is None:
            return "its gate has not looked yet"
        return None if opinion.opens else f"its gate is closed: {opinion.reason}"

    def state_dict(self) -> State:
        """Return what each gate has seen and decided, its latest opinion, and the latest leads."""
        return encode_state(
            {
                "gates": {key: asdict(gate) for key, gate in self._gates.items()},
                "opinions": {key: asdict(opinion) for key, opinion in self._opinions.items()},
                "leads": self._leads,
                "candidates": self._candidates,
            }
        )

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of gates with the same settings."""
        saved = decode_state(state)
        self._gates = _GATES_OF.validate_python(saved["gates"])
        self._opinions = _OPINIONS_OF.validate_python(saved["opinions"])
        self._leads, self._candidates = saved["leads"], saved["candidates"]

    def ready(self, seed: Seed) -> bool:
        """Return whether a seed in training is to be blended in now without an action, because its gate is open."""
        waits = self._settings.auto_advance and seed.stage is Stage.TRAINING and not self.open
        return waits and self.refusal(seed, Op.ADVANCE) is None
