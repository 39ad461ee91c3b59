"""Records of what happened in environments, and the events that are built from them.

The trainer passes these records around; the loop turns them into the event types of ``esper_core.leyline.events``. A
record is written as plain data by ``plain_of`` and read back by ``record_of``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, TypeVar, cast

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
    from esper_core.growth import FaultBook, Growth, Transition
    from esper_core.leyline.signals import RewardBreakdown, Signals

T = TypeVar("T")


class Member(Protocol):
    """What anybody may ask about an environment, whichever process it lives in.

    Attributes:
        arm: Name of the arm that the environment belongs to.
        index: Which of the arm's environments it is.
        round: Round of the current episode.
        seed: Seed of the current episode.
        steps: Decision steps that the network was trained for in this episode.
        over: Whether the episode ended before its last step.
        seconds: Seconds of the latest step's training: all of it, and what incubating seeds took of it.
    """

    @property
    def arm(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def round(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def over(self) -> bool: ...

    @property
    def seconds(self) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True)
class LostSeed:
    """A seed that failed and was taken out, or that could not be built.

    Attributes:
        slot: Name of the slot.
        blueprint: Full id of the seed's blueprint.
        what: What the seed did.
        ending: The seed's last transition; None where it could not even be built.
        blamed: Whether the loss counts against the blueprint.
        withdrawn: Whether the blueprint is withdrawn from the run because of it.
    """

    slot: str
    blueprint: str
    what: str
    ending: Transition | None
    blamed: bool = True
    withdrawn: bool = False

    def counted(self, faults: FaultBook) -> LostSeed:
        """Count the loss against its blueprint, if that is to blame, and return the updated record."""
        return replace(self, withdrawn=self.blamed and faults.record(self.blueprint))


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended: the last signals, the result on the test split, and what grew."""

    signals: Signals
    test_loss: float
    test_metric: float
    growth: tuple[Growth, ...]


Changes: TypeAlias = "list[tuple[Member, Transition]]"
LostSeeds: TypeAlias = "list[tuple[Member, LostSeed]]"


def plain_of(record: Any) -> Any:
    """Return a dataclass record as plain data: text, numbers (NaN among them), lists and mappings."""
    return None if record is None else _adapter(cast("Hashable", type(record))).dump_python(record, mode="json")


def record_of(kind: type[T], plain: Any) -> T:
    """Return the record of type ``kind`` that ``plain_of`` was given; ValueError where the data does not fit."""
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
    """Yield one event for each seed that changed its stage."""
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


def seeds_lost(lost: LostSeeds, step: int, packages: Mapping[str, str]) -> Iterator[SeedLost | StageChanged]:
    """Yield two events for each lost seed: the fault with its package, and the seed's last transition."""
    for environment, one in lost:
        yield SeedLost(
            **_place(environment),
            step=step,
            slot=one.slot,
            blueprint=one.blueprint,
            package=packages.get(one.blueprint, ""),
            what=one.what,
            withdrawn=one.withdrawn,
        )
        if one.ending is not None:
            yield from stages_changed([(environment, one.ending)], step)


def steps_finished(
    members: Sequence[Member],
    signals_E: Sequence[Signals],
    rewards_E: Sequence[RewardBreakdown | None],
    actions_E: Sequence[Action],
    step: int,
) -> Iterator[StepFinished]:
    """Yield one event for each environment that was trained in ``step``."""
    for environment, signals, reward, action in zip(members, signals_E, rewards_E, actions_E, strict=True):
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
    """Yield an event for each decision other than CONTINUE, and one for each seed that a rollback dropped."""
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
    """Build the event of an episode's end.

    Args:
        environment: Whose episode ended.
        ending: How it ended.
        closing: Reward of the end itself; None where it is unknown.
        reward: Sum of the episode's rewards; None where it is unknown.
    """
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


def updates_finished(round_: int, updates: Iterable[tuple[str, Mapping[str, float]]]) -> Iterator[UpdateFinished]:
    """Yield one event for each arm whose policy was updated, with the figures that it reported."""
    for arm, figures in updates:
        yield UpdateFinished(round=round_, arm=arm, figures=figures)


def describe(action: Action) -> str:
    """Describe an action in a few words: ``germinate early blueprints/conv_light``."""
    if action.op is Op.WAIT:
        return action.op.value
    return " ".join(part for part in (action.op.value, action.slot, action.blueprint) if part)


def arguments_of(action: Action) -> dict[str, str | int | float]:
    """Return the arguments that an action's op reads and ``describe`` leaves out, as plain data."""
    plain: dict[str, str | int | float] = {
        "blend": str(action.blend),
        "speed": action.speed,
        "curve": str(action.curve),
        "target": float(action.target),
    }
    return {name: plain[name] for name in ARGUMENTS[action.op] if name in plain}


def _place(environment: Member) -> _Place:
    return {"round": environment.round, "arm": environment.arm, "seed": environment.seed}
