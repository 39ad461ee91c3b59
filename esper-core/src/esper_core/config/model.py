"""The model of a run's configuration: frozen sections and their only defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from esper_core.leyline import constants
from esper_core.leyline.specs import SiteKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.config.values import KeyPath

MAX_EPISODES: Final = 10_000_000
"""Episodes of a run: rounds × environments × arms, with the twin."""

MAX_PRICE: Final = 1_000_000
"""Of growth.price: multiplied by any number of parameters it stays finite."""

MAX_AMOUNT: Final = 1e30
"""Of a weight decay and of the penalty of a rollback: they fit into a float32, as do sums of many of them."""

CAPACITY: Final = "capacity"
"""Name of the arm that trains from the start what another arm grew; with several such arms: capacity-of-ARM."""


@dataclass(frozen=True, slots=True)
class Described:
    """Metadata of a type: how messages and ``esper explain`` describe it, where pydantic would show a pattern."""

    text: str


NAME_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,49}$"
"""Of the names of runs, slots and arms."""

Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=100), Described("a name of 1 to 100 characters")]
Key = Annotated[str, Field(pattern=NAME_PATTERN), Described("a letter, then at most 49 letters, digits, - and _")]
FilePath = Annotated[str, Field(min_length=1, max_length=4096), Described("a path of 1 to 4096 characters")]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
OutputKey = Annotated[Name | Annotated[int, Field(ge=0)], Described("a name, or an integer from 0")]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"), Described("auto, cpu, cuda or cuda:N")]
Every = Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], Described("auto, or an integer from 1")]
Lanes = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], Described("auto, or an integer from 1 to 1024")
]

Patience = Annotated[Literal["auto"] | Annotated[float, Field(gt=0)], Described("auto, or a number above 0")]
StoreURL = Annotated[
    str,
    Field(pattern=r"^[a-z][a-z0-9+.-]*://([^:/@\s]+@)?[^@\s]*$", max_length=1000),
    Described("a URL without a password, such as s3://bucket/prefix"),
]

_VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?"
_CLAUSE = rf"([<>]=?\s*{_VERSION}|[=!]=\s*[0-9]+(\.[0-9]+)*\.\*|[=!]=\s*{_VERSION}|~=\s*[0-9]+\.{_VERSION})"
Versions = Annotated[
    str,
    Field(pattern=rf"^\s*{_CLAUSE}(\s*,\s*{_CLAUSE})*\s*$", max_length=200),
    Described("version specifiers as pip takes them, for example >=0.2,<0.3"),
]


class Section(BaseModel):
    """A part of the configuration: frozen, and unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Use(Section):
    """A component by name, and its settings. ``task: mnist1d`` is short for ``task: {use: mnist1d}``."""

    use: Name = Field(description="Name of the component, with or without its plugin: tasks/mnist1d, mnist1d.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the component, which checks them.")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> Any:
        return write(self) if self.settings else self.use


class SlotConfig(Section):
    """One slot: its place in the host, and what may grow in it."""

    at: Name | None = Field(
        default=None, description="Name of a module of the host, * for any part; null: the host's slot of this name."
    )
    kind: SiteKind | None = Field(default=None, description="Kind of the module's output; null: inferred.")
    output: OutputKey | None = Field(
        default=None,
        description="Output of the module to act on: a key, a field or an index; null: the only suitable one.",
    )
    blueprints: Names = Field(description="Blueprints that may grow here: names or globs.", min_length=1)
    stack: Count = Field(
        default=constants.STACK_LIMIT, le=8, description="Maximum number of seeds that may be fossilised here."
    )


class EpisodeConfig(Section):
    """One training of one host from scratch."""

    steps: Count = Field(default=constants.EPISODE_STEPS, le=100_000, description="Decision steps.")
    batches: Count = Field(default=constants.EPISODE_BATCHES, le=1_000_000, description="Batches trained in each step.")
    batch_size: Count = Field(default=100, le=1_000_000, description="Examples in a batch.")


