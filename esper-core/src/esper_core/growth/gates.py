"""Gates: whether a seed's lasting gain pays for it. G2 before it is blended in, G5 before it is kept.

At each step the same validation examples go through the undisturbed host and through host and seed. A gate collects the
means of these differences, and decides at a few of its looks: it opens if a lower confidence bound on the gain that
lasts is above the price. The gate before a seed is kept is wrong about worthless seeds with probability ``GATE_ALPHA``
at most in a network's whole training, over all seeds, retries and looks. docs/concepts/gates.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from esper_core.growth.gains import lasting_evidence
from esper_core.growth.serialization import decode_state, encode_state
from esper_core.leyline.actions import Op
from esper_core.leyline.constants import (
    BLENDING_ALPHA,
    GATE_ALPHA,
    GATE_DECISIONS,
    GATE_LOOKS,
    MIN_EXAMPLES_FOR_EVIDENCE,
)
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import Evidence, Finding, Gain, Opinion, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from esper_core.growth.seeds import Seed
    from esper_core.leyline.protocols import State
    from esper_core.settings import GrowthConfig


@dataclass(slots=True)
class Gate:
    """One gate before one seed, which looks once in each step.

    It decides at looks 3, 5, 8, 13 and so on, and what it decided holds until the next of them. Each decision spends
    the same share of ``alpha``, even if nothing was measured, because when a gate decides must not depend on the data.
    A decision rests on the last two thirds of the looks: a seed's first gains are neither full nor lasting.

    Attributes:
        looks: How often it may look: the steps of an episode.
        alpha: Probability with which it may pass a seed that is not worth its price.
        steps: How often it has looked.
        means: The mean gains that were measured.
        correlations: How much the averages of weights of each of these looks correlate with those of the one before.
        decided: What it decided last.
    """

    looks: int = GATE_LOOKS
    alpha: float = GATE_ALPHA
    steps: int = 0
    means: list[float] = field(default_factory=list)
    correlations: list[float] = field(default_factory=list)
    decided: Opinion | None = None

    def look(self, gain: Gain | None, price: float, correlation: float) -> Opinion:
        """Return the gate's opinion after this step; call it once a step.

        ``correlation`` is that of this step's averages of weights with those of the step before.
        """
        self.steps += 1
        missing = _missing(gain)
        if gain is None or missing:
            return Opinion(Finding.UNKNOWN, missing, price=price)
        self.means.append(gain.mean)
        self.correlations.append(correlation)
        decisions = [look for look in GATE_DECISIONS if look <= self.looks]
        enough = min(GATE_DECISIONS)
        if self.steps in decisions and len(self.means) >= enough:
            self.decided = self._decide(gain, price, self.alpha / len(decisions))
        if self.decided is None:
            note = f"the gate decides from look {enough} on; this is look {len(self.means)}"
            return Opinion(Finding.UNKNOWN, note, price=price)
        return self.decided

    def _decide(self, gain: Gain, price: float, alpha: float) -> Opinion:
        recent = max(min(GATE_DECISIONS), math.ceil(2 * len(self.means) / 3))
        evidence = lasting_evidence(gain, self.means[-recent:], self.correlations[-recent:], alpha, self.steps)
        finding = Finding.SHOWN if evidence.lower > price else Finding.NOT_SHOWN
        return Opinion(finding, evidence=evidence, price=price)


def _missing(gain: Gain | None) -> str:
    """Return why nothing can be concluded from a measurement; empty if something can."""
    if gain is None:
        return "the gain was not measured"
    if gain.n < MIN_EXAMPLES_FOR_EVIDENCE:
        return f"{gain.n} examples are too few to judge by: {MIN_EXAMPLES_FOR_EVIDENCE} at least"
    return "" if gain.finite else f"a loss is not finite: the mean gain is {gain.mean}"


GATES_OFF: Final = Opinion(Finding.OFF, "gates are off")

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
        self._leads: dict[int, float] = {}
        self._candidates = 0

    @property
    def open(self) -> bool:
        """Whether gates are off."""
        return self._settings.gates == "off"

    def look(
        self, seeds: Iterable[Seed], gains: Mapping[int, Gain], prices: Mapping[int, float], correlation: float
    ) -> None:
        """Evaluate the gates on this step's gains and prices, keyed by the seeds' numbers; call it once a step."""
        self._leads = {number: gain.mean - prices[number] for number, gain in gains.items() if gain.finite}
        for seed in seeds:
            if (op := _OP_BEHIND.get(seed.stage)) is not None:
                key = (seed.number, op)
                if self.open:
                    self._opinions[key] = GATES_OFF
                    continue
                if key not in self._gates:
                    self._gates[key] = self._new_gate(op)
                self._opinions[key] = self._gates[key].look(gains.get(seed.number), prices[seed.number], correlation)

    def _new_gate(self, op: Op) -> Gate:
        """Return the gate before a seed.

        A seed that is blended in can be taken out again, so that its gate may be wrong more often. Those that may be
        kept share ``GATE_ALPHA``: the first has a half of it, the next a sixth, then a twelfth; all together, however
        many there are, less than the whole.
        """
        if op is Op.ADVANCE:
            return Gate(self._looks, BLENDING_ALPHA)
        self._candidates += 1
        return Gate(self._looks, GATE_ALPHA / (self._candidates * (self._candidates + 1)))

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
        return self._leads.get(seed.number, -math.inf)

    def refusal(self, seed: Seed, op: Op) -> str | None:
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
        self._gates = {
            (number, Op(op)): Gate(**{**gate, "decided": _opinion(gate["decided"])})
            for (number, op), gate in saved["gates"].items()
        }
        opinions = {(number, Op(op)): _opinion(opinion) for (number, op), opinion in saved["opinions"].items()}
        self._opinions = {key: opinion for key, opinion in opinions.items() if opinion is not None}
        self._leads, self._candidates = saved["leads"], saved["candidates"]

    def ready(self, seed: Seed) -> bool:
        """Return whether a seed in training is to be blended in now without an action, because its gate is open."""
        if self.open or not self._settings.auto_advance or seed.stage is not Stage.TRAINING:
            return False
        opinion = self.opinion(seed)
        return opinion is not None and opinion.opens


def _opinion(saved: dict[str, Any] | None) -> Opinion | None:
    if saved is None:
        return None
    evidence = saved["evidence"]
    parts = {"finding": Finding(saved["finding"]), "evidence": None if evidence is None else Evidence(**evidence)}
    return Opinion(**{**saved, **parts})
