"""Protocols: what components implement, and the records that they exchange with a run.

Components: Task, Policy (and Learner, if it learns), Reward, Sink, Schedule. Resumable and State: what is saved in
checkpoints. RunInfo, PluginConfig and RunOutcome: what hooks receive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from esper_core.leyline.lifecycle import Action, ActionMask
from esper_core.leyline.signals import Observation, RewardBreakdown
from esper_core.leyline.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import Metric, Signals
    from esper_core.leyline.specs import SiteKind


SpecT_contra = TypeVar("SpecT_contra", bound=Spec, contravariant=True)

SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class DataShape:
    """The shape of one input example, without the batch, and the number of outputs of a host."""

    kind: SiteKind
    example: tuple[int, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Split:
    """One complete split of a task's data. Examples are along the first dimension."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@runtime_checkable
class Task(Protocol):
    """Data in three disjoint splits, a loss to train on, and a metric.

    A task is built once per run and shared by all environments. It has no state.
    """

    metric: Metric
    shape: DataShape

    def split(self, name: SplitName) -> Split:
        """Return a split: ``train`` for training, ``validation`` for decisions, ``test`` for the final evaluation."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss in nats per example."""

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one value per example. Their mean, or exp of it for an exponential metric, is the metric."""


@runtime_checkable
class Policy(Protocol):
    """Decides once a step for all environments of an arm.

    It is built with ``factory(space, **settings)``, which may raise SettingError if a setting does not fit the space.
    """

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> Sequence[Action]:
        """Return one action per environment. Its mask must allow it."""


@runtime_checkable
class Sink(Protocol):
    """Writes events somewhere else: a file, a service, a screen. A sink that raises is shut off.

    It is built with ``factory(run, **settings)``, where ``run`` is the path of the run directory. Its methods are
    called on one thread of its own. A slow sink does not delay the run, but does not receive every step.
    """

    def hear(self, event: Event) -> None:
        """Receive one event."""

    def settle(self) -> None:
        """Receive the end of a step."""

    def close(self) -> None:
        """Release resources at the end of the run. May be called twice."""


@runtime_checkable
class Schedule(Protocol):
    """A learning-rate schedule, built with ``factory(**settings)``. It has no state."""

    def factor(self, step: int, steps: int | None) -> float:
        """Return the factor on the learning rate, 0 or more, for a decision step since these parameters began to learn.

        ``step`` counts from 0. ``steps`` is the number of steps to the end of the episode; None if unknown.
        """


class Registrar(Protocol[SpecT_contra]):
    """Passed to the registration hooks of a plugin, and bound to that plugin."""

    def add(self, name: str, target: Callable[..., Any] | str, spec: SpecT_contra) -> None:
        """Register a component. ``target`` is its factory, or "module:attribute", which is imported on first use."""


@runtime_checkable
class FollowsPlan(Protocol):
    """Optional protocol of policies: report the parts of a plan that could not be carried out.

    A policy may also have a method ``impossible(steps)``, which returns a text for each part of its plan that an
    episode of ``steps`` steps is too short for; ``esper check`` and ``esper run`` print them as warnings. With a
    method ``for_loop(steps)`` it returns a policy that suits a short loop of a ``Gardener``.
    """

    def unfinished(self) -> Sequence[Sequence[str]]:
        """Return for each environment the parts of the plan that the current episode has not carried out yet."""


@runtime_checkable
class Concludes(Protocol):
    """Optional protocol of policies: say what an episode has shown, such as that nothing pays."""

    def conclusions(self) -> Sequence[str]:
        """Return a clause for each environment about its current episode; empty: nothing is concluded yet."""


@runtime_checkable
class Reward(Protocol):
    """Scores one step of one environment. It has no state.

    It is built with ``factory(metric=metric, **settings)``, where ``metric`` is the task's. If it has a numeric
    attribute ``price``, policies observe it as the price of growth.
    """

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """Score a step. ``before`` is None at the first step of an episode; ``twin`` is the host without growth."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision, with the objects that the policy received and returned.

    ``reward`` is that of the step after the action, or of the episode's end; None if unknown, for want of a twin.
    """

    observation: Observation
    mask: ActionMask
    action: Action
    reward: RewardBreakdown | None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The decisions of one episode, or of a part of one that a rollback ended."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The trajectories of one arm in a round, in the order of its environments.

    An environment that was rolled back has several: a rollback ends a trajectory, and the next one begins.
    """

    arm: str
    round: int
    trajectories: tuple[Trajectory, ...]


@runtime_checkable
class Learner(Protocol):
    """Optional protocol of policies that learn from their trajectories."""

    def update(self, rollout: Rollout) -> Mapping[str, float]:
        """Learn from one round and return figures to report, such as a loss. Called after each round."""


@dataclass(frozen=True, slots=True)
class State:
    """The complete state of an object, from which an equally built one can continue.

    ``plain`` is data that JSON holds without loss: text, integers, finite floats, booleans, None, lists, and mappings
    with text keys. A checkpoint stores copies of ``tensors`` on the CPU.
    """

    plain: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Mapping[str, State], **plain: Any) -> State:
        """Combine the states of several parts, and plain data, into one. Names of parts are unique and contain no "/".

        >>> State.of({"order": State({"left": 3})}, steps=2).plain
        {'steps': 2, 'order': {'left': 3}}
        """
        tensors = {f"{name}/{key}": tensor for name, part in parts.items() for key, tensor in part.tensors.items()}
        return cls({**plain, **{name: part.plain for name, part in parts.items()}}, tensors)

    def part(self, name: str) -> State:
        """Return the state of one part, as it was passed to ``of``."""
        prefix = f"{name}/"
        tensors = {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}
        return State(self.plain[name], tensors)


@runtime_checkable
class Resumable(Protocol):
    """Optional protocol of components with state, such as policies that learn. Others have nothing to save."""

    def state_dict(self) -> State:
        """Return the complete state. Later changes of the object do not change it."""

    def load_state_dict(self, state: State) -> None:
        """Restore the state of an equally built object."""


RunStatus = Literal["done", "failed", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Identifies a run: ``rounds`` times ``environments`` episodes of ``steps`` steps for each of the ``arms``.

    ``id`` is the name of the run directory ``path``, ``device`` a torch device.
    """

    id: str
    path: Path
    arms: tuple[str, ...]
    rounds: int
    environments: int
    steps: int
    device: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. ``results`` is that of summary.json; None if the run did not finish."""

    status: RunStatus
    reason: str = ""
    results: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """The configuration of a run: ``values`` is that of config.yaml, with full names and defaults."""

    values: Mapping[str, Any]
