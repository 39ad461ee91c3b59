"""Settings of the policies and schedules of this package, with their defaults.

Whether they fit the slots of the run is checked when the policy is built.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from esper_core.leyline.constants import RAMP_STEPS

LONGEST: Final = 100_000
"""Steps of the longest episode."""

RISE: Final = 6.0
"""Age at which a seed has shown half of its final gain, in steps of 32 batches; measured on branches."""

CAUTION: Final = 1.64
"""Standard errors that are subtracted from a gain: a gain of 0 counts as more in one case of twenty."""


class Settings(BaseModel):
    """Base of the settings models: unknown keys are refused, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PlanEntry(Settings):
    """One line of a plan: ``{step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 4}``."""

    step: int = Field(ge=0, description="First decision step at which it is tried, counted from 0.")
    op: Literal["germinate", "advance", "prune", "fossilise"] = Field(description="Action to take.")
    slot: str | None = Field(default=None, description="Slot to act on; required.")
    blueprint: str | None = Field(default=None, description="For germinate: blueprint, by short name or full id.")
    blend: Literal["add", "residual", "multiply", "gate"] | None = Field(
        default=None, description="For germinate: blend operator; default: add."
    )
    speed: int | None = Field(
        default=None,
        ge=0,
        description="For germinate: decision steps in which the seed is blended in; for prune: out; 0: at once.",
    )


class ScheduleSettings(Settings):
    """Settings of ``schedule``."""

    plan: Annotated[tuple[PlanEntry, ...], Field(strict=False)] = Field(
        description="Actions with their steps; those of one slot in order of step."
    )


class HeuristicSettings(Settings):
    """Settings of ``heuristic``. The defaults are for decision steps of an epoch each, about 40 of them."""

    preview: int = Field(
        default=6, ge=1, le=100_000, description="Steps that a seed trains in isolation before it is judged first."
    )
    patience: int = Field(
        default=20,
        ge=0,
        le=100_000,
        description="Most further steps for a seed that may pay, in isolation and again once it is blended in.",
    )
    first: float = Field(default=0.0, ge=0, le=1, description="Share of the episode before which nothing germinates.")
    last: float = Field(default=1.0, ge=0, le=1, description="Share of the episode after which nothing germinates.")
    speed: int = Field(
        default=RAMP_STEPS, ge=1, le=100_000, description="Steps over which a seed is blended in, or out again."
    )
    rise: float = Field(
        default=RISE,
        ge=0,
        le=1000,
        description="Age at which a seed in isolation shows half of its final gain, in steps of 32 batches.",
    )
    caution: float = Field(
        default=CAUTION, ge=0, le=100, description="Standard errors subtracted from a measured gain."
    )
    share: float = Field(
        default=0.6,
        ge=0,
        le=1000,
        description="What previews of seeds may cost that are not kept, in operations: as a share of the episode's, of "
        "40 steps at most.",
    )


class RandomSettings(Settings):
    """Settings of ``random``."""

    seed: int = Field(default=0, ge=0, description="RNG seed of all draws.")


class WarmupSettings(Settings):
    """Settings of ``warmup``."""

    over: int = Field(default=2, ge=0, le=1_000_000, description="Steps with a factor below 1; 0: no warm-up.")


class CosineSettings(Settings):
    """Settings of ``cosine``."""

    floor: float = Field(default=0.0, ge=0, le=1, description="Factor at the last step.")
    warmup: int = Field(default=0, ge=0, le=1_000_000, description="Steps of warm-up before the decay.")
