"""Records of what happened in environments, and the events that are built from them.

The trainer passes these records around; the loop turns them into the event types of ``esper_core.leyline.events``. A
record is written as plain data by ``plain_of`` and read back by ``record_of``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter

from esper_core.governor import Act
from esper_core.growth import Growth, Transition
from esper_core.leyline.events import EpisodeFinished, GovernorActed, SeedLost, StageChanged, StepFinished
from esper_core.leyline.signals import Signals  # noqa: TC001  pydantic reads the fields of Ending

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from esper_core.governor import GovernorDecision, RolledBack
    from esper_core.growth import FaultBook
    from esper_core.leyline import Action, RewardBreakdown

T = TypeVar("T")


class AnyEnvironment(Protocol):
    """What is known of an environment, whichever process it lives in.

    Attributes:
        pool_index: Its index in the pool: among the environments of all arms.
        steps: Decision steps that the network was trained for in this episode.
        over: Whether the episode ended before its last step; nothing is trained or asked any more then.
        flops: Operations of the episode so far; None: unknown.
        signals: The latest signals; None before the first step.
    """

    pool_index: int
    arm: str
    index: int
    round: int
    seed: int
    steps: int
    over: bool
    signals: Signals | None

    @property
    def flops(self) -> int | None:
        """See above."""


@dataclass(frozen=True, slots=True)
class LostSeed:
    """A seed that failed and was taken out, or that could not be built.

    Attributes:
        what: What the seed did.
        ending: The seed's last transition; None where it could not even be built.
        blame: As in the event. Unless it is "none" the loss counts against the blueprint, which may be withdrawn from
            the run because of it.
    """

    slot: str
    blueprint: str
    what: str
    ending: Transition | None
    blame: str = "code"
    withdrawn: bool = False

    def counted(self, faults: FaultBook) -> LostSeed:
        """Count the lost seed against its blueprint, if that is to blame, and return the updated record."""
        return replace(self, withdrawn=self.blame != "none" and faults.record(self.blueprint))


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended: the last signals, the result on the test split, and what grew.

    test_last: the metric with the weights of the last batch, if the network ends with an average; else None.
    alone: why the network is trained by itself; empty if it is not, None in a loop of one network.
    """

    signals: Signals
    test_loss: float
    test_metric: float
    growth: tuple[Growth, ...]
    test_last: float | None = None
    alone: str | None = None

    def event(
        self, environment: AnyEnvironment, closing: RewardBreakdown | None, reward: float | None, conclusion: str
    ) -> EpisodeFinished:
        """Return the event of the end, with the reward of the end itself, and the sum of all; None: unknown."""
        return EpisodeFinished(
            **_episode(environment),
            test_loss=self.test_loss,
            test_metric=self.test_metric,
            test_last=self.test_last,
            validation_metric=self.signals.validation_metric,
            parameters=self.signals.parameters,
            host_parameters=self.signals.host_parameters,
            fossils=self.signals.fossils,
            steps=environment.steps,
            flops=environment.flops,
            reward=reward,
            closing={} if closing is None else closing.terms,
            grown=tuple(asdict(growth) for growth in self.growth),
            conclusion=conclusion,
            alone=self.alone,
        )


Changes: TypeAlias = list[tuple[int, Transition]]
"""Transitions, each with the pool index of its environment."""

LostSeeds: TypeAlias = list[tuple[int, LostSeed]]
"""Lost seeds, each with the pool index of its environment."""


def plain_of(record: Any) -> Any:
    """Return a dataclass record as plain data: text, numbers (NaN among them), lists and mappings."""
    return None if record is None else _adapter(cast("Hashable", type(record))).dump_python(record, mode="json")


def record_of(kind: type[T], plain: Any) -> T:
    """Return what ``plain_of`` was given, of type ``kind``, which may be a collection of records.

    Raises:
        ValueError: The data does not fit.
    """
    record: T = _adapter(cast("Hashable", kind)).validate_python(plain)
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _episode(environment: AnyEnvironment) -> dict[str, Any]:
    return {"round": environment.round, "arm": environment.arm, "seed": environment.seed}


def stages_changed(environments: Sequence[AnyEnvironment], changes: Changes, step: int) -> Iterator[StageChanged]:
    """Yield one event for each seed that changed its stage."""
    for pool_index, change in changes:
        yield StageChanged(
            **_episode(environments[pool_index]),
            step=step,
            slot=change.slot,
            seed_id=change.seed,
            blueprint=change.blueprint,
            was=change.was,
            now=change.now,
            parameters=change.parameters,
            reason=change.reason,
        )


def seeds_lost(
    environments: Sequence[AnyEnvironment], lost: LostSeeds, step: int, packages: Mapping[str, str]
) -> Iterator[SeedLost | StageChanged]:
    """Yield two events for each lost seed: the fault with its package, and the seed's last transition."""
    for pool_index, lost_seed in lost:
        yield SeedLost(
            **_episode(environments[pool_index]),
            step=step,
            slot=lost_seed.slot,
            blueprint=lost_seed.blueprint,
            package=packages.get(lost_seed.blueprint.partition("(")[0], ""),  # whatever its settings are
            what=lost_seed.what,
            withdrawn=lost_seed.withdrawn,
            blame=lost_seed.blame,
        )
        if lost_seed.ending is not None:
            yield from stages_changed(environments, [(pool_index, lost_seed.ending)], step)


def steps_finished(
    environments: Sequence[AnyEnvironment],
    signals_E: Sequence[Signals],
    rewards_E: Sequence[RewardBreakdown | None],
    actions_E: Sequence[Action],
    step: int,
) -> Iterator[StepFinished]:
    """Yield one event for each environment that was trained in ``step``."""
    for environment, signals, reward, action in zip(environments, signals_E, rewards_E, actions_E, strict=True):
        # Once an episode is over, its latest signals are those of an earlier step.
        if signals.step == step:
            yield StepFinished(
                **_episode(environment),
                step=step,
                signals=signals,
                reward={} if reward is None else reward.terms,
                action=action,
            )


def governor_acted(
    environments: Sequence[AnyEnvironment], decisions: Mapping[int, GovernorDecision], rolled: Mapping[int, RolledBack]
) -> Iterator[GovernorActed | StageChanged]:
    """Yield an event for each decision other than CONTINUE, and one for each seed that a rollback dropped."""
    for pool_index, decision in decisions.items():
        if decision.act is Act.CONTINUE:
            continue
        back = rolled.get(pool_index)
        yield GovernorActed(
            **_episode(environments[pool_index]),
            step=decision.step,
            act=decision.act.value,
            verdict=decision.verdict.level.value,
            reason=decision.reason,
            back_to=decision.back_to,
            penalty=decision.penalty,
            withdrawn=back is not None and back.withdrawn,
        )
        if back is not None:
            yield from stages_changed(
                environments, [(pool_index, change) for change in back.transitions], decision.step
            )
