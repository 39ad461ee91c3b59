"""What can be set for each task and host of this package, and within which bounds?"""

from __future__ import annotations

from math import comb
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Width = Annotated[int, Field(ge=1, le=65_536)]
OddWidth = Literal[1, 3, 5, 7]


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


class ImagesSyntheticSettings(Settings):
    """Settings of ``images-synthetic``."""

    samples: int = Field(
        default=3000, ge=30, le=1_000_000, description="Examples in all; a sixth each is for validation and test."
    )
    size: int = Field(default=16, ge=8, le=256, description="Height and width of an image.")
    seed: Seed = Field(default=0, description="Seed of the data.")
    noise: float = Field(default=0.7, ge=0, le=10, description="Standard deviation of the noise; a wave is 2 high.")


class MarkedSumSettings(Settings):
    """Settings of ``marked-sum``."""

    samples: int = Field(
        default=4500, ge=30, le=1_000_000, description="Examples in all; a sixth each is for validation and test."
    )
    length: int = Field(default=12, ge=4, le=1024, description="Tokens of an example.")
    symbols: int = Field(default=4, ge=2, le=256, description="Symbols, and classes: sums are taken modulo this.")
    seed: Seed = Field(default=0, description="Seed of the data.")

    @model_validator(mode="after")
    def _no_example_twice(self) -> Self:
        examples = self.symbols**self.length * comb(self.length, 2)
        if examples < 50 * self.samples**2:  # a repeat is expected in one of a hundred data sets
            msg = (
                f"symbols={self.symbols} and length={self.length} give too few different examples, so that some would "
                f"come twice. Received: samples={self.samples}"
            )
            raise ValueError(msg)
        return self


class BytesSettings(Settings):
    """Settings of ``bytes``."""

    length: int = Field(default=64, ge=16, le=4096, description="Bytes of a window.")
    windows: int | None = Field(default=None, ge=1, description="Windows to train on, at most; null: all there are.")
    held_out: int = Field(default=200, ge=1, description="Windows for validation, and as many for the test, at most.")


class PointwiseMlpSettings(Settings):
    """Settings of ``pointwise-mlp``."""

    channels: Width = Field(default=8, description="Features of each position.")
    hidden: Width = Field(default=32, description="Width of the hidden layer.")


class Cnn1dSettings(Settings):
    """Settings of ``cnn1d``."""

    channels: Width = Field(default=4, description="Features after the first block; twice as many after each further.")
    kernel: OddWidth = Field(default=3, description="Width of the convolutions; at 1 they see no neighbours.")


class Cnn2dSettings(Settings):
    """Settings of ``cnn2d``."""

    channels: Width = Field(default=8, description="Features after the first block; twice as many after each further.")
    kernel: OddWidth = Field(default=3, description="Width of the convolutions; at 1 they see no neighbours.")


class MlpSettings(Settings):
    """Settings of ``mlp``."""

    hidden: Width = Field(default=32, description="Width of both hidden layers.")


class TokenMlpSettings(Settings):
    """Settings of ``token-mlp``."""

    width: Width = Field(default=16, description="Features of each token.")


class TransformerSettings(Settings):
    """Settings of ``transformer``."""

    width: Width = Field(default=32, description="Features of each token, a multiple of heads.")
    blocks: int = Field(default=2, ge=1, le=64, description="Blocks of attention and MLP.")
    heads: int = Field(default=4, ge=1, le=256, description="Heads of the attention.")
    causal: bool = Field(
        default=False,
        description="true: a token sees none that comes later, and there are outputs for each token; "
        "false: each token sees all, and there are outputs for the mean over them.",
    )
    vocabulary: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Symbols there are, where tokens are numbers; null: as outputs."
    )
    tied: bool | None = Field(
        default=None, description="Whether the head has the weights of the embedding; null: where it can."
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of features dropped behind each layer.")

    @model_validator(mode="after")
    def _heads_of_one_width(self) -> Self:
        if self.width % self.heads:
            msg = f"width must be a multiple of heads={self.heads}. Received: {self.width}"
            raise ValueError(msg)
        return self
