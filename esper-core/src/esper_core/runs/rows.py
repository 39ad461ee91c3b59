"""What did a run measure and do, as tables? Each table is a list of plain dicts that all have the same keys.

They are made for ``pandas.DataFrame(rows)`` and for whatever else takes records. A number that was measured and is not
finite is ``nan``; what was not measured, or is not known, is None. Losses and gains are in nats. Steps count from 0 in
each episode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypedDict

from esper_core.leyline.events import EpisodeFinished, GovernorActed, StageChanged, StepFinished
from esper_core.leyline.lifecycle import ENDED, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import SeedSignals


class StepRow(TypedDict):
    """One step of one environment."""

    round: int
    arm: str
    seed: int
    """The environment's, as in every table."""
    step: int
    train_loss: float
    """Mean over the step's training batches."""
    validation_loss: float
    validation_metric: float
    parameters: int
    host_parameters: int
    fossils: int
    """Seeds kept so far."""
    living: int
    """Seeds whose fate was open when the step was measured."""
    reward: float | None
    """What the action before this step earned, all terms together; None where nothing was rewarded."""
    action: str
    """What was decided after the step."""


class SeedRow(TypedDict):
    """The life of one seed. A step is the one at which it first came to a stage; None: it never did."""

    round: int
    arm: str
    seed: int
    seed_id: int
    """Counts the seeds of an episode from 0."""
    slot: str
    blueprint: str
    parameters: int
    born: int | None
    training: int | None
    blending: int | None
    holding: int | None
    draining: int | None
    fossilized: int | None
    pruned: int | None
    stage: str
    """Where it stands."""
    fate: str | None
    """``fossilized`` or ``pruned``; None: still open."""
    reason: str
    """Why it changed its stage last."""
    gain: float | None
    """When it was measured last: by how much the loss is lower with it than without."""
    gain_error: float | None
    """Standard error of the gain."""
    gain_examples: int | None
    gain_step: int | None
    gain_stage: str | None
    """Its stage at that step."""
    price: float | None
    """What its gate held the gain against."""


class StageRow(TypedDict):
    """One change of a seed's stage."""

    round: int
    arm: str
    seed: int
    step: int
    seed_id: int
    slot: str
    blueprint: str
    was: str | None
    """None: it was born."""
    now: str
    parameters: int
    reason: str


class EpisodeRow(TypedDict):
    """One environment at its end."""

    round: int
    arm: str
    seed: int
    steps: int
    """Fewer than the episode's where it was stopped early."""
    test_loss: float
    test_metric: float
    validation_metric: float
    parameters: int
    host_parameters: int
    fossils: int
    reward: float | None
    """Of the whole episode; None where it is unknown, for want of a twin."""
    grown: str
    """What was kept, and where, with commas between."""


class ComparisonRow(TypedDict):
    """Two arms compared: figures are of a against b, positive where a is better. None: unknown, or not finite."""

    a: str
    b: str
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    paired: bool
    p: float | None
    p_holm: float | None
    """Adjusted for all comparisons."""
    verdict: str
    why: str | None
    """What a verdict lacks."""


class GovernorRow(TypedDict):
    """One thing that the governor did."""

    round: int
    arm: str
    seed: int
    step: int
    act: str
    verdict: str
    reason: str
    back_to: int | None
    """The step that it went back to; -1: before any training."""
    penalty: float
    withdrawn: bool
    """Whether a blueprint grows no more."""


def step_rows(events: Iterable[Event]) -> Iterator[StepRow]:
    """A row for each environment and step."""
    for event in events:
        if isinstance(event, StepFinished):
            signals = event.signals
            yield {
                "round": event.round,
                "arm": event.arm,
                "seed": event.seed,
                "step": event.step,
                "train_loss": _number(signals.train_loss),
                "validation_loss": _number(signals.validation_loss),
                "validation_metric": _number(signals.validation_metric),
                "parameters": signals.parameters,
                "host_parameters": signals.host_parameters,
                "fossils": signals.fossils,
                "living": len(signals.seeds),
                "reward": _sum(event.reward.values()) if event.reward else None,
                "action": event.action,
            }


def stage_rows(events: Iterable[Event]) -> Iterator[StageRow]:
    """A row for each change of a stage."""
    for event in events:
        if isinstance(event, StageChanged):
            yield {
                "round": event.round,
                "arm": event.arm,
                "seed": event.seed,
                "step": event.step,
                "seed_id": event.seed_id,
                "slot": event.slot,
                "blueprint": event.blueprint,
                "was": None if event.was is None else event.was.value,
                "now": event.now.value,
                "parameters": event.parameters,
                "reason": event.reason,
            }


def seed_rows(events: Iterable[Event]) -> list[SeedRow]:
    """A row for each seed, in the order of their births."""
    lives: dict[tuple[int, str, int, int], SeedRow] = {}
    alike: dict[tuple[int, str, int, str, str], list[SeedRow]] = {}
    for event in events:
        if isinstance(event, StageChanged):
            key = (event.round, event.arm, event.seed, event.seed_id)
            if key not in lives:
                lives[key] = _newborn(event)
                alike.setdefault((*key[:3], event.slot, event.blueprint), []).append(lives[key])
            _move_on(lives[key], event)
        elif isinstance(event, StepFinished):
            for slot in event.signals.slots:
                for seen in slot.seeds:
                    here = (event.round, event.arm, event.seed, slot.name, seen.blueprint)
                    _measure(alike.get(here, ()), seen, event.step)
    return list(lives.values())


