"""Settings of the blueprints that have some, with their defaults."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Base of the settings models: unknown keys are refused, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LoraSettings(Settings):
    """Settings of ``lora`` and ``dora``."""

    rank: int = Field(8, ge=1, description="Features between the two maps.")
    alpha: float | None = Field(
        None, gt=0, description="The change is multiplied by alpha/rank. None: the rank, a factor of 1."
    )
    rslora: bool = Field(False, description="Multiply by alpha/√rank instead, so that large ranks learn as fast.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the inputs that is dropped in training.")


class AdapterSettings(Settings):
    """Settings of ``bottleneck_adapter``."""

    width: int = Field(16, ge=1, description="Features between the two maps.")
