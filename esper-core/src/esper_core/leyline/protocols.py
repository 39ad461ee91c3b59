"""What must a component be able to do? Small enough, each of them, to implement in a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from esper_core.leyline.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from esper_core.leyline.actions import Action, ActionMask, ActionSpace
    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import Metric, Observation, RewardBreakdown, Signals
    from esper_core.leyline.specs import Site, SiteKind

SpecT_contra = TypeVar("SpecT_contra", bound=Spec, contravariant=True)

SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class DataShape:
    """What a host must take and give: one example's shape without the batch, and the number of outputs."""

    kind: SiteKind
    example: tuple[int, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Split:
    """One split of a task's data, whole: inputs and targets with examples along the first dimension."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@runtime_checkable
class Task(Protocol):
    """Data in three disjoint splits, the loss that is trained on, and the metric that is judged by.

    A task is built once for a run, as ``factory(**settings)``, and shared by its environments: it has no state.
    """

    metric: Metric
    shape: DataShape

    def split(self, name: SplitName) -> Split:
        """One split. ``train`` is trained on, ``validation`` steers, ``test`` is read once, at the end."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss in nats for each example."""
        ...

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each example; their mean is the metric, or e to it where the metric is exponential."""
        ...


class HostFactory(Protocol):
    """Builds the network that grows: ``factory(shape, **settings)``."""

    def __call__(self, shape: DataShape) -> nn.Module: ...


class BlueprintFactory(Protocol):
    """Builds what a seed trains: ``factory(site)``, a module that keeps the shape of its input."""

    def __call__(self, site: Site) -> nn.Module: ...


@runtime_checkable
class Policy(Protocol):
    """Decides, once a step, for all environments of an arm.

    Built as ``factory(space, **settings)``. It may raise ``SettingError`` where a setting does not fit the space.
    """

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> Sequence[Action]:
        """One action for each environment; each must be one that its mask allows."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Takes what happens somewhere else: a file, a service, a screen. Best effort: one that raises is shut off.

    Built as ``factory(run, **settings)`` with the path of the run directory. Its methods are called on a thread of its
    own, the same one from the first event to the end, beside the run: one that is slow holds nobody up, and is not told
    of every step.
    """

    def hear(self, event: Event) -> None:
        """Take one event."""
        ...

    def settle(self) -> None:
        """A step is over."""
        ...

    def close(self) -> None:
        """The run is over. May be called twice."""
        ...


@runtime_checkable
class Schedule(Protocol):
    """Says how fast parameters learn when: a factor on their learning rate. Built as ``factory(**settings)``. Pure."""

    def factor(self, step: int, steps: int | None) -> float:
        """The factor for one decision step, 0 or more.

        ``step`` counts from 0, from the step in which these parameters began to learn: a seed's own clock. ``steps`` is
        how many there will be, from then to the end of the episode; None where nobody knows.
        """
        ...


class Registrar(Protocol[SpecT_contra]):
    """What a plugin's registering hooks are handed: it is bound to that plugin."""

    def add(self, name: str, target: Callable[..., Any] | str, spec: SpecT_contra) -> None:
        """Add a component. ``target`` builds it, or is "module:attribute", imported when first used."""
        ...


@runtime_checkable
class FollowsPlan(Protocol):
    """What a policy may do besides: say what of its plan came to nothing, so that the run can tell."""

    def unfinished(self) -> Sequence[Sequence[str]]:
        """For each environment what of the plan its present episode has not carried out."""
        ...


class PolicyFactory(Protocol):
    """Builds a policy for an action space: ``factory(space, **settings)``."""

    def __call__(self, space: ActionSpace) -> Policy: ...


@runtime_checkable
class Reward(Protocol):
    """Judges one step of one environment. Pure: nothing is carried from call to call.

    Built as ``factory(metric=metric, **settings)``, with the metric of the run's task. One that has a number as its
    attribute ``price`` lets policies see it: what it asks for growth is part of what they observe.
    """

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        """What this step was worth. ``before`` is None at an episode's first step; ``twin`` never grew."""
        ...
