"""Gates: whether a seed's gain pays for its parameters. G2 before it is blended in, G5 before it is kept.

The same validation examples go through the undisturbed host and through host and seed; a gate takes the differences of
their losses, example by example, and compares a lower confidence bound on the mean with the price. It is wrong about a
worthless seed with probability ``alpha`` at most over all of its looks: each look spends a fixed share of ``alpha``. An
unknown gain does not pass. docs/concepts/gates.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from esper_core.growth.serialization import decode_state, encode_state
from esper_core.leyline.actions import Op
from esper_core.leyline.constants import CONFIDENCE, FIRST_LOOK, GATE_ALPHA, GATE_LOOKS, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import Evidence, Finding, Gain, Opinion, Reason, Strictness

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from esper_core.growth.seeds import Seed
    from esper_core.leyline.protocols import State
    from esper_core.settings import GrowthConfig


NUMBERS: Final = 6
"""How many numbers ``paired`` returns."""


def paired(host: Tensor, trial: Tensor) -> Tensor:
    """Return the statistics of the differences host − trial, on the device in float64.

    Both are (n,): losses in nats, or scores of which a lower one is better. Six numbers: n, mean, variance with n − 1,
    third central moment with n, smallest, largest. A loss that is not finite shows in the mean, and with fewer than two
    examples the variance is NaN.
    """
    if host.shape != trial.shape or host.dim() != 1 or len(host) == 0:
        shapes = f"{tuple(host.shape)} and {tuple(trial.shape)}"
        msg = f"host and trial need one number each for every example, and at least one. Received: {shapes}"
        raise ValueError(msg)
    # In float64, because differences of nearly equal losses have few digits left.
    difference_N = host.detach().double() - trial.detach().double()
    n = torch.full((), float(len(difference_N)), dtype=torch.float64, device=difference_N.device)
    mean = difference_N.mean()
    centred_N = difference_N - mean
    variance = centred_N.square().sum() / (n - 1)
    return torch.stack([n, mean, variance, centred_N.pow(3).mean(), difference_N.min(), difference_N.max()])


def read_gain(numbers: Sequence[float]) -> Gain:
    """Return the Gain that the six numbers of ``paired`` describe; its skewness is 0 if all differences are equal."""
    n, mean, variance, third, worst, best = numbers
    deviation = math.sqrt(variance) if variance >= 0 else math.nan
    spread = deviation * math.sqrt((n - 1) / n)
    skewness = third / spread**3 if spread**3 > 0 else 0.0
    return Gain(int(n), mean, deviation, skewness, worst, best)


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
    mirrored = Gain(gain.n, -gain.mean, gain.deviation, -gain.skewness, -gain.best, -gain.worst)
    return -lower_bound(mirrored, alpha)


def _evidence(gain: Gain, alpha: float, look: int = 1) -> Evidence:
    lower, upper = lower_bound(gain, alpha), upper_bound(gain, alpha)
    return Evidence(gain.n, gain.mean, gain.standard_error, lower, upper, alpha, look)


def compare_losses(host: Tensor, trial: Tensor, alpha: float) -> Evidence:
    """Return what losses of the same examples show of the mean gain host − trial; a bound is wrong with ``alpha``."""
    return _evidence(read_gain(paired(host, trial).tolist()), alpha)


def judge(gain: Gain | None, price: float, *, strictness: Strictness, alpha: float, look: int = 1) -> Opinion:
    """Return a gate's opinion at one look at ``gain``, whose price is ``price``.

    strict: SHOWN if the lower bound that is wrong with probability ``alpha``, this look's share, is above the price.
    permissive: SHOWN if the mean is above the price and the lower bound of this look alone, at 95 %, above 0. Earlier
    looks cost nothing, so a seed without any gain passes more often than once in twenty.
    off: always OFF, which opens the gate.
    UNKNOWN if nothing was measured, a loss was not finite, or there were too few examples.
    """
    if strictness == "off":
        return Opinion(Finding.OFF, "gates are off")
    if gain is None:
        return Opinion(Finding.UNKNOWN, "the gain was not measured", price=price)
    if gain.n < MIN_EXAMPLES_FOR_EVIDENCE:
        reason = f"{gain.n} examples are too few to judge by: {MIN_EXAMPLES_FOR_EVIDENCE} at least"
        return Opinion(Finding.UNKNOWN, reason, price=price)
    if not gain.finite:
        return Opinion(Finding.UNKNOWN, f"a loss is not finite: the mean gain is {gain.mean}", price=price)
    strict = strictness == "strict"
    share = alpha if strict else 1 - CONFIDENCE
    evidence = _evidence(gain, share, look)
    shown = evidence.mean > price and evidence.lower > (price if strict else 0.0)
    return Opinion(Finding.SHOWN if shown else Finding.NOT_SHOWN, evidence=evidence, price=price, strictness=strictness)


@dataclass(slots=True)
class Gate:
    """One gate before one seed, asked once in each step. It looks from step ``first`` on, ``looks`` times.

    A strict look spends ``alpha`` / ``looks``, even if nothing was measured, because which steps count must not
    depend on the data. When all are spent the answer is UNKNOWN. A permissive gate has no last look.

    Attributes:
        strictness: as in ``judge``.
        looks: how often it may look.
        alpha: probability with which it may pass a seed that is not worth its price.
        first: the first step in which it looks, counted from 1.
        steps: how often it was asked.
    """

    strictness: Strictness = "strict"
    looks: int = GATE_LOOKS
    alpha: float = GATE_ALPHA
    first: int = FIRST_LOOK
    steps: int = 0

    def look(self, gain: Gain | None, price: float) -> Opinion:
        """Return the gate's opinion on what was measured in this step; call it once a step."""
        self.steps += 1
        number = self.steps - self.first + 1
        unknown = ""
        if self.strictness != "off" and number < 1:
            unknown = f"the gate looks from step {self.first} on; this is step {self.steps}"
        elif self.strictness == "strict" and number > self.looks:
            unknown = f"all {self.looks} looks of the gate are spent"
        if unknown:
            return Opinion(Finding.UNKNOWN, unknown, price=price)
        # Bonferroni's share, which holds however much looks depend on each other, as those of a training do.
        return judge(gain, price, strictness=self.strictness, alpha=self.alpha / self.looks, look=number)


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
        settings: how strict they are, and what a parameter costs.
        looks: how often each may look: the steps of an episode.
    """

    def __init__(self, settings: GrowthConfig, looks: int = GATE_LOOKS) -> None:
        self._settings = settings
        self._looks = looks
        self._gates: dict[tuple[int, Op], Gate] = {}
        self._opinions: dict[tuple[int, Op], Opinion] = {}
        self._gains: Mapping[int, Gain] = {}

    @property
    def open(self) -> bool:
        """Whether gates are off."""
        return self._settings.gates == "off"

    def look(self, seeds: Iterable[Seed], gains: Mapping[int, Gain]) -> None:
        """Evaluate the gates on this step's gains, keyed by the seeds' numbers; call it once a step."""
        self._gains = dict(gains)
        for seed in seeds:
            if (op := _OP_BEHIND.get(seed.stage)) is not None:
                key = (seed.number, op)
                gate = self._gates.setdefault(key, self._new_gate(op))
                price = seed.parameter_count * self._settings.price
                self._opinions[key] = gate.look(gains.get(seed.number), price)

    def _new_gate(self, op: Op) -> Gate:
        """Return a gate for one seed. Those of a nursery share ``GATE_ALPHA`` between them."""
        shared_by = self._settings.nursery if op is Op.ADVANCE else 1
        return Gate(self._settings.gates, self._looks, alpha=GATE_ALPHA / shared_by)

    def opinion(self, seed: Seed) -> Opinion | None:
        """Return the latest opinion of the gate before the seed; None if there is no gate or no opinion."""
        op = _OP_BEHIND.get(seed.stage)
        return None if op is None else self._opinions.get((seed.number, op))

    def explain(self, reason: Reason, seed: Seed) -> Reason:
        """Return ``reason`` with the last conclusion of the latest gate that looked at the seed, if gates are on."""
        for op, guarded in _GATES.items():
            if not self.open and (opinion := self._opinions.get((seed.number, op))) is not None:
                return replace(reason, gate=guarded, opinion=opinion)
        return reason

    def lead(self, seed: Seed) -> float:
        """Return the seed's gain in the latest step, less its price; −∞ if it is unknown."""
        gain = self._gains.get(seed.number)
        if gain is None or not gain.finite:
            return -math.inf
        return gain.mean - seed.parameter_count * self._settings.price

    def refusal(self, seed: Seed, op: Op) -> str | None:
        """Return why the gate before ``op`` is closed; None if it is open, or there is none."""
        if self.open or op not in _OP_BEHIND.values():
            return None
        opinion = self._opinions.get((seed.number, op))
        if opinion is None:
            return "its gate has not looked yet"
        return None if opinion.opens else f"its gate is closed: {opinion.reason}"

    def state_dict(self) -> State:
        """Return the steps of each gate, its latest opinion, and the latest gains."""
        return encode_state(
            {
                "gates": {key: {"steps": gate.steps} for key, gate in self._gates.items()},
                "opinions": {key: asdict(opinion) for key, opinion in self._opinions.items()},
                "gains": {number: asdict(gain) for number, gain in self._gains.items()},
            }
        )

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of gates with the same settings."""
        saved = decode_state(state)
        self._gates = {}
        for (number, op), spent in saved["gates"].items():
            self._gates[number, Op(op)] = replace(self._new_gate(Op(op)), **spent)
        self._opinions = {(number, Op(op)): _opinion(opinion) for (number, op), opinion in saved["opinions"].items()}
        self._gains = {number: Gain(**gain) for number, gain in saved["gains"].items()}

    def ready(self, seed: Seed) -> bool:
        """Return whether a seed in training is to be blended in now without an action, because its gate is open."""
        if self.open or not self._settings.auto_advance or seed.stage is not Stage.TRAINING:
            return False
        opinion = self.opinion(seed)
        return opinion is not None and opinion.opens


def _opinion(saved: dict[str, Any]) -> Opinion:
    evidence = saved["evidence"]
    parts = {"finding": Finding(saved["finding"]), "evidence": None if evidence is None else Evidence(**evidence)}
    return Opinion(**{**saved, **parts})
