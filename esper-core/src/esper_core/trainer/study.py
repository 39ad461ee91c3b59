"""What is a study made of? A pool of environments, the arms that decide in it, and how often it is repeated.

Who takes part in a study, and whose turn is when? The environments of every arm, interleaved, each at its place.

Places are the same wherever an environment lives: in this process, or in one of several that share a run.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from esper_core.leyline.actions import Action
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.protocols import FollowsPlan
from esper_core.leyline.signals import CALM, HealthSnapshot, Observation
from esper_core.plugins.isolation import attributed_to
from esper_core.trainer.event_records import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from esper_core.governor import Decision
    from esper_core.leyline.actions import ActionMask
    from esper_core.leyline.protocols import Policy, Reward
    from esper_core.leyline.signals import Signals, Verdict
    from esper_core.telemetry import Bus, Clock
    from esper_core.trainer.pool import Pool
    from esper_core.trainer.progress import Course
    from esper_core.trainer.workers import Shards


log = logging.getLogger("esper")

AnyPool: TypeAlias = "Pool | Shards"
"""Where the environments of a study live: here, or in processes of their own."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm: its name, who decides in it, and whose work that is.

    parts: what its environments are called where the run has several rewards, a name for each of these; none: as it is.
    """

    name: str
    policy: Policy
    label: str
    parts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What its environments are called."""
        return self.parts or (self.name,)

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> Sequence[Action]:
        """The policy's actions; PluginError where they are not one legal action for each environment."""
        with attributed_to(self.label, "when it was asked to act"):
            actions = list(self.policy.act(observations, masks))
        if len(actions) != len(observations):
            message = f"{self.label} gave {len(actions)} actions for {len(observations)} environments"
            raise PluginError(Problem("E232", message, hint="Policy.act returns one action for each observation."))
        for action, mask in zip(actions, masks, strict=True):
            if not isinstance(action, Action):
                message = f"{self.label} gave a {type(action).__name__} for an action"
                raise PluginError(Problem("E232", message, hint="Policy.act returns one Action for each observation."))
            if not mask.allows(action):
                message = f"{self.label} chose what its mask forbids: {describe(action)}"
                raise PluginError(Problem("E233", message, hint=f"Allowed: wait, {_legal(mask)}"))
        return actions


