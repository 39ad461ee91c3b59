"""What can be said in a run's configuration? One frozen model; its defaults are the only ones there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from esper_core.config.limits import MAX_AMOUNT, MAX_PRICE
from esper_core.leyline import constants
from esper_core.leyline.specs import SiteKind


@dataclass(frozen=True, slots=True)
class InWords:
    """How messages and ``esper explain`` call a type, where its constraints do not say it plainly."""

    text: str


Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=100), InWords("a name of 1 to 100 characters")]
Key = Annotated[
    str,
    Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,49}$"),
    InWords("a name of at most 50 letters, digits, - and _ that begins with a letter"),
]
FilePath = Annotated[str, Field(min_length=1, max_length=4096), InWords("a path of 1 to 4096 characters")]
Names = Annotated[tuple[Name, ...], Field(strict=False), InWords("a list of names")]
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"), InWords("auto, cpu, cuda, or cuda: with a number (cuda:0)")
]


Every = Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], InWords("auto, or a whole number from 1")]
Lanes = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], InWords("auto, or a whole number from 1 to 1024")
]

_VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?"
_CLAUSE = rf"([<>]=?\s*{_VERSION}|[=!]=\s*[0-9]+(\.[0-9]+)*\.\*|[=!]=\s*{_VERSION}|~=\s*[0-9]+\.{_VERSION})"
Versions = Annotated[
    str,
    Field(pattern=rf"^\s*{_CLAUSE}(\s*,\s*{_CLAUSE})*\s*$", max_length=200),
    InWords("a range of versions: >=0.2,<0.3"),
]
"""What pip takes behind a package's name, as far as it is of use here."""


class Section(BaseModel):
    """A part of the configuration: what it does not know is refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Use(Section):
    """A component by name, and its settings. ``task: mnist1d`` is short for ``task: {use: mnist1d}``."""

    use: Name = Field(description="Name of the component, short or with its plugin: mnist1d, tasks/mnist1d.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the component, checked by it.")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value


class SlotConfig(Section):
    """Where something may grow, and what."""

    at: Name | None = Field(
        default=None, description="Name of a module of the host, * for any part; default: the host's slot of this name."
    )
    kind: SiteKind | None = Field(default=None, description="What the module puts out; default: told by its shape.")
    blueprints: Names = Field(description="What may grow here: names or globs.", min_length=1)
    stack: Count = Field(default=constants.STACK_LIMIT, le=8, description="Seeds that may be kept here for good.")


class EpisodeConfig(Section):
    """One training of one host from scratch."""

    steps: Count = Field(default=constants.EPISODE_STEPS, le=100_000, description="Decision steps.")
    batches: Count = Field(default=32, le=1_000_000, description="Batches trained in each step.")
    batch_size: Count = Field(default=100, le=1_000_000, description="Examples in a batch.")


class OptimizerConfig(Section):
    """How parameters learn."""

    kind: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="The algorithm.")
    learning_rate: float = Field(default=3e-3, gt=0, le=10, description="Step size.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum, read by sgd.")
    weight_decay: float = Field(default=0.0, ge=0, le=MAX_AMOUNT, description="Weight decay.")
    clip_norm: float | None = Field(default=None, gt=0, description="Largest global gradient norm; null: no clipping.")
    schedule: Use | None = Field(
        default=None,
        description="Factor on the step size, from the step in which the parameters begin to learn; null: always 1.",
    )
    implementation: Literal["fused", "foreach", "plain"] = Field(
        default="fused", description="Which of torch's code for it is run; they differ in speed and in last bits."
    )


class OptimizersConfig(Section):
    """The host's optimizer and that of each seed; they are clipped apart."""

    host: OptimizerConfig = Field(default_factory=OptimizerConfig, description="For the host and its fossils.")
    seed: OptimizerConfig = Field(default_factory=OptimizerConfig, description="For each living seed.")


