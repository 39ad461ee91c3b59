"""A task that is small enough for tests and on which growth helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from esper_tasks.settings import StripesSettings
from esper_tasks.supervised import Classification, as_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from esper_core.leyline import SplitName

LENGTH: Final = 16
TRAIN, VALIDATION, TEST = 200, 100, 80

# Each pattern has two stripes up and two down; only their order differs between classes.
_PATTERNS: Final = ((1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1), (-1, 1, 1, -1))


def stripes(*, seed: int = 0, noise: float = 0.3) -> Classification:
    """Generate noise (N, 1, 16) with one of four stripe patterns, the class; 200 / 100 / 80 examples.

    A network without convolutions has to learn every pattern at every position; one that combines neighbours learns
    it once.

    >>> stripes().split("train").inputs.shape
    torch.Size([200, 1, 16])

    seed: RNG seed of the data. noise: standard deviation; a stripe has amplitude 1.
    """
    settings = StripesSettings(seed=seed, noise=noise)
    generator = np.random.RandomState(settings.seed)
    sizes: dict[SplitName, int] = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    splits = {name: as_split(*_examples(generator, count, settings.noise)) for name, count in sizes.items()}
    return Classification(splits, "sequence", classes=len(_PATTERNS))


def _examples(
    generator: np.random.RandomState, count: int, noise: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    patterns = np.array(_PATTERNS, dtype=np.float64)
    classes = generator.permutation(np.arange(count, dtype=np.int64) % len(patterns))
    start = generator.randint(LENGTH - patterns.shape[1] + 1, size=count)
    inputs = noise * generator.standard_normal((count, LENGTH))
    places = start[:, None] + np.arange(patterns.shape[1])
    inputs[np.arange(count)[:, None], places] += patterns[classes]
    return inputs[:, None, :], classes
