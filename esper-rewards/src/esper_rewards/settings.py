"""What can be set for each reward of this package, and within which bounds?"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TeamSettings(BaseModel):
    """Settings of ``team``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    price: float = Field(
        default=20.0,
        ge=0,
        le=1e6,
        description="Hundredths of the metric that doubling the host's parameters must bring; a fossil costs a tenth.",
    )
