"""What does an ordinary small convolutional network look like? Three blocks and poolings, and a head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from esper_tasks.fitting import demand
from esper_tasks.settings import Cnn1dSettings, Cnn2dSettings, WideCnn1dSettings

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core.leyline import DataShape
    from esper_tasks.settings import OddWidth

SMALLEST = 8
"""Height, width or length that three poolings leave something of."""


class Convolutional(nn.Module):
    """Three blocks, each with twice the features at half the size; then the mean over all places, and a head.

    Formula: head(features(pool(late(pool(middle(pool(early(x)))))))), where each block = relu(norm(conv)), the
    convolution without a bias, pool = maximum of two neighbours in each dimension, features = mean over places,
    head = linear. A slot behind a block stands before the pooling, where there is most to see.

    shape: images or sequences, at least 8 each way. channels: features after the first block. kernel: width of the
    convolutions, odd.
    """

    def __init__(self, shape: DataShape, channels: int, kernel: int) -> None:
        super().__init__()
        inputs, two = shape.example[0], shape.kind == "image"
        self.early = _block(inputs, channels, kernel, two=two)
        self.middle = _block(channels, 2 * channels, kernel, two=two)
        self.late = _block(2 * channels, 4 * channels, kernel, two=two)
        self.pools = nn.ModuleList(nn.MaxPool2d(2) if two else nn.MaxPool1d(2) for _ in range(3))
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1) if two else nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(4 * channels, shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (N, outputs) for inputs (N, C, H, W) or (N, C, L)."""
        hidden = inputs
        for block, pool in zip((self.early, self.middle, self.late), self.pools, strict=True):
            hidden = pool(block(hidden))
        outputs: Tensor = self.head(self.features(hidden))
        return outputs


def cnn2d(shape: DataShape, *, channels: int = 8, kernel: OddWidth = 3) -> Convolutional:
    """``Convolutional`` for images; with the defaults 3 → 8 → 16 → 32 channels.

    On ``images-synthetic`` it comes to 92 % in 12 epochs, and to 98 % with two convolutions behind ``early``. A lack is
    there to be set: with ``kernel`` 1 it sees no neighbours and comes to 20 %, with the convolutions to 93 %.
    ``pytest esper-tasks/tests/test_figures.py -s -k images`` gives these figures.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in cnn2d(DataShape("image", (3, 32, 32), 10)).parameters())
    6418

    shape: images (C, H, W), at least 8 each way. channels: features after the first block.
    kernel: width of the convolutions; at 1 they see no neighbours.
    """
    settings = Cnn2dSettings(channels=channels, kernel=kernel)
    fits = shape.kind == "image" and len(shape.example) == 3 and min(shape.example[1:]) >= SMALLEST
    demand(fits, f"cnn2d takes images (channels, height, width) of at least {SMALLEST} × {SMALLEST}", shape)
    return Convolutional(shape, settings.channels, settings.kernel)


def cnn1d(shape: DataShape, *, channels: int = 4, kernel: OddWidth = 3) -> Convolutional:
    """``Convolutional`` for sequences; with the defaults C → 4 → 8 → 16 channels, which is narrow.

    On ``mnist1d`` it comes to 90 % in 20 epochs: narrow as it is, it lacks little. Two convolutions behind ``early``
    bring it to 92 %. With ``kernel`` 1 it comes to 46 %, with the convolutions to 77 %.
    ``pytest esper-tasks/tests/test_figures.py -s -k cnn1d`` gives these figures.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in cnn1d(DataShape("sequence", (1, 40), 10)).parameters())
    718

    shape: sequences (C, L), at least 8 long. channels: features after the first block.
    kernel: width of the convolutions; at 1 they see no neighbours.
    """
    settings = Cnn1dSettings(channels=channels, kernel=kernel)
    fits = shape.kind == "sequence" and len(shape.example) == 2 and shape.example[1] >= SMALLEST
    demand(fits, f"cnn1d takes sequences (channels, length) that are at least {SMALLEST} long", shape)
    return Convolutional(shape, settings.channels, settings.kernel)


def wide_cnn1d(shape: DataShape, *, channels: int = 25, kernel: OddWidth = 3) -> Convolutional:
    """``cnn1d`` in a width at which it lacks nothing: the control on which growth must find nothing.

    On ``mnist1d`` it comes to 97 % in 40 steps of 12 batches. Of 72 seeds strict gates then keep none, at a price of
    3e-5 nats for each parameter: ``benchmarks/science/incubation/results.md``.

    >>> from esper_core.leyline import DataShape
    >>> sum(p.numel() for p in wide_cnn1d(DataShape("sequence", (1, 40), 10)).parameters())
    20185

    Arguments as for ``cnn1d``.
    """
    settings = WideCnn1dSettings(channels=channels, kernel=kernel)
    return cnn1d(shape, channels=settings.channels, kernel=settings.kernel)


def _block(inputs: int, outputs: int, kernel: int, *, two: bool) -> nn.Sequential:
    if two:
        convolution: nn.Module = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
    convolution = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm1d(outputs), nn.ReLU())
