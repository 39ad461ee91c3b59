"""Hosts: MLPs over vectors, positions and tokens, convolutional networks, and a small transformer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from esper_core.leyline import ConfigError, Problem
from esper_tasks.settings import (
    Cnn1dSettings,
    Cnn2dSettings,
    MlpSettings,
    PointwiseMlpSettings,
    TokenMlpSettings,
    TransformerSettings,
    WideCnn1dSettings,
)

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core.leyline import DataShape
    from esper_tasks.settings import OddWidth


def demand(fits: bool, takes: str, shape: DataShape) -> None:
    """Raise ConfigError unless the data fit; ``takes`` is a sentence that begins with the host's name.

    >>> from esper_core.leyline import DataShape
    >>> demand(False, "cnn2d takes images", DataShape("vector", (4,), 2))
    Traceback (most recent call last):
    esper_core.leyline.errors.ConfigError: E120 cnn2d takes images
      Received: vector (4,)
    """
    if not fits:
        raise ConfigError(Problem("E120", takes, hint=f"Received: {shape.kind} {shape.example}"))


class Mlp(nn.Module):
    """A multilayer perceptron, which does not use the order of an example's numbers.

    Formula: head(second(first(x))), where first = relu(linear(flatten)), second = relu(linear), head = linear.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in Mlp(DataShape("vector", (40,), 10)).parameters())
    2698

    shape: vectors, or other examples of numbers, which are flattened. hidden: width of both hidden layers.
    """

    def __init__(self, shape: DataShape, *, hidden: int = 32) -> None:
        settings = MlpSettings(hidden=hidden)
        symbols = shape.kind == "tokens" and len(shape.example) == 1
        demand(not symbols, "mlp takes numeric features, not integer symbols", shape)
        super().__init__()
        inputs = math.prod(shape.example)
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(inputs, settings.hidden), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(settings.hidden, settings.hidden), nn.ReLU())
        self.head = nn.Linear(settings.hidden, shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, outputs) for inputs (N, …)."""
        outputs: Tensor = self.head(self.second(self.first(inputs)))
        return outputs


