"""Synthetic colour images: waves in noise, whose classes differ in local structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from esper_tasks.settings import ImagesSyntheticSettings
from esper_tasks.supervised import Classification, parted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ORIENTATIONS: Final = 4
WAVELENGTHS: Final = (3.0, 6.0)
"""In pixels: two waves for each of four orientations are eight classes."""
CLASSES: Final = ORIENTATIONS * len(WAVELENGTHS)

_HEIGHT: Final = 2.0
_PATCH: Final = 0.2
"""Standard deviation of the patch that shows the wave, as a share of the image."""


def images_synthetic(*, samples: int = 3000, size: int = 16, seed: int = 0, noise: float = 0.7) -> Classification:
    """Generate noisy colour images (N, 3, size, size), each with one of eight waves, its class.

    Formula: image = 2·colour·cos(2π·along/wavelength + phase)·patch + noise·ε. Place, phase and colour (any direction,
    also its opposite) are random, and each class has the same patch. So neither a pixel nor the colours of an image
    depend on its class; only the relation of neighbours does.

    >>> task = images_synthetic(samples=600)
    >>> task.shape, [len(task.split(name)) for name in ("train", "validation", "test")]
    (DataShape(kind='image', example=(3, 16, 16), outputs=8), [400, 100, 100])

    samples: examples in all, a sixth each for validation and test. size: height and width. seed: RNG seed of the data.
    noise: standard deviation; a wave has amplitude 2.
    """
    settings = ImagesSyntheticSettings(samples=samples, size=size, seed=seed, noise=noise)
    generator = np.random.RandomState(settings.seed)
    classes = generator.permutation(np.arange(settings.samples, dtype=np.int64) % CLASSES)
    images = _waves(generator, classes, settings.size)
    images += settings.noise * generator.standard_normal(images.shape)
    return Classification(parted(images, classes), "image", classes=CLASSES)


def _waves(generator: np.random.RandomState, classes: NDArray[np.int64], size: int) -> Floats:
    """Return the images without noise: N images of 3 colours, H rows and W columns."""
    count = len(classes)
    phase = generator.uniform(0, 2 * np.pi, count)
    row, column = generator.uniform(0.25 * size, 0.75 * size, (2, count))
    colour_NC = generator.standard_normal((count, 3))
    colour_NC /= np.linalg.norm(colour_NC, axis=1, keepdims=True)

    angle = np.pi * (classes % ORIENTATIONS) / ORIENTATIONS
    wavelength = np.array(WAVELENGTHS)[classes // ORIENTATIONS]
    down_NH1 = (np.arange(size) - row[:, None])[:, :, None]
    right_N1W = (np.arange(size) - column[:, None])[:, None, :]
    along_NHW = _each(np.cos(angle)) * right_N1W + _each(np.sin(angle)) * down_NH1
    patch_NHW = np.exp(-(right_N1W**2 + down_NH1**2) / (2 * (_PATCH * size) ** 2))
    wave_NHW = np.cos(2 * np.pi * along_NHW / _each(wavelength) + _each(phase)) * patch_NHW
    waves: Floats = _HEIGHT * colour_NC[:, :, None, None] * wave_NHW[:, None]
    return waves


def _each(numbers: Floats) -> Floats:
    """Reshape one number per image so that it broadcasts over (N, H, W)."""
    return numbers[:, None, None]