def episode_rows(events: Iterable[Event]) -> Iterator[EpisodeRow]:
    """A row for each environment that came to its end."""
    for event in events:
        if isinstance(event, EpisodeFinished):
            yield {
                "round": event.round,
                "arm": event.arm,
                "seed": event.seed,
                "steps": event.steps,
                "test_loss": _number(event.test_loss),
                "test_metric": _number(event.test_metric),
                "validation_metric": _number(event.validation_metric),
                "parameters": event.parameters,
                "host_parameters": event.host_parameters,
                "fossils": event.fossils,
                "reward": None if event.reward is None else _number(event.reward),
                "grown": ", ".join(names_of_grown(event)),
            }


def governor_rows(events: Iterable[Event]) -> Iterator[GovernorRow]:
    """A row for each thing that the governor did."""
    for event in events:
        if isinstance(event, GovernorActed):
            yield {
                "round": event.round,
                "arm": event.arm,
                "seed": event.seed,
                "step": event.step,
                "act": event.act,
                "verdict": event.verdict,
                "reason": event.reason,
                "back_to": event.back_to,
                "penalty": _number(event.penalty),
                "withdrawn": event.withdrawn,
            }


def comparison_rows(results: Mapping[str, Any] | None) -> list[ComparisonRow]:
    """A row for each pair of arms in the results of a summary; none where there is no summary yet."""
    return [
        {
            "a": one["a"],
            "b": one["b"],
            "difference": one["difference"],
            "ci_low": one["ci_low"],
            "ci_high": one["ci_high"],
            "n": one["n"],
            "paired": one.get("paired", True),
            "p": one["p"],
            "p_holm": one.get("p_holm"),
            "verdict": one["verdict"],
            "why": one.get("why"),
        }
        for one in (() if results is None else results["comparisons"])
    ]


def names_of_grown(event: EpisodeFinished) -> list[str]:
    """What an environment kept: ``blueprints/conv_light in early``; ``unknown`` where an old file does not tell."""
    if not event.grown and event.fossils:
        return ["unknown"]
    return [f"{one.get('blueprint', 'unknown')} in {one.get('slot', 'unknown')}" for one in event.grown]


def _newborn(event: StageChanged) -> SeedRow:
    return {
        "round": event.round,
        "arm": event.arm,
        "seed": event.seed,
        "seed_id": event.seed_id,
        "slot": event.slot,
        "blueprint": event.blueprint,
        "parameters": event.parameters,
        "born": None,
        "training": None,
        "blending": None,
        "holding": None,
        "draining": None,
        "fossilized": None,
        "pruned": None,
        "stage": event.now.value,
        "fate": None,
        "reason": event.reason,
        "gain": None,
        "gain_error": None,
        "gain_examples": None,
        "gain_step": None,
        "gain_stage": None,
        "price": None,
    }


_COLUMN: Final = {stage: "born" if stage is Stage.GERMINATED else stage.value for stage in Stage}
"""The column that has the step of a stage."""


def _move_on(life: SeedRow, event: StageChanged) -> None:
    column = _COLUMN[event.now]
    if life[column] is None:  # type: ignore[literal-required]
        life[column] = event.step  # type: ignore[literal-required]
    life["stage"], life["reason"], life["parameters"] = event.now.value, event.reason, event.parameters
    life["fate"] = event.now.value if event.now in ENDED else None


def _measure(alike: Iterable[SeedRow], seen: SeedSignals, step: int) -> None:
    """Note what a step measured of a seed: of those of its blueprint in its slot the one that lived then.

    What is decided after a step is told before it, though it was measured before: a seed that ended by it was there,
    and one that was born by it was not.
    """
    if seen.gain is None:
        return
    lived = [life for life in alike if (life["born"] is None or life["born"] < step) and _end(life) >= step]
    for life in lived[-1:]:
        life["gain"], life["gain_error"] = _number(seen.gain.mean), _number(_error(seen))
        life["gain_examples"], life["gain_step"], life["gain_stage"] = seen.gain.n, step, seen.stage.value
        price = None if seen.opinion is None else seen.opinion.price
        life["price"] = None if price is None else _number(price)


def _end(life: SeedRow) -> float:
    """The step at which it ended; infinite where it has no end yet."""
    if life["fate"] is None:
        return math.inf
    ends = [step for step in (life["fossilized"], life["pruned"]) if step is not None]
    return max(ends)


def _error(seen: SeedSignals) -> float:
    return math.nan if seen.gain is None or seen.gain.n < 1 else seen.gain.standard_error


def _number(value: float) -> float:
    return float(value) if math.isfinite(value) else math.nan


def _sum(values: Iterable[float]) -> float:
    """Of terms; ``nan`` where one is not finite, or the sum is not."""
    try:
        return _number(math.fsum(values))
    except (OverflowError, ValueError):  # the sum is too large, or is of both infinities
        return math.nan