class PointwiseMlp(nn.Module):
    """A pointwise layer, a pooling and an MLP: no layer sees neighbours before the MLP mixes all places.

    Formula: head(hidden(pool(stem(x)))), where stem = relu(conv of width ``kernel``), pool = maximum of two
    neighbours, hidden = relu(linear(flatten)), head = linear. Inputs (N, C, L), outputs (N, outputs).

    On ``mnist1d`` it reaches about 55 % in 40 steps, and about 80 % with a ``conv_light`` grown after ``stem``. The
    command ``esper run plugins.yaml`` gives both figures, means over eight RNG seeds.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in PointwiseMlp(DataShape("sequence", (1, 40), 10)).parameters())
    5498

    shape: shape of the data. channels: features per position.
    hidden: width of the hidden layer. kernel: width of the stem; from 3 on it combines neighbours.
    """

    def __init__(self, shape: DataShape, *, channels: int = 8, hidden: int = 32, kernel: OddWidth = 1) -> None:
        settings = PointwiseMlpSettings(channels=channels, hidden=hidden, kernel=kernel)
        fits = shape.kind == "sequence" and len(shape.example) == 2 and shape.example[1] >= 2
        demand(fits, "pointwise-mlp takes sequences (channels, length) of length 2 or more", shape)
        super().__init__()
        inputs, length = shape.example
        flat = settings.channels * (length // 2)
        stem = nn.Conv1d(inputs, settings.channels, kernel_size=kernel, padding=kernel // 2)
        self.stem = nn.Sequential(stem, nn.ReLU())
        self.pool = nn.MaxPool1d(2)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(flat, settings.hidden), nn.ReLU())
        self.head = nn.Linear(settings.hidden, shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, outputs) for inputs (N, C, L)."""
        outputs: Tensor = self.head(self.hidden(self.pool(self.stem(inputs))))
        return outputs


class TokenMlp(nn.Module):
    """An MLP over each token, then the mean over tokens and a linear head: no layer sees two tokens together.

    Formula: head(mean over tokens of mix(embed(x))), where embed = linear + position, mix = h + mlp(h).
    Inputs (N, T, D), outputs (N, outputs).

    >>> from esper_core.leyline import DataShape
    >>> TokenMlp(DataShape("tokens", (12, 5), 4))(torch.zeros(2, 12, 5)).shape
    torch.Size([2, 4])

    shape: tokens as vectors. width: features per token.
    """

    def __init__(self, shape: DataShape, *, width: int = 16) -> None:
        settings = TokenMlpSettings(width=width)
        fits = shape.kind == "tokens" and len(shape.example) == 2
        demand(fits, "token-mlp takes tokens as vectors: (tokens, features)", shape)
        super().__init__()
        tokens, inputs = shape.example
        self.embed = Embed(tokens, inputs, settings.width)
        self.mix = EachToken(settings.width)
        self.head = nn.Linear(settings.width, shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, outputs) for inputs (N, T, D)."""
        outputs: Tensor = self.head(self.mix(self.embed(inputs)).mean(dim=1))
        return outputs


class Embed(nn.Module):
    """A linear layer over each token, and a learned row for its position."""

    def __init__(self, tokens: int, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (N, T, width)."""
        features: Tensor = self.linear(inputs) + self.position
        return features


class EachToken(nn.Module):
    """A residual MLP over each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, features: Tensor) -> Tensor:
        """Return features in the shape of the features."""
        mixed: Tensor = features + self.layers(features)
        return mixed


class ConvNormReLU(nn.Module):
    """A convolution without a bias, over images or else sequences, a normalisation, and a ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, two: bool) -> None:
        super().__init__()
        convolution = nn.Conv2d if two else nn.Conv1d
        self.conv = convolution(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs) if two else nn.BatchNorm1d(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features of the size of the inputs."""
        return functional.relu(self.norm(self.conv(inputs)))


SMALLEST = 8
"""Smallest height, width or length that three poolings leave above 0."""


class Convolutional(nn.Module):
    """Three blocks, each with twice the features at half the size; then the mean over all places, and a head.

    Formula: head(features(pool(late(pool(middle(pool(early(x)))))))), where each block = relu(norm(conv)), the
    convolution without a bias, pool = maximum of two neighbours in each dimension, features = mean over places,
    head = linear. A slot after a block is before the pooling, where the resolution is higher.

    shape: images or sequences, at least 8 in each dimension. channels: features after the first block. kernel: width of
    the convolutions, odd.
    """

    def __init__(self, shape: DataShape, channels: int, kernel: int) -> None:
        super().__init__()
        inputs, two = shape.example[0], shape.kind == "image"
        self.early = ConvNormReLU(inputs, channels, kernel, two=two)
        self.middle = ConvNormReLU(channels, 2 * channels, kernel, two=two)
        self.late = ConvNormReLU(2 * channels, 4 * channels, kernel, two=two)
        self.pools = nn.ModuleList(nn.MaxPool2d(2) if two else nn.MaxPool1d(2) for _ in range(3))
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1) if two else nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(4 * channels, shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, outputs) for inputs (N, C, H, W) or (N, C, L)."""
        hidden = inputs
        for block, pool in zip((self.early, self.middle, self.late), self.pools, strict=True):
            hidden = pool(block(hidden))
        outputs: Tensor = self.head(self.features(hidden))
        return outputs


def cnn2d(shape: DataShape, *, channels: int = 8, kernel: OddWidth = 3) -> Convolutional:
    """Build a ``Convolutional`` for images; with the defaults 3 → 8 → 16 → 32 channels.

    With ``kernel`` 1 it combines no neighbours.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in cnn2d(DataShape("image", (3, 32, 32), 10)).parameters())
    6418

    shape: images (C, H, W), at least 8 × 8. channels: features after the first block.
    kernel: width of the convolutions; at 1 they see no neighbours.
    """
    settings = Cnn2dSettings(channels=channels, kernel=kernel)
    fits = shape.kind == "image" and len(shape.example) == 3 and min(shape.example[1:]) >= SMALLEST
    demand(fits, f"cnn2d takes images (channels, height, width) of at least {SMALLEST} × {SMALLEST}", shape)
    return Convolutional(shape, settings.channels, settings.kernel)


def cnn1d(shape: DataShape, *, channels: int = 4, kernel: OddWidth = 3) -> Convolutional:
    """Build a ``Convolutional`` for sequences; with the defaults C → 4 → 8 → 16 channels, which is narrow.

    With ``kernel`` 1 it combines no neighbours.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in cnn1d(DataShape("sequence", (1, 40), 10)).parameters())
    718

    shape: sequences (C, L), L at least 8. channels: features after the first block.
    kernel: width of the convolutions; at 1 they see no neighbours.
    """
    settings = Cnn1dSettings(channels=channels, kernel=kernel)
    fits = shape.kind == "sequence" and len(shape.example) == 2 and shape.example[1] >= SMALLEST
    demand(fits, f"cnn1d takes sequences (channels, length) of length {SMALLEST} or more", shape)
    return Convolutional(shape, settings.channels, settings.kernel)


def wide_cnn1d(shape: DataShape, *, channels: int = 25, kernel: OddWidth = 3) -> Convolutional:
    """Build a ``cnn1d`` so wide that no seed should pay: a negative control.

    On ``mnist1d`` it reaches 97 % in 40 steps of 12 batches, and strict gates keep nothing.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in wide_cnn1d(DataShape("sequence", (1, 40), 10)).parameters())
    20185

    Arguments as for ``cnn1d``.
    """
    settings = WideCnn1dSettings(channels=channels, kernel=kernel)
    return cnn1d(shape, channels=settings.channels, kernel=settings.kernel)


class Transformer(nn.Module):
    """Blocks of attention and MLP over embedded tokens, each after a normalisation of its input.

    Formula: head(norm(blocks(embed(x) + position))), where block: h ← h + attention(norm(h)), h ← h + mlp(norm(h)).
    Inputs are symbols (N, T), integers below ``vocabulary``, or vectors (N, T, D). With ``causal`` a token attends only
    to itself and earlier ones, and outputs are (N, T, outputs); without it tokens attend to all, and outputs are those
    of the mean over tokens, (N, outputs).

    A seed in a causal transformer must not look ahead either: one that mixes tokens in both directions, such as
    attention, sees the target. Grow blueprints there that act on each token separately.

    >>> from esper_core.leyline import DataShape
    >>> bytes_in = torch.zeros(2, 64, dtype=torch.int64)
    >>> Transformer(DataShape("tokens", (64,), 256), causal=True)(bytes_in).shape
    torch.Size([2, 64, 256])

    The head of a causal one over the symbols of its inputs is tied: it has the embedding's weights, which the model has
    once, under one name.

    shape: tokens. chosen: settings, those of ``TransformerSettings``.
    """

    def __init__(self, shape: DataShape, **chosen: Any) -> None:
        settings = TransformerSettings.model_validate(chosen)
        fits = shape.kind == "tokens" and len(shape.example) in (1, 2)
        demand(fits, "transformer takes tokens: integer symbols (tokens,) or vectors (tokens, features)", shape)
        super().__init__()
        self.causal = settings.causal
        self.embed = _embedding(shape, settings)
        self.position = nn.Parameter(0.02 * torch.randn(shape.example[0], settings.width))
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.blocks))
        self.norm = nn.LayerNorm(settings.width)
        is_tied = self.causal and len(shape.example) == 1 and settings.vocabulary in (None, shape.outputs)
        self.head = None if is_tied else nn.Linear(settings.width, shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, T, outputs) if causal, else (N, outputs)."""
        features: Tensor = self.embed(inputs) + self.position
        for block in self.blocks:
            features = block(features)
        features = self.norm(features)
        if not self.causal:
            features = features.mean(dim=1)
        if self.head is None:
            assert isinstance(self.embed, nn.Embedding)
            return functional.linear(features, self.embed.weight)
        outputs: Tensor = self.head(features)
        return outputs


