"""How is what happened in an environment told? As events: the record of a thing with its place in the run.

How is a record, an observation say, written as plain data and read again? As its fields are typed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from pydantic import TypeAdapter

from esper_core.governor import Act
from esper_core.leyline.actions import ARGUMENTS, Action, Op
from esper_core.leyline.events import (
    EpisodeFinished,
    GovernorActed,
    SeedLost,
    StageChanged,
    StepFinished,
    UpdateFinished,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from esper_core.governor import Decision, RolledBack
    from esper_core.leyline.signals import RewardBreakdown, Signals
    from esper_core.trainer.pool import Changes, Ending, Mishaps
    from esper_core.trainer.study import AnyPool, Member


T = TypeVar("T")


def plain_of(record: Any) -> Any:
    """What ``record_of`` makes a record again: text, numbers (NaN among them), lists and mappings."""
    return None if record is None else _adapter(cast("Hashable", type(record))).dump_python(record, mode="json")


def record_of(kind: type[T], plain: Any) -> T:
    """The record of this kind that ``plain_of`` was given; ValueError where it was none."""
    record: T = _adapter(cast("Hashable", kind)).validate_python(plain)
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class _Place(TypedDict):
    round: int
    arm: str
    seed: int


def stages_changed(changes: Changes, step: int) -> Iterator[StageChanged]:
    """One event for each seed that moved on."""
    for environment, change in changes:
        yield StageChanged(
            **_place(environment),
            step=step,
            slot=change.slot,
            seed_id=change.seed,
            blueprint=change.blueprint,
            was=change.was,
            now=change.now,
            parameters=change.parameters,
            reason=change.reason,
        )


def seeds_lost(mishaps: Mishaps, step: int, packages: Mapping[str, str]) -> Iterator[SeedLost | StageChanged]:
    """Two events for each seed that went wrong: whose fault it was, and the end of its life."""
    for environment, mishap in mishaps:
        yield SeedLost(
            **_place(environment),
            step=step,
            slot=mishap.slot,
            blueprint=mishap.blueprint,
            package=packages.get(mishap.blueprint, ""),
            what=mishap.what,
            withdrawn=mishap.withdrawn,
        )
        if mishap.ending is not None:
            yield from stages_changed([(environment, mishap.ending)], step)


def steps_finished(
    pool: AnyPool,
    signals_E: Sequence[Signals],
    rewards_E: Sequence[RewardBreakdown | None],
    actions_E: Sequence[Action],
    step: int,
) -> Iterator[StepFinished]:
    """One event for each environment that was trained in ``step``."""
    told = zip(pool.members, signals_E, rewards_E, actions_E, strict=True)
    for environment, signals, reward, action in told:
        if signals.step != step:
            continue
        yield StepFinished(
            **_place(environment),
            step=signals.step,
            signals=signals,
            reward={} if reward is None else reward.terms,
            action=describe(action),
            arguments=arguments_of(action),
        )


def governor_acted(
    environments: Sequence[Member],
    decisions: Mapping[int, Decision],
    rolled: Mapping[int, RolledBack],
) -> Iterator[GovernorActed | StageChanged]:
    """An event for each decision that is more than to go on, and one for each seed that was lost by it."""
    for place, decision in decisions.items():
        if decision.act is Act.CONTINUE:
            continue
        environment, back = environments[place], rolled.get(place)
        yield GovernorActed(
            **_place(environment),
            step=decision.step,
            act=decision.act.value,
            verdict=decision.verdict.level.value,
            reason=decision.reason,
            back_to=decision.back_to,
            penalty=decision.penalty,
            withdrawn=back is not None and back.withdrawn,
        )
        if back is not None:
            yield from stages_changed([(environment, change) for change in back.transitions], decision.step)


def episode_finished(
    environment: Member, ending: Ending, closing: RewardBreakdown | None, reward: float | None
) -> EpisodeFinished:
    """The event of an episode's end, with what the end itself was worth, and the whole."""
    return EpisodeFinished(
        **_place(environment),
        test_loss=ending.test_loss,
        test_metric=ending.test_metric,
        validation_metric=ending.signals.validation_metric,
        parameters=ending.signals.parameters,
        host_parameters=ending.signals.host_parameters,
        fossils=ending.signals.fossils,
        steps=environment.steps,
        reward=reward,
        closing={} if closing is None else closing.terms,
        grown=tuple(growth.as_json() for growth in ending.growth),
    )


def updates_finished(round_: int, told: Iterable[tuple[str, Mapping[str, float]]]) -> Iterator[UpdateFinished]:
    """One event for each arm whose policy learnt."""
    for arm, figures in told:
        yield UpdateFinished(round=round_, arm=arm, figures=figures)


def describe(action: Action) -> str:
    """An action in a few words: ``germinate early blueprints/conv_light``."""
    if action.op is Op.WAIT:
        return action.op.value
    return " ".join(part for part in (action.op.value, action.slot, action.blueprint) if part)


def arguments_of(action: Action) -> dict[str, str | int | float]:
    """What ``describe`` leaves out of an action: the other arguments that its op reads, as plain data."""
    plain: dict[str, str | int | float] = {
        "blend": str(action.blend),
        "speed": action.speed,
        "curve": str(action.curve),
        "target": float(action.target),
    }
    return {name: plain[name] for name in ARGUMENTS[action.op] if name in plain}


def _place(environment: Member) -> _Place:
    return {"round": environment.round, "arm": environment.arm, "seed": environment.seed}
