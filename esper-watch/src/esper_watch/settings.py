"""Settings of this package's sinks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TensorboardSettings(BaseModel):
    """Settings of ``tensorboard``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    folder: str = Field(
        default="tensorboard", min_length=1, description="Folder for the curves, below the run's folder."
    )
    every: int = Field(default=1, ge=1, le=1_000_000, description="Decision steps between two points of a curve.")
