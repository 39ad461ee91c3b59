"""Settings of the rewards, with their defaults."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from esper_core.leyline.constants import PRICE_OF_DOUBLING

STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

Amount = Annotated[float, Field(ge=0, le=1e6)]

PRICE: Final = 100 * PRICE_OF_DOUBLING
"""Default price, in points: that of the gates."""


class TeamSettings(BaseModel):
    """Settings of ``team``."""

    model_config = STRICT

    price: Amount = Field(
        default=PRICE,
        description="Points that each doubling of the host must bring: hundredths of a metric that is a share, else of "
        "the twin's metric. A fossil costs a tenth.",
    )


class LossSettings(TeamSettings):
    """Settings of ``loss``."""

    price: Amount = Field(
        default=PRICE,
        description="Hundredths of the twin's loss that each doubling of the host must bring; a fossil costs a tenth.",
    )