class OptimizerConfig(Section):
    """The optimizer of some parameters."""

    kind: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="The algorithm.")
    learning_rate: float = Field(default=3e-3, gt=0, le=10, description="Learning rate.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum; only sgd uses it.")
    weight_decay: float = Field(default=0.0, ge=0, le=MAX_AMOUNT, description="Weight decay.")
    clip_norm: float | None = Field(default=None, gt=0, description="Maximum global gradient norm; null: no clipping.")
    schedule: Use | None = Field(
        default=None,
        description="Schedule of the learning rate, from the step in which training begins; null: constant.",
    )
    implementation: Literal["fused", "foreach", "plain"] = Field(
        default="fused", description="Implementation of torch; they differ in speed and in the last bits."
    )


class OptimizersConfig(Section):
    """The optimizer of the host and that of each seed. Gradients are clipped separately."""

    host: OptimizerConfig = Field(default_factory=OptimizerConfig, description="For the host and fossilised seeds.")
    seed: OptimizerConfig = Field(default_factory=OptimizerConfig, description="For each seed that is not fossilised.")


class GrowthConfig(Section):
    """Lifecycle of seeds and limits on growth."""

    incubation: Literal["shadow", "branch"] = Field(
        default="branch", description="How a seed trains before it is blended in."
    )
    gates: Literal["strict", "permissive", "off"] = Field(
        default="off", description="Strictness of the gates before blending and before fossilisation."
    )
    evidence: Literal["loss", "metric"] = Field(
        default="loss",
        description="What gains are measured in: nats of the validation loss, or the task's metric.",
    )
    price: float = Field(
        default=constants.NATS_PER_PARAMETER,
        ge=0,
        le=MAX_PRICE,
        description="Gain per parameter that gates require, in nats or in the metric; there it has no default.",
    )
    auto_advance: bool = Field(
        default=True,
        description="Blend in a seed automatically once its gate opens, if it is alone in its slot and no other acts.",
    )
    nursery: Count = Field(
        default=1, le=64, description="Seeds of different blueprints that incubate in a slot at once; one advances."
    )
    dependence: bool = Field(
        default=True, description="Measure in each step how much the loss depends on each acting seed."
    )
    embargo: int = Field(
        default=constants.EMBARGO_STEPS,
        ge=0,
        le=100_000,
        description="Steps after a prune in which nothing germinates in the slot.",
    )
    seeds: Count | None = Field(
        default=None,
        description="Maximum number of seeds of a network, including fossilised ones; null: as slots allow.",
    )
    parameters: Count | None = Field(
        default=None, description="Maximum number of parameters that growth may add to a host; null: no limit."
    )
    freeze_fossils: bool = Field(default=False, description="Stop training the parameters of fossilised seeds.")


class GovernorConfig(Section):
    """How broken training is detected and repaired."""

    rollback: bool = Field(
        default=True, description="Roll a broken environment back to a snapshot; false: stop the run."
    )
    rollbacks: int = Field(
        default=constants.ROLLBACKS_IN_EPISODE,
        ge=0,
        le=100_000,
        description="Rollbacks in an episode before the run is stopped.",
    )
    penalty: float = Field(
        default=constants.ROLLBACK_PENALTY, ge=0, le=MAX_AMOUNT, description="Cost of a rollback in units of reward."
    )
    snapshot_steps: Count = Field(
        default=constants.SNAPSHOT_STEPS, le=100_000, description="Maximum number of steps between snapshots."
    )
    snapshots: Count = Field(default=constants.SNAPSHOTS_KEPT, le=8, description="Snapshots kept of an environment.")
    history_steps: int = Field(
        default=constants.HISTORY_STEPS, ge=2, le=100_000, description="Healthy steps that losses are compared with."
    )
    surge_sigmas: float = Field(
        default=constants.SURGE_SIGMAS, ge=0, description="Standard deviations above the mean that a surge exceeds."
    )
    surge_ratio: float = Field(
        default=constants.SURGE_RATIO, ge=1, description="Multiple of the mean that a surge must also exceed."
    )
    surge_steps: Count = Field(
        default=constants.SURGE_STEPS, le=100_000, description="Consecutive surging steps that make a panic."
    )
    collapse_share: float = Field(
        default=constants.COLLAPSE_SHARE,
        gt=0,
        le=1,
        description="Share of the improvement over the untrained host that is lost in a collapse.",
    )
    watch_steps: int = Field(
        default=constants.WATCH_STEPS,
        ge=0,
        le=100_000,
        description="Steps after an action in which a panic is attributed to it.",
    )
    patience: Count | None = Field(
        default=None, description="Steps without improvement after which an episode ends early; null: never."
    )
    memory_mib: Count | None = Field(
        default=None, description="Maximum MiB of a network with its optimizers and snapshots; null: no limit."
    )


