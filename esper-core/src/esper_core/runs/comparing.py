"""Which arm is better than which? Pairs of arms, seed by seed where they share seeds, judged together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import CONFIDENCE, MIN_SEEDS_FOR_VERDICT
from esper_core.runs.multiplicity import judged_together
from esper_core.runs.statistics import Comparison, Direction, can_be_reckoned_with, paired_comparison
from esper_core.runs.unpaired import unpaired_comparison

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one arm by environment seed. A seed is the same thing only in samples of one ``course``."""

    name: str
    by_seed: Mapping[int, float]
    course: str = ""


def compare_all(samples: Sequence[Sample], *, direction: Direction, margin: float) -> list[dict[str, Any]]:
    """Every pair of samples as summary.json has it, with p and verdict adjusted for all of them."""
    return compare_pairs(list(combinations(samples, 2)), direction=direction, margin=margin)


def compare_pairs(
    pairs: Sequence[tuple[Sample, Sample]], *, direction: Direction, margin: float
) -> list[dict[str, Any]]:
    """These pairs and no others, with p and verdict adjusted for all of them."""
    found = [_compared(a, b, direction, margin) for a, b in pairs]
    judged = judged_together(found, margin=margin, confidence=CONFIDENCE)
    return [_plain(a, b, one) for (a, b), one in zip(pairs, judged, strict=True)]


def shared_seeds(a: Sample, b: Sample) -> list[int]:
    """The seeds by which both are paired. None where they have other seeds, and too few in common for a verdict."""
    if a.course != b.course:
        return []
    shared = sorted(a.by_seed.keys() & b.by_seed.keys())
    return shared if len(shared) >= MIN_SEEDS_FOR_VERDICT or a.by_seed.keys() == b.by_seed.keys() else []


def _compared(a: Sample, b: Sample, direction: Direction, margin: float) -> Comparison | None:
    """None where a figure is no number."""
    if seeds := shared_seeds(a, b):
        own, other = ([sample.by_seed[seed] for seed in seeds] for sample in (a, b))
        compare = paired_comparison
    else:
        own, other = (list(sample.by_seed.values()) for sample in (a, b))
        compare = unpaired_comparison
    if not own or not other or not all(map(can_be_reckoned_with, own + other)):
        return None
    return compare(own, other, direction=direction, margin=margin, confidence=CONFIDENCE)


def _plain(a: Sample, b: Sample, one: Comparison | None) -> dict[str, Any]:
    """A comparison as JSON has it; where a figure is no number, nothing is known but who was to be compared."""
    shared = shared_seeds(a, b)
    ranks = None if one is None else one.ranks
    return {
        "a": a.name,
        "b": b.name,
        "difference": None if one is None else one.difference,
        "ci_low": None if one is None else one.low,
        "ci_high": None if one is None else one.high,
        "p": None if one is None else one.p,
        "p_margin": None if one is None else one.p_margin,
        "p_holm": None if one is None else one.p_holm,
        "n": len(shared) or min(len(a.by_seed), len(b.by_seed)),
        "paired": bool(shared),
        "verdict": "no difference shown" if one is None else one.verdict,
        "why": "not finite" if one is None else one.why,
        "effect_size": None if one is None else one.effect_size,
        "boot_low": None if one is None else one.boot_low,
        "boot_high": None if one is None else one.boot_high,
        "u": None if ranks is None else ranks.u,
        "u_p": None if ranks is None else ranks.p,
        "cliffs_delta": None if ranks is None else ranks.cliffs_delta,
    }
