"""What can be set for each task and host of this package, and within which bounds?"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Width = Annotated[int, Field(ge=1, le=65_536)]


class Settings(BaseModel):
    """Settings of a component: what it does not know is refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Mnist1dSettings(Settings):
    """Settings of ``mnist1d`` and ``mnist1d-shuffled``. The defaults give the published data."""

    validation: int = Field(default=800, ge=1, description="Training examples that are held out to steer by.")
    samples: int = Field(
        default=5000, ge=100, le=1_000_000, multiple_of=10, description="Examples in all; a fifth is the test split."
    )
    seed: Seed = Field(default=42, description="Seed of the data; the published data has 42.")
    noise: float = Field(default=1.0, ge=0, le=10, description="Factor on the published amount of noise.")

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        available = self.samples * 4 // 5
        if self.validation >= available:
            msg = (
                f"validation must leave something of the {available} training examples that samples={self.samples} "
                f"gives. Received: {self.validation}"
            )
            raise ValueError(msg)
        return self


class StripesSettings(Settings):
    """Settings of ``stripes``."""

    seed: Seed = Field(default=0, description="Seed of the data.")
    noise: float = Field(default=0.3, ge=0, le=10, description="Standard deviation of the noise; a stripe is 1 high.")


class PointwiseMlpSettings(Settings):
    """Settings of ``pointwise-mlp``."""

    channels: Width = Field(default=8, description="Features of each position.")
    hidden: Width = Field(default=32, description="Width of the hidden layer.")
