"""Settings of the rewards, with their defaults."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

Amount = Annotated[float, Field(ge=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(ge=1, le=100_000)]

PRICE: Final = "Hundredths of the metric that doubling the host's parameters must bring; a fossil costs a tenth."
RENT: Final = "Points that a host's worth of added parameters costs in each step."
FLOPS: Final = "The same for doubling its operations; 0: they are free, and are not counted."
SHAPING: Final = "Points that a seed gets on its way to be kept, and gives back at the end."
GAMMA: Final = "The learner's own discount: with another one shaping changes what is best."


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


class EscrowSettings(TeamSettings):
    """Settings of ``escrow``."""


class SparseSettings(TeamSettings):
    """Settings of ``sparse``."""


class MinimalSettings(TeamSettings):
    """Settings of ``minimal``."""

    haste: Amount = Field(default=0.5, description="Points that the prune of a young seed costs.")
    young: Steps = Field(default=5, description="Steps after which pruning a seed costs nothing.")


class SimplifiedSettings(TeamSettings):
    """Settings of ``simplified``."""

    churn: Amount = Field(default=0.1, description="Points that a germination or a prune costs.")
    shaping: Amount = Field(default=1.0, description=SHAPING)
    gamma: Share = Field(default=1.0, description=GAMMA)


class ShapedSettings(BaseModel):
    """Settings of ``shaped``."""

    model_config = STRICT

    contribution: Amount = Field(
        default=0.05, description="Points in each step for each hundredth of a nat that all seeds gain together."
    )
    rent: Amount = Field(default=1.0, description=RENT)
    shaping: Amount = Field(default=1.0, description=SHAPING)
    gamma: Share = Field(default=1.0, description=GAMMA)
    terminal: Amount = Field(
        default=1.0, description="Points at the end for each hundredth by which the metric exceeds the twin's."
    )


class BasicSettings(BaseModel):
    """Settings of ``basic``."""

    model_config = STRICT

    rent: Amount = Field(default=1.0, description=RENT)
    bonus: Amount = Field(
        default=0.2, description="Points for each hundredth of a nat that a seed gained when it was kept."
    )


class BasicPlusSettings(BasicSettings):
    """Settings of ``basic_plus``."""

    bonus: Amount = Field(
        default=0.2, description="Points in total for each hundredth of a nat that a kept seed gains."
    )
    later: Share = Field(
        default=0.5, description="Share of the bonus that is paid in later steps, as long as the seed gains."
    )
    over: Steps = Field(default=10, description="Steps after which that share has been paid once, if the gain lasts.")
