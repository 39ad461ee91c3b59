"""Settings that the core takes: of growth, of the governor, of optimizers, of an episode and of computing.

They are frozen pydantic models. A run reads them from its configuration file, and a loop of your own passes them
directly. Their defaults are the only ones. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from esper_core.leyline import constants

MAX_PRICE: Final = 1_000_000
"""Of growth.price: multiplied by any number of parameters it stays finite."""

MAX_AMOUNT: Final = 1e30
"""Of a weight decay and of the penalty of a rollback: they fit into a float32, as do sums of many of them."""


@dataclass(frozen=True, slots=True)
class Described:
    """Metadata of a type: how messages and the reference describe it, where pydantic would show a pattern."""

    text: str


Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0, le=100_000)]
"""Of steps or rollbacks, which may be none."""
Name = Annotated[str, Field(min_length=1, max_length=100), Described("a name of 1 to 100 characters")]


class Section(BaseModel):
    """A part of the configuration: frozen, and unknown keys are errors."""

    # Strict, since YAML has types: "3" for 3 is a mistake. Settings of components may hold infinities, because they are
    # not checked here, and without an option for that pydantic writes them as null.
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


class PriceConfig(Section):
    """What a seed has to gain to be kept. A number, as in ``price: 0.0002``, is short for ``per_parameter``."""

    doubling: float = Field(
        default=constants.PRICE_OF_DOUBLING,
        ge=0,
        le=MAX_PRICE,
        description="Gain for each doubling of the network, and a tenth of it for each seed: in the metric, or as a "
        "share of the host's loss.",
    )
    of: Literal["operations", "parameters"] = Field(
        default="operations",
        description="What doubles; parameters, too, where operations cannot be counted. On a host that is mostly "
        "frozen: the budget of parameters that train.",
    )
    budget: Count | None = Field(
        default=None,
        description="Trained parameters that count as a doubling of a frozen host; null: growth.parameters, or a "
        "hundredth of the host's.",
    )
    floor: float = Field(
        default=0.0, description="Loss, or metric that is not a share, from which on the host's is counted."
    )
    per_parameter: float | None = Field(
        default=None,
        ge=0,
        le=MAX_PRICE,
        description="Gain for each parameter in nats or in the metric, in place of all above; null: relative.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"per_parameter": float(value)} if is_number else value


class GrowthConfig(Section):
    """Lifecycle of seeds and limits on growth."""

    incubation: Literal["shadow", "branch"] = Field(
        default="branch", description="How a seed trains before it is blended in."
    )
    gates: Literal["strict", "off"] = Field(
        default="strict", description="Whether a seed is blended in, and later kept, only if it is shown to pay."
    )
    evidence: Literal["auto", "loss", "metric"] = Field(
        default="auto",
        description="What gains are measured in: nats of the validation loss, or the task's metric; auto: the metric "
        "if it is a share, such as accuracy.",
    )
    average: float = Field(
        default=16,
        ge=0,
        le=1_000_000,
        description="Half-life, in batches, of the running average of weights by which networks are judged; 0: none.",
    )
    final_weights: Literal["last", "average"] = Field(
        default="last",
        description="The weights that a network ends with and is tested with: those of the last batch, or their "
        "running average; then both are tested.",
    )
    price: PriceConfig = Field(default_factory=PriceConfig, description="What a seed has to gain.")
    auto_advance: bool = Field(
        default=True,
        description="Blend in a seed automatically once its gate opens, if it is alone in its slot and no other acts.",
    )
    nursery: Count = Field(
        default=2, le=64, description="Seeds of different blueprints that incubate in a slot at once; one advances."
    )
    embargo: Number = Field(
        default=constants.EMBARGO_STEPS, description="Steps after a prune in which nothing germinates in the slot."
    )
    seeds: Count | None = Field(
        default=None,
        description="Maximum number of seeds of a network, including fossilised ones; null: as slots allow.",
    )
    parameters: Count | None = Field(
        default=None, description="Maximum number of parameters that growth may add to a host; null: no limit."
    )
    freeze_fossils: bool = Field(default=False, description="Stop training the parameters of fossilised seeds.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.final_weights == "average" and not self.average:
            message = "final_weights is average, and average is 0, so that there is none. Use a half-life such as 16"
            raise ValueError(message)
        return self


class GovernorConfig(Section):
    """How broken training is detected and repaired. ``governor: off`` is short for ``governor: {enabled: false}``."""

    enabled: bool = Field(
        default=True, description="Watch the network; false, or governor: off: judge, restore and stop nothing."
    )
    rollback: bool = Field(
        default=True, description="Roll a broken environment back to a snapshot; false: stop the run."
    )
    rollbacks: Number = Field(
        default=constants.ROLLBACKS_IN_EPISODE, description="Rollbacks in an episode before the run is stopped."
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
    watch_steps: Number = Field(
        default=constants.WATCH_STEPS, description="Steps after an action in which a panic is attributed to it."
    )
    patience: Count | None = Field(
        default=None, description="Steps without improvement after which an episode ends early; null: never."
    )

    @property
    def copies(self) -> int:
        """Snapshots that are kept: none where nothing is rolled back."""
        return self.snapshots if self.enabled and self.rollback else 0

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"enabled": False} if value is False or value == "off" else value


class ComputeConfig(Section):
    """How a batch is computed. Only precision, micro-batches, compiler, fusion and layout change results."""

    precision: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        default="float32",
        description="Number format of passes, but not of losses; auto: the shortest that the GPU supports.",
    )
    micro_batches: Count = Field(
        default=1, le=1_000_000, description="Parts of a batch that are computed in turn; their gradients are added."
    )
    compile: bool = Field(default=False, description="Compile the training pass of the host with torch.compile.")
    fused: Literal[True, False, "gpu"] = Field(
        default=True,
        description="Train networks of one structure as one program, which rounds otherwise; gpu: on a GPU, too.",
    )
    layout: Literal["auto", "plain"] = Field(
        default="auto", description="Memory layout of images; auto: channels last where host and blueprints allow it."
    )
    data: Literal["resident", "streamed"] = Field(
        default="resident", description="Keep data on the device, or on the CPU and send batches to the device."
    )
