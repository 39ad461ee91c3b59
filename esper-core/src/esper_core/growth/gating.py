"""Who may pass? Two gates before each seed: G2 before it is blended in, G5 before it is kept for good.

They believe the gain over the undisturbed host alone, measured once a step and held against the price of the seed's
parameters. What a gate does not know it does not let pass; what it said stands in the signals.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from esper_core.growth.evidence import Gate, price_of
from esper_core.growth.memory import heard, told
from esper_core.leyline.actions import Op
from esper_core.leyline.constants import GATE_ALPHA, GATE_LOOKS
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import Evidence, Finding, Gain, Opinion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from esper_core.config import GrowthConfig
    from esper_core.growth.seed import Seed
    from esper_core.leyline.protocols import State

_OP_BEHIND: Final = {Stage.TRAINING: Op.ADVANCE, Stage.HOLDING: Op.FOSSILISE}
"""What a seed in a stage asks a gate for."""


class Gates:
    """The gates of one garden.

    settings: how strict they are, and what a parameter costs. looks: how often each may look, the steps of the episode.
    """

    def __init__(self, settings: GrowthConfig, looks: int = GATE_LOOKS) -> None:
        self._settings = settings
        self._looks = looks
        self._gates: dict[tuple[int, Op], Gate] = {}
        self._opinions: dict[tuple[int, Op], Opinion] = {}
        self._gains: Mapping[int, Gain] = {}

    @property
    def open(self) -> bool:
        """Whether nothing is asked of anybody."""
        return self._settings.gates == "off"

    def look(self, seeds: Iterable[Seed], gains: Mapping[int, Gain]) -> None:
        """Look at what was measured in this step, by the seeds' numbers; to be called once a step."""
        self._gains = dict(gains)
        for seed in seeds:
            if (op := _OP_BEHIND.get(seed.stage)) is not None:
                key = (seed.number, op)
                gate = self._gates.setdefault(key, self._new_gate(op))
                price = price_of(seed.parameter_count, self._settings.price)
                self._opinions[key] = gate.look(gains.get(seed.number), price)

    def _new_gate(self, op: Op) -> Gate:
        """A gate before one seed. Those before a nursery share between them the chance to be wrong."""
        shared_by = self._settings.nursery if op is Op.ADVANCE else 1
        return Gate(self._settings.gates, self._looks, alpha=GATE_ALPHA / shared_by)

    def opinion(self, seed: Seed) -> Opinion | None:
        """What the gate that the seed stands before said last; None where it stands before none, or nobody looked."""
        op = _OP_BEHIND.get(seed.stage)
        return None if op is None else self._opinions.get((seed.number, op))

    def lead(self, seed: Seed) -> float:
        """What the seed gained in the latest step, less its price, in nats; nothing is below what is unknown."""
        gain = self._gains.get(seed.number)
        if gain is None or not gain.finite:
            return -math.inf
        return gain.mean - price_of(seed.parameter_count, self._settings.price)

    def refusal(self, seed: Seed, op: Op) -> str | None:
        """Why the gate before ``op`` stays shut; None where it opens, or there is none."""
        if self.open or op not in _OP_BEHIND.values():
            return None
        opinion = self._opinions.get((seed.number, op))
        if opinion is None:
            return "its gate has not looked yet"
        return None if opinion.opens else f"its gate found it {opinion.finding}: {opinion.reason}"

    def state(self) -> State:
        """The looks that were spent, what was said last, and what was measured last."""
        return told(
            {
                "gates": {key: gate.state() for key, gate in self._gates.items()},
                "opinions": {key: asdict(opinion) for key, opinion in self._opinions.items()},
                "gains": {number: asdict(gain) for number, gain in self._gains.items()},
            }
        )

    def load(self, state: State) -> None:
        """Stand where other gates stood, of the same settings."""
        known = heard(state)
        self._gates = {}
        for (number, op), spent in known["gates"].items():
            gate = self._gates[number, Op(op)] = self._new_gate(Op(op))
            gate.restore(spent)
        self._opinions = {(number, Op(op)): _opinion(opinion) for (number, op), opinion in known["opinions"].items()}
        self._gains = {number: Gain(**gain) for number, gain in known["gains"].items()}

    def ready(self, seed: Seed) -> bool:
        """Whether a seed in training has shown what it takes to be blended in, and is not to wait until it is asked."""
        if self.open or not self._settings.auto_advance or seed.stage is not Stage.TRAINING:
            return False
        opinion = self.opinion(seed)
        return opinion is not None and opinion.opens


def _opinion(known: dict[str, Any]) -> Opinion:
    evidence = known["evidence"]
    return Opinion(
        Finding(known["finding"]), known["reason"], None if evidence is None else Evidence(**evidence), known["price"]
    )
