"""Candidates of a probe: each a blueprint in a slot, what their trials showed, and how they rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.growth import Host, compare_losses
from esper_core.leyline.constants import GATE_ALPHA
from esper_core.plugins import load_plugins
from esper_grow.gardener.choices import blueprints_of
from esper_grow.probes.budget import LEVELS
from esper_grow.probes.results import ProbeRow
from esper_run.app.descriptions import describe

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor, nn

    from esper_core.growth import Variety
    from esper_core.leyline import Evidence


@dataclass(slots=True)
class ProbeCandidate:
    """One blueprint in one slot, and what is known of it.

    Attributes:
        price: What the gain has to exceed; known once the seed was planted in the trained host.
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

    def gain(self, host: Sequence[Tensor], level: int, alpha: float = GATE_ALPHA) -> Evidence:
        """Return what the trial of a level shows of its gain over the losses of the ``host`` continued without it.

        The bounds are wrong with probability ``alpha``.
        """
        return compare_losses(host[level], self.losses[level], alpha)


def find_candidates(model: nn.Module, blueprints: Any) -> list[ProbeCandidate]:
    """Return what is to be tried in the slots of ``model``; their prices follow when the host was trained.

    Raises:
        GrowthError: Nothing fits (E351).
    """
    host = Host(model)
    varieties = blueprints_of(blueprints, host, load_plugins())
    candidates = []
    for slot in host.slots:
        for variety in varieties[slot.name]:
            assert slot.site is not None
            description = describe(variety, slot.site)
            candidates.append(ProbeCandidate(slot.name, variety, 0.0, description.parameters, description.flops))
    return candidates


def best_of(
    candidates: Sequence[ProbeCandidate], host: Sequence[Tensor], number: int, level: int
) -> list[ProbeCandidate]:
    """Return the best of those that reached a level, the best first: alternately by gain, and by gain less price.

    Short trials show less of a gain than long ones, so the price alone would favour small blueprints.
    """
    reached = [candidate for candidate in candidates if len(candidate.losses) == level]
    if not level:
        return reached
    gains = {id(candidate): candidate.gain(host, level - 1).mean for candidate in reached}
    by_gain = sorted(reached, key=lambda candidate: -gains[id(candidate)])
    by_net = sorted(reached, key=lambda candidate: candidate.price - gains[id(candidate)])
    chosen = {id(candidate): candidate for pair in zip(by_gain, by_net, strict=True) for candidate in pair}
    return list(chosen.values())[:number]


def rows_of(
    candidates: Sequence[ProbeCandidate],
    host: Sequence[Tensor],
    lengths: Sequence[int],
    host_seconds: float,
    undecided: Collection[int],
) -> tuple[ProbeRow, ...]:
    """Return a row for each candidate that was tried: those that pay first, then by gain less price.

    Args:
        candidates: All of them: they share the probability with which a bound is wrong.
        host: The losses of the host continued without a seed, at each level.
        lengths: The steps of each level.
        host_seconds: What a training step of the host takes.
        undecided: Levels of which a candidate that came no further may still pay.
    """

    def row(candidate: ProbeCandidate, first: ProbeCandidate) -> ProbeRow:
        level = len(candidate.losses) - 1
        common = min(level, len(first.losses) - 1)
        gain = candidate.gain(host, level, GATE_ALPHA / (LEVELS * len(candidates)))
        behind = compare_losses(candidate.losses[common], first.losses[common], GATE_ALPHA)
        return ProbeRow(
            slot=candidate.slot,
            blueprint=candidate.variety.id,
            gain=gain.mean,
            error=gain.standard_error,
            at_least=gain.lower,
            price=candidate.price,
            parameters=candidate.parameters,
            flops=candidate.flops,
            seconds=max(0.0, candidate.seconds - host_seconds),
            steps=lengths[level],
            behind=behind.mean + candidate.price - first.price,
            behind_error=behind.standard_error,
            pays=None if level in undecided else level == LEVELS - 1 and gain.lower > candidate.price,
        )

    tried = [candidate for candidate in candidates if candidate.losses and not candidate.failure]
    alone = {id(candidate): row(candidate, candidate) for candidate in tried}
    tried.sort(key=lambda candidate: (not alone[id(candidate)].pays, -alone[id(candidate)].net))
    return tuple(row(candidate, tried[0]) for candidate in tried)
