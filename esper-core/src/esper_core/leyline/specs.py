"""What does a plugin declare about a component before anything heavy is imported?

What is known of a run's slots, and of what could grow in them, before anything does?
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from esper_core.leyline.constants import STACK_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping


SiteKind = Literal["image", "sequence", "vector", "tokens"]
SITE_KINDS: tuple[str, ...] = get_args(SiteKind)
"""image (N, C, H, W) · sequence (N, C, L) · vector (N, D) · tokens (N, T, D)."""

ComponentKind = Literal["blueprint", "host", "policy", "reward", "schedule", "sink", "task"]
COMPONENT_KINDS: tuple[str, ...] = get_args(ComponentKind)


@dataclass(frozen=True, slots=True)
class Site:
    """The place where a seed is to grow, as its blueprint sees it.

    ``channels`` is the width of the features, ``size`` what remains of one example: (H, W), (L,), (T,) or ().

    >>> Site.of("sequence", (8, 40)).formula_variables()
    {'c': 8, 'n': 1, 'l': 40}
    """

    kind: SiteKind
    channels: int
    size: tuple[int, ...] = ()

    @classmethod
    def of(cls, kind: SiteKind, example_shape: tuple[int, ...]) -> Site:
        """The site for outputs that have ``example_shape`` without the batch dimension."""
        if kind == "tokens":
            return cls(kind, example_shape[-1], example_shape[:-1])
        return cls(kind, example_shape[0], example_shape[1:])

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example, without the batch dimension."""
        return (*self.size, self.channels) if self.kind == "tokens" else (self.channels, *self.size)

    def formula_variables(self) -> dict[str, int]:
        """The names a parameter formula may use: c, n (spatial dimensions), and h, w, l or t."""
        names = {"image": ("h", "w"), "sequence": ("l",), "vector": (), "tokens": ("t",)}[self.kind]
        spatial = 0 if self.kind in ("vector", "tokens") else len(self.size)
        return {"c": self.channels, "n": spatial, **dict(zip(names, self.size, strict=False))}


@dataclass(frozen=True, slots=True)
class BlueprintSpec:
    """What a blueprint says of itself.

    accepts: the site kinds it can grow in, one name or several.
    params: exact number of parameters as a formula over the site, for example ``"9*c*c"``; see Site.formula_variables.
    starts_as_identity: at birth the block returns its input, bit for bit up to the sign of zero.
    traits: what else it claims, of BLUEPRINT_TRAITS; a claim that is false is a fault.
    version: raised when the same settings build another network; the growth journal records it.
    """

    accepts: str | tuple[str, ...]
    params: str
    summary: str = ""
    starts_as_identity: bool = False
    traits: tuple[str, ...] = ()
    version: int = 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """``accepts`` as a tuple."""
        return (self.accepts,) if isinstance(self.accepts, str) else tuple(self.accepts)


BLUEPRINT_TRAITS: Mapping[str, str] = MappingProxyType(
    {
        "deterministic": "the same weights and inputs give the same outputs, in training too",
        "bf16": "works in bfloat16",
        "compile": "torch.compile takes it whole, and it computes the same",
        "stateful": "keeps buffers that training changes",
        "dynamic_spatial": "takes other sizes of image or sequence than the one it was built for",
        "informed_birth": "chooses its first weights from what passes at its place: it has inform(inputs, gradients)",
    }
)
"""What a blueprint may claim of itself, and what each claim means."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What a task says of itself. ``settings`` is a pydantic model class (or "module:Class") for its settings."""

    summary: str = ""
    settings: Any = None


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """Where a slot goes: behind a module, by its name or a pattern for several.

    kind: what the module puts out; None lets its shape tell, which cannot tell tokens from a sequence.
    stack: how many seeds may be kept here for good, one behind the other.
    """

    at: str
    kind: SiteKind | None = None
    stack: int = STACK_LIMIT


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a host says of itself. ``slots`` names the places where growing it makes sense."""

    summary: str = ""
    slots: Mapping[str, SlotPlace] = field(default_factory=dict)
    settings: Any = None


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy says of itself. ``settings`` as for a task."""

    summary: str = ""
    settings: Any = None


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """What a reward says of itself. ``settings`` as for a task.

    family: what it pays for, ``metric`` or a name of its own: rewards of one run are of one family.
    """

    summary: str = ""
    settings: Any = None
    family: str = "metric"


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """What a sink says of itself. ``settings`` as for a task."""

    summary: str = ""
    settings: Any = None


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """What a schedule of learning rates says of itself. ``settings`` as for a task."""

    summary: str = ""
    settings: Any = None


Spec = BlueprintSpec | TaskSpec | HostSpec | PolicySpec | RewardSpec | ScheduleSpec | SinkSpec


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin says of itself: the API level it was written for, a line, a page."""

    api: int = 1
    summary: str = ""
    homepage: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A blueprint as it would be in one slot: two of the same description are alike to whoever chooses by it.

    parameters: exactly as many as a seed would bring that is added. flops: floating-point operations of its own, for
    one example, forwards. reach: positions of its input, along the longest side, that one position of its output can
    depend on; 0 where there are no positions. None is unknown: it could not be counted.
    """

    blueprint: str
    parameters: int
    flops: int | None
    reach: int | None
    identity: bool
    """Whether it begins as one: `BlueprintSpec.starts_as_identity`."""
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A slot and the host that it is in: what passes there, and what could grow.

    channels, size: as in ``Site``. depth: which share of the host's slots lies before it, in the order of the file.
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
        """Along the longest side; 0 where there are none."""
        return max(self.size, default=0)

    def candidate(self, blueprint: str) -> Candidate | None:
        """What is known of a blueprint here; None where it is none of those that could grow."""
        return next((one for one in self.candidates if one.blueprint == blueprint), None)


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations for one example, forwards: of the host, and of each block by its slot and blueprint."""

    host: int
    blocks: Mapping[tuple[str, str], int]
