"""The model of a run's configuration: frozen sections and their only defaults."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from esper_core.leyline import constants
from esper_core.leyline.specs import SiteKind
from esper_core.settings import (
    ComputeConfig,
    Described,
    EpisodeConfig,
    GovernorConfig,
    GrowthConfig,
    OptimizersConfig,
    Section,
    Use,
)

MAX_EPISODES: Final = 10_000_000
"""Episodes of a run: rounds × environments × arms, with the twin."""

TWIN: Final = "twin"
"""Name of the arm that trains the same networks without growth."""

CAPACITY: Final = "capacity"
"""Name of the arm that trains from the start what another arm grew; with several such arms: capacity-of-ARM."""


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
    Described("a URL without a password, such as s3://bucket/prefix or file:///path"),
]


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


class ArmConfig(Section):
    """One arm of the comparison. Arms differ only in what is given here."""

    policy: Use = Field(description="Chooses the actions of this arm.")


class CheckpointConfig(Section):
    """How often checkpoints are written, from which a run can be resumed."""

    every: Every = Field(
        default="auto", description="Steps between checkpoints; auto: so that they take at most 2 % of the time."
    )
    keep: Count = Field(default=2, le=1000, description="Number of the newest checkpoints to keep.")


class PluginsConfig(Section):
    """Which of the installed plugins take part."""

    disable: Names = Field(default=(), description="Ids of plugins to leave out.")
    local: Annotated[tuple[FilePath, ...], Field(strict=False)] = Field(
        default=(), description="One-file plugins: paths, relative to this file.", max_length=64
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
        default=True,
        description="Train the control: hosts with an arm's grown blocks from the start, unless these are frozen.",
    )
    reward: Use = Field(default=Use(use="team"), description="The reward of a step.")
    sinks: Annotated[tuple[Use, ...], Field(strict=False)] = Field(
        default=(), description="Sinks that also receive the events.", max_length=32
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="RNG seed of the first environment.")
    environments: Count = Field(
        default=8, le=4096, description="Environments of each arm, each with an RNG seed of its own."
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
    engine: Use = Field(
        default=Use(use="threads"),
        description="What lanes are: threads, or an engine of another package: processes, or ray for workers on a "
        "cluster.",
    )
    patience: Patience = Field(
        default="auto",
        description="Seconds after which a component hangs; auto: 20 times the longest part of a step, at least 180.",
    )
    grace: float = Field(
        default=20.0, gt=0, description="Seconds that a step may go on after a signal; then the run gives it up."
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
    plugins: PluginsConfig = Field(default_factory=PluginsConfig, description="Which plugins take part.")

    @field_validator("reward", mode="before")
    @classmethod
    def _default_reward(cls, value: Any) -> Any:
        """Take settings without a name as those of the default reward."""
        return {"use": "team"} | value if isinstance(value, dict) else value