class ComputeConfig(Section):
    """How a batch is computed. Only precision, micro-batches, the compiler and the layout change results."""

    precision: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        default="float32",
        description="Number format of passes, but not of losses; auto: the shortest that the GPU supports.",
    )
    micro_batches: Count = Field(
        default=1, le=1_000_000, description="Parts of a batch that are computed in turn; their gradients are added."
    )
    compile: bool = Field(default=False, description="Compile the training pass of the host with torch.compile.")
    allocator: Literal["tuned", "default"] = Field(
        default="tuned", description="Whether glibc keeps freed memory for reuse; it changes speed only."
    )
    layout: Literal["auto", "plain"] = Field(
        default="auto", description="Memory layout of images; auto: channels last where host and blueprints allow it."
    )
    data: Literal["resident", "streamed"] = Field(
        default="resident", description="Keep data on the device, or on the CPU and send batches to the device."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_cuda_graphs(cls, value: Any) -> Any:
        """Ignore an option of older runs at the value that changed nothing."""
        if isinstance(value, dict) and value.get("cuda_graphs") is False:
            return {key: setting for key, setting in value.items() if key != "cuda_graphs"}
        return value


class ArmConfig(Section):
    """One arm of the comparison. Arms differ only in what is given here."""

    policy: Use = Field(description="Chooses the actions of this arm.")


class CheckpointConfig(Section):
    """How often checkpoints are written, from which a run can be resumed."""

    every: Every = Field(
        default="auto", description="Steps between checkpoints; auto: so that they take at most 2 % of the time."
    )
    keep: Count = Field(default=2, le=1000, description="Number of the newest checkpoints to keep.")


class RayConfig(Section):
    """The Ray cluster that ``engine: ray`` uses."""

    address: Name | None = Field(
        default=None,
        description="Address of a cluster; null: that of RAY_ADDRESS, else a cluster on this machine for this run.",
    )
    wait_seconds: int = Field(
        default=300, ge=1, le=86_400, description="Seconds to wait until the cluster has started the workers."
    )
    mixed_builds: bool = Field(
        default=False,
        description="Accept nodes with another torch build, CPU capability or Python; last bits may then differ.",
    )


class PluginsConfig(Section):
    """Which of the installed plugins take part."""

    disable: Names = Field(default=(), description="Ids of plugins to leave out.")
    require: dict[Name, Versions] = Field(
        default_factory=dict,
        description='Ids of plugins that the run needs, with version specifiers: ">=0.2,<0.3".',
    )
    local: Annotated[tuple[FilePath, ...], Field(strict=False)] = Field(
        default=(), description="One-file plugins: paths, relative to this file.", max_length=64
    )
    settings: dict[Name, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of plugins by plugin id, which check them."
    )


class RunConfig(Section):
    """A run: what is trained, what may grow in it, which policies decide, and how often it is repeated."""

    name: Key | None = Field(default=None, description="Part of the run directory's name; null: two random words.")
    task: Use = Field(description="Data, loss and metric.")
    host: Use = Field(description="The network that grows.")
    slots: dict[Key, SlotConfig] = Field(
        description="Places in the host where seeds may grow.", min_length=1, max_length=64
    )
    policy: Use | None = Field(default=None, description="Policy that chooses the actions, if there is one arm.")
    arms: dict[Key, ArmConfig] = Field(default_factory=dict, description="Matched arms to compare.", max_length=32)
    twin: bool = Field(default=True, description="Train the twin: the same hosts without growth.")
    capacity: bool = Field(
        default=True, description="Train the static control: hosts that have an arm's grown blocks from the start."
    )
    reward: Use = Field(default=Use(use="team"), description="The reward of a step.")
    rewards: Annotated[tuple[Use, ...], Field(strict=False)] = Field(
        default=(),
        description="Several rewards in place of one; each RNG seed is run under each of them.",
        max_length=32,
    )
    sinks: Annotated[tuple[Use, ...], Field(strict=False)] = Field(
        default=(), description="Sinks that also receive the events.", max_length=32
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="RNG seed of the first environment.")
    environments: Count = Field(
        default=8,
        le=4096,
        description="Environments of each arm: one for each RNG seed, or for each RNG seed and reward.",
    )
    rounds: Count = Field(
        default=1, le=1_000_000, description="Episodes of each environment, each with a new RNG seed."
    )
    episode: EpisodeConfig = Field(
        default_factory=EpisodeConfig, description="Number and length of an episode's decision steps."
    )
    optimizer: OptimizersConfig = Field(default_factory=OptimizersConfig, description="How parameters are trained.")
    growth: GrowthConfig = Field(default_factory=GrowthConfig, description="Lifecycle of seeds and limits on growth.")
    governor: GovernorConfig = Field(
        default_factory=GovernorConfig, description="How broken training is detected and repaired."
    )
    compute: ComputeConfig = Field(default_factory=ComputeConfig, description="How a batch is computed.")
    device: Device = Field(default="auto", description="Device of tensors: auto, cpu, cuda or cuda:N.")
    devices: Annotated[tuple[Device, ...], Field(strict=False)] = Field(
        default=(), description="Several devices in place of one; environments take them in turn.", max_length=64
    )
    lanes: Lanes = Field(
        default="auto", description="Environments computed at once, as workers or GPU streams; auto: as many as fit."
    )
    engine: Literal["auto", "threads", "processes", "ray"] = Field(
        default="threads",
        description="What lanes are on a CPU: threads, processes, or workers on a Ray cluster; "
        "auto: ray if ray.address is given, else processes if they may be faster, else threads.",
    )
    ray: RayConfig = Field(default_factory=RayConfig, description="The cluster of engine: ray.")
    patience: Patience = Field(
        default="auto",
        description="Seconds after which a component hangs; auto: 20 times the longest part of a step, at least 600.",
    )
    randomness: Literal["auto", "always"] = Field(
        default="auto", description="Whether networks draw random numbers in a pass; auto: determined by a trial pass."
    )
    checkpoints: CheckpointConfig = Field(
        default_factory=CheckpointConfig, description="How often checkpoints are written."
    )
    store: StoreURL | None = Field(
        default=None, description="URL of a folder to which the run is also uploaded; null: it stays local."
    )
    margin: float = Field(default=0.0, ge=0, description="Difference in the metric below which arms count as equal.")
    plugins: PluginsConfig = Field(default_factory=PluginsConfig, description="Which plugins take part.")

    @field_validator("reward", mode="before")
    @classmethod
    def _default_reward(cls, value: Any) -> Any:
        """Take settings without a name as those of the default reward."""
        return {"use": "team"} | value if isinstance(value, dict) else value

    @property
    def instances(self) -> int:
        """Environment seeds of a round: each runs under every reward."""
        return self.environments // max(1, len(self.rewards))

    @property
    def is_on_ray(self) -> bool:
        """Whether lanes are workers on a Ray cluster."""
        return self.engine == "ray" or (self.engine == "auto" and self.ray.address is not None)


RENAMED: Final[Mapping[str, str]] = {"workers": "engine"}
"""Keys of older versions, which are still read, and what they are called now."""

REMOVED: Final[Mapping[KeyPath, str]] = {
    ("workers",): "It is called engine now, which is given as well. Delete it.",
    ("base",): "Give the other file first and this one as an overlay:  esper run OTHER --overlay THIS",
    ("compute", "cuda_graphs"): "It was removed: CUDA graphs are no longer supported. Delete the key.",
    ("growth", "incubation", "live"): "It was removed. Use branch to train host and seed together, or shadow.",
    ("growth", "incubation", "straight_through"): "It was removed. Use branch or shadow.",
}
"""Options of older versions, and values below their option, with the hint for each."""