class Block(nn.Module):
    """Attention, then an MLP, each as a residual."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        width = settings.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(settings)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Return features (N, T, width)."""
        features = features + self.dropout(self.attention(self.attention_norm(features)))
        mixed: Tensor = features + self.dropout(self.mlp(self.mlp_norm(features)))
        return mixed


class Attention(nn.Module):
    """Multi-head self-attention; if causal, without later tokens."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.heads, self.causal = settings.heads, settings.causal
        self.query_key_value = nn.Linear(settings.width, 3 * settings.width)
        self.out = nn.Linear(settings.width, settings.width)

    def forward(self, features: Tensor) -> Tensor:
        """Return features (N, T, width)."""
        split_heads = self.query_key_value(features).unflatten(2, (3, self.heads, -1))
        query, key, value = split_heads.permute(2, 0, 3, 1, 4)
        taken = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        outputs: Tensor = self.out(taken.transpose(1, 2).flatten(2))
        return outputs


def _embedding(shape: DataShape, settings: TransformerSettings) -> nn.Module:
    if len(shape.example) == 2:
        return nn.Linear(shape.example[1], settings.width)
    embedding = nn.Embedding(settings.vocabulary or shape.outputs, settings.width)
    nn.init.normal_(embedding.weight, std=settings.width**-0.5)  # the outputs of a tied head then have size 1
    return embedding
