"""What must a component be able to do? Small enough, each of them, to implement in a page.

What does a policy learn from? The episodes that it played: what it saw, what it could do, did, and got for it.

What does a thing with a memory give to a checkpoint, and take back from it? Plain data, and tensors by name.

What does a plugin see of a run? Frozen records: which run it is, how it is set up, and how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from esper_core.leyline.actions import Action, ActionMask
from esper_core.leyline.signals import Observation, RewardBreakdown
from esper_core.leyline.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from esper_core.leyline.actions import ActionSpace
    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import Metric, Signals
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


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision: the very objects that the policy was given and gave, and what came of it.

    reward: of the step after the action, or of the episode's end; None where it is unknown, for want of a twin.
    """

    observation: Observation
    mask: ActionMask
    action: Action
    reward: RewardBreakdown | None


@dataclass(frozen=True, slots=True)
class Played:
    """One episode, or a part of one that a rollback ended. ``final`` is what could be seen after the last action.

    terminated: it ended in a rollback, behind which there was nothing to hope for. Otherwise its horizon cut it, or the
    governor did since nothing more was to be expected: what the final state promised is worth what it promised.
    """

    turns: tuple[Turn, ...]
    final: Observation
    terminated: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one arm's policy played in a round: the episodes of its environments, in their order.

    An environment that was rolled back has several: the rollback is the end of one, and what follows is the next.
    """

    arm: str
    round: int
    episodes: tuple[Played, ...]


@runtime_checkable
class Learner(Protocol):
    """What a policy may be besides: one that learns from what it played. A plan that is written down has none."""

    def update(self, rollout: Rollout) -> Mapping[str, float]:
        """Learn from one round; what is to be told of it: figures by name, such as a loss. Called after each round."""
        ...


BETWEEN = "/"
"""Stands in the name of a tensor between the name of a part and the tensor's own."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that something knows, so that another of its kind, built alike, can go on in its place.

    plain: what JSON holds without loss: text, whole numbers, finite floats, booleans, None, lists, and mappings with
    names for keys. tensors: by name; a checkpoint keeps copies, on the CPU.
    """

    plain: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Mapping[str, State], **plain: Any) -> State:
        """The states of several parts in one, with plain data beside them. No part has a / in its name.

        >>> State.of({"order": State({"left": 3})}, steps=2).plain
        {'steps': 2, 'order': {'left': 3}}
        """
        if strange := [name for name in parts if BETWEEN in name or name in plain]:
            msg = f"a part has a name of its own, without {BETWEEN}. Received: {strange[0]!r}"
            raise ValueError(msg)
        tensors = {
            f"{name}{BETWEEN}{own}": tensor for name, part in parts.items() for own, tensor in part.tensors.items()
        }
        return cls({**plain, **{name: part.plain for name, part in parts.items()}}, tensors)

    def part(self, name: str) -> State:
        """The state of one part, as ``of`` was given it."""
        prefix = f"{name}{BETWEEN}"
        own = {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}
        return State(self.plain[name], own)


@runtime_checkable
class Resumable(Protocol):
    """What has a memory. A policy that remembers its episodes is one, and so is a learner; one without is not asked."""

    def state(self) -> State:
        """All that it knows; whatever happens to it later, the state stays what it is."""
        ...

    def load(self, state: State) -> None:
        """Know what another one of its kind knew, which was built alike, and nothing else."""
        ...


RunStatus = Literal["done", "failed", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Which run it is: ``rounds`` times ``environments`` episodes of ``steps`` steps for each of the ``arms``.

    id: the name of the run directory. path: the directory itself. device: where tensors live, as torch names it.
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
    """How a run ended. ``results`` is that of summary.json; None where the run was not done."""

    status: RunStatus
    reason: str = ""
    results: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a run's report: a title of one line, and plain text under it, in as many lines as it takes."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class RunContext:
    """What is about to be trained."""

    run: RunInfo


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """How a run is set up, for one plugin.

    settings: an instance of the model that the plugin's ``esper_settings_model`` names; None where it names none.
    values: the whole configuration as config.yaml has it, names in full and defaults written out. Read-only.
    """

    settings: Any
    values: Mapping[str, Any]


def frozen(value: Any) -> Any:
    """Plain data that nobody can change any more: mappings are views, lists are tuples.

    >>> frozen({"slots": [1, 2]})["slots"]
    (1, 2)
    """
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return value
