"""Specifications: what a plugin declares about its components, and descriptions of slots and candidates.

Nothing here imports torch, so components can be listed without importing them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from esper_core.leyline.constants import STACK_LIMIT
from esper_core.leyline.errors import PluginError, Problem, suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping


SiteKind = Literal["image", "sequence", "vector", "tokens"]
SITE_KINDS: tuple[str, ...] = get_args(SiteKind)
"""image (N, C, H, W) · sequence (N, C, L) · vector (N, D) · tokens (N, T, D)."""

ComponentKind = Literal["blueprint", "host", "policy", "reward", "schedule", "sink", "task"]
COMPONENT_KINDS: tuple[str, ...] = get_args(ComponentKind)


@dataclass(frozen=True, slots=True)
class Site:
    """The place where a seed is to grow, as its blueprint sees it: a kind of SITE_KINDS with this number of features.

    ``size`` are the other dimensions of one example: (H, W), (L,), (T,) or (). ``inputs`` is the number of features
    that the module before the slot gets, if it is called with a tensor laid out as its output is, as a linear layer is;
    in images and sequences, if it is a 1×1 convolution. Otherwise 0.
    """

    kind: SiteKind
    channels: int
    size: tuple[int, ...] = ()
    inputs: int = 0

    @classmethod
    def of(cls, kind: SiteKind, example_shape: tuple[int, ...], inputs: int = 0) -> Site:
        """Return the site for outputs with this shape of one example, without the batch dimension."""
        if kind == "tokens":
            return cls(kind, example_shape[-1], example_shape[:-1], inputs)
        return cls(kind, example_shape[0], example_shape[1:], inputs)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example, without the batch dimension."""
        return (*self.size, self.channels) if self.kind == "tokens" else (self.channels, *self.size)


@dataclass(frozen=True, slots=True)
class BlueprintSpec:
    """Declares a blueprint. An unknown kind in ``accepts`` raises PluginError E217.

    Attributes:
        accepts: the site kinds it can grow in, one name or several.
        summary: one line for listings.
        starts_as_identity: whether a new block returns its input, bit for bit up to the sign of zero.
        version: version of the blueprint's code, stored with each saved network. Increase it when the code builds
            another network from the same settings: networks saved with an older version are then refused (E333).
        adapts: whether it is an adapter, such as LoRA: a map of what the module before the slot gets, (…, inputs), that
            is added to what the module returns, (…, channels); in images and sequences the module is a 1×1 convolution.
            A new one returns zeros, which counts as ``starts_as_identity``. In a model of half precision it has
            parameters of float32.
        reads_layer: whether an adapter computes with the weights of its layer, as DoRA does. It is called as
            ``forward(inputs, layer, outputs)``, with the module before the slot and what that returned.
        settings: the pydantic model of its settings, as a class or "module:Class". The factory gets them by keyword,
            and a slot gives them behind the name: ``lora(rank=8, alpha=16)``.
    """

    accepts: str | tuple[str, ...]
    _: KW_ONLY
    summary: str = ""
    starts_as_identity: bool = False
    version: int = 1
    adapts: bool = False
    reads_layer: bool = False
    settings: Any = None

    def __post_init__(self) -> None:
        """Refuse a kind that does not exist, at the line that declares it."""
        # A tuple without any kind is refused, too, as if it were a kind itself.
        for kind in self.kinds or ((),):
            if kind not in SITE_KINDS:
                message = f"BlueprintSpec with accepts={kind!r}, which is not a kind of site"
                raise PluginError(Problem("E217", message, hint=suggestion(str(kind), SITE_KINDS)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """``accepts`` as a tuple."""
        return (self.accepts,) if isinstance(self.accepts, str) else tuple(self.accepts)

    def misfit(self, site: Site) -> str | None:
        """Return why the blueprint cannot grow at ``site``; None if it can."""
        if site.kind not in self.kinds:
            return f"the slot is of kind {site.kind}, and the blueprint takes {' or '.join(self.kinds)}"
        if self.adapts and not site.inputs:
            return (
                "it is an adapter, and the module before the slot does not get one tensor of features for each output"
            )
        return None

    def input_shape(self, site: Site) -> tuple[int, ...]:
        """Return the shape of one example that a block at ``site`` gets."""
        return (replace(site, channels=site.inputs) if self.adapts else site).example_shape


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """What most components declare. ``settings`` is the pydantic model of settings, as a class or "module:Class"."""

    summary: str = ""
    settings: Any = None


@dataclass(frozen=True, slots=True)
class TaskSpec(ComponentSpec):
    """Declares a task."""


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """Where a slot is placed: behind the module of this name, or behind all modules that match a pattern.

    Attributes:
        kind: layout of the module's output. None: inferred from its shape, and from the layer that computes it.
        stack: number of seeds that can be fossilised here, one behind the other.
        output: key, field or index of the tensor on which the slot acts, if the module returns several. None: the
            first floating-point tensor with a row for each example, if no other has its shape.
    """

    at: str
    kind: SiteKind | None = None
    stack: int = STACK_LIMIT
    output: str | int | None = None


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Declares a host. ``slots`` names the places where growth makes sense."""

    summary: str = ""
    slots: Mapping[str, SlotPlace] = field(default_factory=dict)
    settings: Any = None


@dataclass(frozen=True, slots=True)
class PolicySpec(ComponentSpec):
    """Declares a policy."""


@dataclass(frozen=True, slots=True)
class RewardSpec(ComponentSpec):
    """Declares a reward."""


@dataclass(frozen=True, slots=True)
class SinkSpec(ComponentSpec):
    """Declares a sink, which receives the events of a run."""


@dataclass(frozen=True, slots=True)
class ScheduleSpec(ComponentSpec):
    """Declares a learning-rate schedule."""


Spec = BlueprintSpec | TaskSpec | HostSpec | PolicySpec | RewardSpec | ScheduleSpec | SinkSpec


@dataclass(frozen=True, slots=True)
class Candidate:
    """A blueprint, by its full id, as it would be in one slot.

    Attributes:
        parameters: exact number of parameters that a seed would add.
        flops: floating-point operations of its forward pass for one example. None: unknown.
        identity: whether it starts as the identity; see ``BlueprintSpec.starts_as_identity``.
    """

    blueprint: str
    parameters: int
    flops: int | None
    identity: bool


@dataclass(frozen=True, slots=True)
class SlotDescription:
    """A slot in its host, with ``kind``, ``channels`` and ``size`` as in ``Site``, and what could grow there.

    Attributes:
        depth: share of the host's slots that come before this one, in the order of the configuration.
        host_flops: floating-point operations of the host's forward pass for one example. None: unknown.
        candidates: the blueprints that could grow here.
    """

    kind: SiteKind
    channels: int
    size: tuple[int, ...]
    depth: float
    host_parameters: int
    host_flops: int | None
    candidates: tuple[Candidate, ...]

    @property
    def positions(self) -> int:
        """Number of positions along the longest side; 0 if there are none."""
        return max(self.size, default=0)

    def candidate(self, blueprint: str) -> Candidate | None:
        """Return the description of a blueprint here, or None if it cannot grow here."""
        return next((candidate for candidate in self.candidates if candidate.blueprint == blueprint), None)


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations of a forward pass for one example: the host, and each block by slot and blueprint."""

    host: int
    blocks: Mapping[tuple[str, str], int]
