"""Settings of the rewards, with their defaults."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

Amount = Annotated[float, Field(ge=0, le=1e6)]

PRICE: Final = "Hundredths of the metric that doubling the host's parameters must bring; a fossil costs a tenth."
FLOPS: Final = "The same for doubling its operations; 0: they are free, and are not counted."


class TeamSettings(BaseModel):
    """Settings of ``team``."""

    model_config = STRICT

    price: Amount = Field(default=20.0, description=PRICE)
    price_of_flops: Amount = Field(default=0.0, description=FLOPS)


class LossSettings(TeamSettings):
    """Settings of ``loss``."""

    price: Amount = Field(
        default=20.0, description="Hundredths of a nat that doubling the host must bring; a fossil costs a tenth."
    )