class GrowthConfig(Section):
    """How seeds live."""

    incubation: Literal["shadow", "branch"] = Field(
        default="shadow", description="How a seed learns before it is blended in."
    )
    gates: Literal["strict", "permissive", "off"] = Field(
        default="off", description="What a seed has to show before it is blended in, and before it is kept."
    )
    price: float = Field(
        default=constants.NATS_PER_PARAMETER,
        ge=0,
        le=MAX_PRICE,
        description="Validation loss in nats by which a seed has to pay for each of its parameters, read by the gates.",
    )
    auto_advance: bool = Field(
        default=True,
        description="Whether a seed that is alone in its slot is blended in when its gate opens, while no other acts.",
    )
    nursery: Count = Field(
        default=1, le=64, description="Seeds of different blueprints that incubate at once in one slot; one advances."
    )
    dependence: bool = Field(
        default=True,
        description="Whether it is measured in each step how much the network leans on each seed that acts in it.",
    )
    embargo: int = Field(
        default=constants.EMBARGO_STEPS, ge=0, le=100_000, description="Steps for which a slot rests after a prune."
    )
    seeds: Count | None = Field(
        default=None, description="Seeds that a network may hold at once, fossils among them; null: as slots allow."
    )
    parameters: Count | None = Field(
        default=None, description="Parameters that growth may add to a host in all; null: as many as it likes."
    )
    freeze_fossils: bool = Field(
        default=False, description="Whether the parameters of a seed that is kept for good stand still from then on."
    )


class GovernorConfig(Section):
    """When an environment is in trouble, and what is done about it."""

    rollback: bool = Field(
        default=True, description="Whether an environment in trouble goes back to a sane state; false: the run stops."
    )
    rollbacks: int = Field(
        default=constants.ROLLBACKS_IN_EPISODE,
        ge=0,
        le=100_000,
        description="Rollbacks of an environment in an episode; the next panic stops the run.",
    )
    penalty: float = Field(
        default=constants.ROLLBACK_PENALTY,
        ge=0,
        le=MAX_AMOUNT,
        description="What a rollback costs, in the reward's units.",
    )
    snapshot_steps: Count = Field(
        default=constants.SNAPSHOT_STEPS,
        le=100_000,
        description="Steps after which a snapshot is taken though nothing improved.",
    )
    snapshots: Count = Field(default=constants.SNAPSHOTS_KEPT, le=8, description="Snapshots kept of an environment.")
    history_steps: int = Field(
        default=constants.HISTORY_STEPS, ge=2, le=100_000, description="Healthy steps that losses are compared with."
    )
    surge_sigmas: float = Field(
        default=constants.SURGE_SIGMAS, ge=0, description="Standard deviations above their mean at which a loss surges."
    )
    surge_ratio: float = Field(
        default=constants.SURGE_RATIO,
        ge=1,
        description="Multiple of their mean at which a loss surges; both must hold.",
    )
    surge_steps: Count = Field(
        default=constants.SURGE_STEPS, le=100_000, description="Steps running of a surge that are a panic."
    )
    collapse_share: float = Field(
        default=constants.COLLAPSE_SHARE,
        gt=0,
        le=1,
        description="Share of what was gained over guessing whose loss is a collapse.",
    )
    watch_steps: int = Field(
        default=constants.WATCH_STEPS,
        ge=0,
        le=100_000,
        description="Steps after a mutation in which a panic is laid at its door.",
    )
    patience: Count | None = Field(
        default=None, description="Steps without improvement after which an episode ends early; null: never."
    )
    memory_mib: Count | None = Field(
        default=None,
        description="MiB that parameters, gradients, optimizer state and snapshots of one network may take; null: any.",
    )


class ComputeConfig(Section):
    """How a batch is computed. Only the precision, the parts, the compiler and the layout change numbers."""

    precision: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        default="float32",
        description="What passes are computed in, losses and parameters aside; auto: the shortest that a GPU has.",
    )
    micro_batches: Count = Field(
        default=1, le=1_000_000, description="Parts of a batch that pass one after the other; their gradients add up."
    )
    compile: bool = Field(default=False, description="Whether torch compiles the pass in which the host is trained.")
    allocator: Literal["tuned", "default"] = Field(
        default="tuned", description="Whether glibc is told to keep the memory that it has; no other number changes."
    )
    layout: Literal["auto", "plain"] = Field(
        default="auto",
        description="How images lie in memory; auto: channels last, which is quicker, where host and blueprints can.",
    )
    data: Literal["resident", "streamed"] = Field(
        default="resident", description="Where data lives: on the device, or on the host, from where batches are sent."
    )


class ArmConfig(Section):
    """One arm of the comparison: it differs from the others in just what it names here."""

    policy: Use = Field(description="Who decides in this arm.")