@dataclass(frozen=True, slots=True)
class Judge:
    """A reward of a run, and whose work it is."""

    reward: Reward
    label: str

    @property
    def price(self) -> float | None:
        """What the reward asks for growth, where it names a price: the attribute of this name."""
        return self._asked("price")

    @property
    def counts_flops(self) -> bool:
        """Whether the reward asks something for operations: its attribute ``price_of_flops``."""
        return bool(self._asked("price_of_flops"))

    def _asked(self, name: str) -> float | None:
        value = getattr(self.reward, name, None)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that the loop works with."""

    pool: AnyPool
    arms: Sequence[Arm]
    twin: str | None
    """The arm that never grows, against which the others are rewarded."""
    reward: Judge
    rounds: int
    environments: int
    """Of each name in the pool: so many seeds are played in a round."""
    steps: int
    first_seed: int
    bus: Bus
    clock: Clock
    packages: Mapping[str, str]
    """The package behind each blueprint, by the blueprint's full id."""
    pause: Callable[[Course], None]
    """Called after each step and each round; keeps where the study is, and raises to end the run there."""
    check_health: Callable[[HealthSnapshot], Verdict] = field(default=lambda snapshot: CALM)
    """A second opinion on each environment after each step: it can raise the alarm, and not call it off."""
    rewards: Mapping[str, Judge] = field(default_factory=dict)
    """What judges the environments of these names, in the place of ``reward``."""

    def places(self, arm: Arm) -> list[int]:
        """The places of an arm's environments in the pool, those of one seed side by side, as its parts are."""
        return self.pool.of_arm(*arm.names)

    def judges(self) -> list[Judge]:
        """For each place in the pool what judges it."""
        return [self.rewards.get(environment.arm, self.reward) for environment in self.pool.environments]

    def opinions(self, signals_E: Sequence[Signals]) -> dict[int, Verdict]:
        """What others think of each environment whose episode goes on, by its place."""
        return {place: self.check_health(self._snapshot(place, signals_E[place])) for place in self.pool.running()}

    def _snapshot(self, place: int, signals: Signals) -> HealthSnapshot:
        environment = self.pool.environments[place]
        return HealthSnapshot(environment.round, environment.arm, environment.seed, signals)

    def observe(self, signals_E: Sequence[Signals], resting: Collection[int] = ()) -> list[Observation]:
        """What a policy sees of each environment: beside its own signals those of its twin, and its reward's price.

        resting: the places that were rolled back in this step.
        """
        seen = zip(signals_E, self.twins(), self.judges(), strict=True)
        return [
            Observation(own.step, self.steps, own, beside, judge.price, place in resting)
            for place, (own, twin, judge) in enumerate(seen)
            for beside in [None if twin is None else signals_E[twin]]
        ]

    def warn_of(self, rolled: Iterable[int], decisions: Mapping[int, Decision]) -> None:
        """Warn of what had to be rolled back, by its place in the pool."""
        for place in rolled:
            environment, decision = self.pool.environments[place], decisions[place]
            back = "before training" if decision.back_to == -1 else f"step {decision.back_to}"
            where = f"arm {environment.arm}, seed {environment.seed}, step {decision.step}"
            log.warning("%s: rolled back to %s: %s", where, back, decision.reason)

    def tell_unfinished(self) -> None:
        """Warn of plans that came to nothing in part: an entry whose time never came is a mistake in the plan."""
        for arm in self.arms:
            if isinstance(arm.policy, FollowsPlan):
                left = [note for notes in arm.policy.unfinished() for note in notes]
                for note, count in Counter(left).items():
                    share = f"{count} of {len(self.places(arm))} episodes"
                    log.warning("arm %s: not carried out in %s: %s", arm.name, share, note)

    def twins(self) -> list[int | None]:
        """For each place in the pool that of its twin."""
        if self.twin is None:
            return [None] * len(self.pool.environments)
        own = self.pool.of_arm(self.twin)
        return [own[environment.index] for environment in self.pool.environments]


def _legal(mask: ActionMask) -> str:
    return ", ".join(f"{op.value} {slot}" for slot, ops in mask.ops.items() for op in sorted(ops)) or "nothing else"


class Member(Protocol):
    """What anybody may ask of an environment, wherever it lives.

    arm, index: whose it is. round, seed: which episode is played. steps: how many it was trained for. over: whether the
    episode came to its end before its time. seconds: of the latest step's training, all of it and what of it went into
    seeds that incubate.
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


M = TypeVar("M", bound=Member)


class Roster(Generic[M]):
    """Environments, by their places.

    before, whole: where this is a part of a roster, how many stand before it, and how many the whole one has.
    """

    def __init__(self, environments: Sequence[M], before: int = 0, whole: int | None = None) -> None:
        self.environments = list(environments)
        self._before = before
        self._whole = len(self.environments) if whole is None else whole

    @property
    def members(self) -> Sequence[Member]:
        """The same, as whoever tells of them knows them."""
        return self.environments

    def of_arm(self, *names: str) -> list[int]:
        """The places of the environments of an arm, or of several, in the order of their seeds."""
        return [place for place, environment in enumerate(self.environments) if environment.arm in names]

    @property
    def over(self) -> bool:
        """Whether every episode came to its end before its time. That of a twin never does."""
        return all(environment.over for environment in self.environments)

    def running(self) -> list[int]:
        """The places of the environments whose episode goes on."""
        return [place for place, environment in enumerate(self.environments) if not environment.over]

    def turns(self, step: int) -> list[int]:
        """The same, in the order of their turns in ``step``: who is first changes, so that no arm always is."""
        first = step % self._whole - self._before
        return sorted(self.running(), key=lambda place: (place < first, place))

    @property
    def shadow_share(self) -> float:
        """What share of the latest step's training went into seeds that incubate, over all environments."""
        whole, shadow = (sum(times) for times in zip(*(one.seconds for one in self.environments), strict=True))
        return shadow / whole if whole else 0.0


def interleaved(arms: Sequence[str], indices: Sequence[int]) -> list[tuple[int, str]]:
    """Index and arm of each place: those of one index, and so of one seed, stand side by side."""
    return [(index, arm) for index in indices for arm in arms]
