"""Settings of the tasks and hosts, with their defaults."""

from __future__ import annotations

from math import comb
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from esper_core.leyline import SiteKind

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Samples = Annotated[
    int, Field(ge=30, le=1_000_000, description="Examples in all; a sixth each is for validation and test.")
]
Width = Annotated[int, Field(ge=1, le=65_536)]
OddWidth = Literal[1, 3, 5, 7]
Share = Annotated[float, Field(gt=0, lt=1)]
Predicted = Literal["class", "number"]


class Settings(BaseModel):
    """Base of the settings models: unknown keys are refused, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Mnist1dSettings(Settings):
    """Settings of ``mnist1d`` and ``mnist1d-shuffled``. The defaults give the published data."""

    validation: int = Field(default=800, ge=1, description="Training examples held out for validation.")
    samples: int = Field(
        default=5000, ge=100, le=1_000_000, multiple_of=10, description="Examples in all; a fifth is the test split."
    )
    seed: Seed = Field(default=42, description="RNG seed of the data; 42 gives the published data.")
    noise: float = Field(default=1.0, ge=0, le=10, description="Factor of the published noise.")

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

    seed: Seed = Field(default=0, description="RNG seed of the data.")
    noise: float = Field(default=0.3, ge=0, le=10, description="Standard deviation of the noise; a stripe is 1 high.")


class ImagesSyntheticSettings(Settings):
    """Settings of ``images-synthetic``."""

    samples: Samples = 3000
    size: int = Field(default=16, ge=8, le=256, description="Height and width of an image.")
    seed: Seed = Field(default=0, description="RNG seed of the data.")
    noise: float = Field(default=0.7, ge=0, le=10, description="Standard deviation of the noise; a wave is 2 high.")


class MarkedSumSettings(Settings):
    """Settings of ``marked-sum``."""

    samples: Samples = 4500
    length: int = Field(default=12, ge=4, le=1024, description="Tokens per example.")
    symbols: int = Field(default=4, ge=2, le=256, description="Number of symbols and of classes; sums are modulo this.")
    seed: Seed = Field(default=0, description="RNG seed of the data.")

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

    length: int = Field(default=64, ge=16, le=4096, description="Bytes per window.")
    windows: int | None = Field(default=None, ge=1, description="Maximum number of training windows; null: all.")
    held_out: int = Field(default=200, ge=1, description="Maximum number of windows for validation, and for the test.")


class DigitsSettings(Settings):
    """Settings of ``digits``. Of 1,797 digits at least 197 are left to train on."""

    validation: int = Field(default=300, ge=1, le=800, description="Examples held out for validation.")
    test: int = Field(default=300, ge=1, le=800, description="Examples held out for the test.")
    seed: Seed = Field(default=0, description="RNG seed of the draw.")


class OwnDataSettings(Settings):
    """Settings of tasks that read data of the user's own."""

    predict: Predicted = Field(
        default="class",
        description="class: classification, scored by accuracy; number: regression, scored by squared error.",
    )
    normalise: bool = Field(
        default=True,
        description="Whether features, and numbers to be predicted, get mean 0 and deviation 1 over the training data.",
    )
    validation: Share = Field(default=0.15, description="Share of the examples held out for validation.")
    test: Share = Field(default=0.15, description="Share of the examples held out for the test.")
    seed: Seed = Field(default=0, description="RNG seed of both draws.")

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.validation + self.test > 0.9:
            msg = f"validation + test must be at most 0.9. Received: {self.validation} + {self.test}"
            raise ValueError(msg)
        return self


class NpzSettings(OwnDataSettings):
    """Settings of ``npz``."""

    path: str = Field(
        min_length=1, description="An .npz file or a folder of .npy files; relative to the current folder."
    )
    inputs: str = Field(default="inputs", min_length=1, description="Name of the array with the inputs.")
    targets: str = Field(default="targets", min_length=1, description="Name of the array with the targets.")
    kind: SiteKind | None = Field(
        default=None, description="Kind of the inputs; null: vector, sequence or image, by their dimensions."
    )


class PointwiseMlpSettings(Settings):
    """Settings of ``pointwise-mlp``."""

    channels: Width = Field(default=8, description="Features of each position.")
    hidden: Width = Field(default=32, description="Width of the hidden layer.")
    kernel: OddWidth = Field(default=1, description="Kernel width of the stem; at 1 it combines no neighbours.")


class Cnn1dSettings(Settings):
    """Settings of ``cnn1d``."""

    channels: Width = Field(default=4, description="Features after the first block; doubled after each further block.")
    kernel: OddWidth = Field(default=3, description="Width of the convolutions; at 1 they combine no neighbours.")


class WideCnn1dSettings(Cnn1dSettings):
    """Settings of ``wide-cnn1d``."""

    channels: Width = Field(default=25, description="Features after the first block; doubled after each further block.")


class Cnn2dSettings(Cnn1dSettings):
    """Settings of ``cnn2d``."""

    channels: Width = Field(default=8, description="Features after the first block; doubled after each further block.")


class MlpSettings(Settings):
    """Settings of ``mlp``."""

    hidden: Width = Field(default=32, description="Width of both hidden layers.")


class TokenMlpSettings(Settings):
    """Settings of ``token-mlp``."""

    width: Width = Field(default=16, description="Features of each token.")


class TransformerSettings(Settings):
    """Settings of ``transformer``."""

    width: Width = Field(default=32, description="Features of each token, a multiple of heads.")
    blocks: int = Field(default=2, ge=1, le=64, description="Number of blocks, each of attention and MLP.")
    heads: int = Field(default=4, ge=1, le=256, description="Number of attention heads.")
    causal: bool = Field(
        default=False,
        description="true: tokens attend only to earlier ones, with outputs per token; "
        "false: each token sees all, and there are outputs for the mean over them.",
    )
    vocabulary: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Number of symbols, if tokens are integers; null: as many as outputs.",
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout probability after each layer.")

    @model_validator(mode="after")
    def _heads_of_one_width(self) -> Self:
        if self.width % self.heads:
            msg = f"width must be a multiple of heads={self.heads}. Received: {self.width}"
            raise ValueError(msg)
        return self
