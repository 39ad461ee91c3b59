"""Candidates of a probe: each a blueprint in a slot, what their trials showed, and how they rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.gardener.choices import blueprints_of
from esper_core.growth import describe, device_of, lower_bound, paired, read_gain, slots_of
from esper_core.leyline.constants import GATE_ALPHA
from esper_core.plugins import load_plugins
from esper_core.probes.budget import LEVELS
from esper_core.probes.results import ProbeRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from esper_core.growth import Variety
    from esper_core.leyline import Gain


@dataclass(slots=True)
class ProbeCandidate:
    """One blueprint in one slot, and what is known of it.

    Attributes:
        losses: The validation losses of host and seed after the trial of each level.
        seconds: Duration of a training step.
        failure: Why it cannot be tried any more.
    """

    slot: str
    variety: Variety
    price: float
    parameters: int
    flops: int | None
    losses: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""

    def gain(self, host: Sequence[Tensor], level: int) -> Gain:
        """Return its gain after the trial of a level, over the losses of the ``host`` continued without it."""
        return read_gain(paired(host[level], self.losses[level]).tolist())


def find_candidates(model: nn.Module, blueprints: Any, price: float) -> list[ProbeCandidate]:
    """Return what is to be tried in the slots of ``model``; ``price`` is that of a parameter.

    Raises:
        GrowthError: Nothing fits (E351).
    """
    slots = slots_of(model).each()
    varieties = blueprints_of(blueprints, slots, load_plugins().registry, device_of(model))
    found = []
    for slot in slots:
        for variety in varieties[slot.name]:
            assert slot.site is not None
            known = describe(variety, slot.site)
            cost = known.parameters * price
            found.append(ProbeCandidate(slot.name, variety, cost, known.parameters, known.flops))
    return found


def best_of(
    candidates: Sequence[ProbeCandidate], host: Sequence[Tensor], number: int, level: int
) -> list[ProbeCandidate]:
    """Return the best of those that reached a level, the best first: alternately by gain, and by gain less price.

    Short trials show less of a gain than long ones, so the price alone would favour small blueprints.
    """
    reached = [one for one in candidates if len(one.losses) == level]
    if not level:
        return reached
    gains = {id(one): one.gain(host, level - 1).mean for one in reached}
    by_gain = sorted(reached, key=lambda one: -gains[id(one)])
    by_net = sorted(reached, key=lambda one: one.price - gains[id(one)])
    chosen = {id(one): one for pair in zip(by_gain, by_net, strict=True) for one in pair}
    return list(chosen.values())[:number]


def rows_of(
    candidates: Sequence[ProbeCandidate],
    host: Sequence[Tensor],
    lengths: Sequence[int],
    host_seconds: float,
    *,
    decided: bool,
) -> tuple[ProbeRow, ...]:
    """Return a row for each candidate that was tried: those that pay first, then by gain less price.

    Args:
        candidates: All of them: they share the probability with which a bound is wrong.
        host: The losses of the host continued without a seed, at each level.
        lengths: The steps of each level.
        host_seconds: What a training step of the host takes.
        decided: Whether the longest trials are over.
    """

    def row(one: ProbeCandidate, first: ProbeCandidate) -> ProbeRow:
        level = len(one.losses) - 1
        common = min(level, len(first.losses) - 1)
        gain = one.gain(host, level)
        at_least = lower_bound(gain, GATE_ALPHA / (LEVELS * len(candidates)))
        behind = read_gain(paired(one.losses[common], first.losses[common]).tolist())
        return ProbeRow(
            slot=one.slot,
            blueprint=one.variety.id,
            gain=gain.mean,
            error=gain.standard_error,
            at_least=at_least,
            price=one.price,
            parameters=one.parameters,
            flops=one.flops,
            seconds=max(0.0, one.seconds - host_seconds),
            steps=lengths[level],
            behind=behind.mean + one.price - first.price,
            behind_error=behind.standard_error,
            pays=(level == LEVELS - 1 and at_least > one.price) if decided else None,
        )

    tried = [one for one in candidates if one.losses and not one.failure]
    alone = {id(one): row(one, one) for one in tried}
    tried.sort(key=lambda one: (not alone[id(one)].pays, -alone[id(one)].net))
    return tuple(row(one, tried[0]) for one in tried)