class CheckpointConfig(Section):
    """How often it is written down where a run is, so that it can go on from there."""

    every: Every = Field(
        default="auto",
        description="Steps from one checkpoint to the next; auto: as often as it takes 2 % of the time at most.",
    )
    keep: Count = Field(default=2, le=1000, description="How many of the newest stay in the run directory.")


class PluginsConfig(Section):
    """Which of the installed plugins take part."""

    disable: Names = Field(default=(), description="Plugin ids that are left out.")
    require: dict[Name, Versions] = Field(
        default_factory=dict,
        description='Plugin ids that have to be there, with the versions that will do: ">=0.2,<0.3".',
    )
    local: Annotated[tuple[FilePath, ...], Field(strict=False), InWords("a list of paths")] = Field(
        default=(), description="One-file plugins: paths, relative to this file.", max_length=64
    )
    settings: dict[Name, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of plugins by plugin id, checked by them."
    )


class RunConfig(Section):
    """A run: what is trained, what may grow in it, who decides, and how often it is repeated."""

    name: Key | None = Field(default=None, description="Part of the run directory's name; default: two words.")
    task: Use = Field(description="Data, loss and metric.")
    host: Use = Field(description="The network that grows.")
    slots: dict[Key, SlotConfig] = Field(description="Where something may grow.", min_length=1, max_length=64)
    policy: Use | None = Field(default=None, description="Who decides; short for a single arm.")
    arms: dict[Key, ArmConfig] = Field(default_factory=dict, description="Matched arms to compare.", max_length=32)
    twin: bool = Field(default=True, description="Whether the same hosts are also trained without growth.")
    capacity: bool = Field(
        default=True,
        description="Whether what an arm grew is then trained from the start on the same seeds, as a control.",
    )
    reward: Use = Field(default=Use(use="team"), description="What a step was worth.")
    rewards: Annotated[tuple[Use, ...], Field(strict=False)] = Field(
        default=(),
        description="Several rewards in place of one: each seed is played under each of them.",
        max_length=32,
    )
    sinks: Annotated[tuple[Use, ...], Field(strict=False)] = Field(
        default=(), description="Where else events go: a list of sinks.", max_length=32
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Environment seed of the first environment.")
    environments: Count = Field(
        default=8, le=4096, description="Environments of each arm: one for each seed, or for each seed and reward."
    )
    rounds: Count = Field(default=1, le=1_000_000, description="Episodes of each environment, each with fresh seeds.")
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig, description="Length of an episode.")
    optimizer: OptimizersConfig = Field(default_factory=OptimizersConfig, description="How parameters learn.")
    growth: GrowthConfig = Field(default_factory=GrowthConfig, description="How seeds live.")
    governor: GovernorConfig = Field(
        default_factory=GovernorConfig, description="When an environment is in trouble, and what is done about it."
    )
    compute: ComputeConfig = Field(default_factory=ComputeConfig, description="How a batch is computed.")
    device: Device = Field(default="auto", description="Where tensors live: auto, cpu, cuda or cuda:N.")
    devices: Annotated[tuple[Device, ...], Field(strict=False), InWords("a list of devices")] = Field(
        default=(), description="Several devices, which environments take in turn, in place of one.", max_length=64
    )
    lanes: Lanes = Field(
        default="auto",
        description="Environments that compute at once: workers on a CPU, streams on each GPU; auto: as many as fit.",
    )
    workers: Literal["auto", "threads", "processes"] = Field(
        default="threads",
        description="What lanes are on a CPU; of processes each has some of the seeds; auto: these where they may pay.",
    )
    randomness: Literal["auto", "always"] = Field(
        default="auto",
        description="Whether networks may draw random numbers while they compute; auto: a trial tells, before the run.",
    )
    checkpoints: CheckpointConfig = Field(
        default_factory=CheckpointConfig, description="How often it is written down where the run is."
    )
    margin: float = Field(default=0.0, ge=0, description="Difference in the metric below which arms count as equal.")
    plugins: PluginsConfig = Field(default_factory=PluginsConfig, description="Which plugins take part.")

    @property
    def instances(self) -> int:
        """Environment seeds of a round: each is played under every reward."""
        return self.environments // max(1, len(self.rewards))
