"""CIFAR-10, read from the user's own copy of the binary version.

A record is one byte for the class and 3,072 for the colours: 32 rows of 32 pixels in red, then in green, then in blue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from esper_core.leyline import Split
from esper_tasks.own_data import found, refuse
from esper_tasks.settings import Cifar10Settings
from esper_tasks.supervised import Classification, drawn_parts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

CLASSES: Final = 10
EXAMPLE: Final = (3, 32, 32)
RECORD: Final = 1 + 3 * 32 * 32
TRAIN: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST: Final = "test_batch.bin"

_WHERE = (
    "Nothing is downloaded. What is wanted is the CIFAR-10 binary version (suitable for C programs), from the "
    "University of Toronto's page of Alex Krizhevsky; unpacked, its folder cifar-10-batches-bin has "
    f"{TRAIN[0]} to {TRAIN[-1]} and {TEST}."
)


def cifar10(*, folder: str, examples: int | None = None, validation: int = 5000, seed: int = 0) -> Classification:
    """Load CIFAR-10: photographs in ten classes, images (N, 3, 32, 32), each colour normalised in training.

    The published data have 50,000 examples to train on, of which a validation part is drawn, and 10,000 for the test.
    As float32 they need 0.7 GB; ``examples`` takes fewer. Files with fewer records are accepted.

    folder: the binary version's; relative to the current folder. examples: most training examples; None: all that
    remain. validation: examples held out for validation. seed: RNG seed of their draw.
    """
    settings = Cifar10Settings(folder=folder, examples=examples, validation=validation, seed=seed)
    place = found_folder(settings.folder)
    images, classes = (np.concatenate(parts) for parts in zip(*(_records(place / name) for name in TRAIN), strict=True))
    test_images, test_classes = _records(place / TEST)
    if settings.validation >= len(classes):
        hint = f"There are {len(classes)} training images. Received: {settings.validation}"
        refuse("validation", "validation leaves no training images", hint)
    rows = drawn_parts(images, validation=settings.validation, test=0, seed=settings.seed)
    train = rows["train"][: settings.examples]
    if len(train) == 0:
        refuse("validation", "no training images are left: all images are identical")
    mean, deviation = _spread(images[train])
    return Classification(
        {
            "train": _split(images[train], classes[train], mean, deviation),
            "validation": _split(images[rows["validation"]], classes[rows["validation"]], mean, deviation),
            "test": _split(test_images, test_classes, mean, deviation),
        },
        "image",
        classes=CLASSES,
    )


def found_folder(folder: str) -> Path:
    """Return the folder with the six files; raise SettingError with what is missing and where to get it."""
    place = found(folder, "folder", folder=True, more=_WHERE)
    missing = [name for name in (*TRAIN, TEST) if not (place / name).is_file()]
    if missing:
        hint = _WHERE
        if (place / "cifar-10-batches-bin").is_dir():
            hint = f'It is one folder further in:  folder: "{folder.rstrip("/")}/cifar-10-batches-bin"'
        elif (place / "data_batch_1").is_file():
            hint = f"The folder has the Python version, a pickle, which is not read.\n{_WHERE}"
        refuse("folder", f'"{folder}" does not have {", ".join(missing)}', hint)
    return place


def _records(file: Path) -> tuple[Bytes, Bytes]:
    """Read images (N, 3, 32, 32) and classes (N,) from a file."""
    try:
        content = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        refuse("folder", f'"{file}" cannot be read: {error}', "Check the permissions.")
    if len(content) == 0 or len(content) % RECORD:
        hint = f"A record has {RECORD} bytes. Received: {len(content)} bytes. Was it cut off on its way?\n{_WHERE}"
        refuse("folder", f'"{file}" does not hold a whole number of records', hint)
    records = content.reshape(-1, RECORD)
    classes = records[:, 0]
    if classes.max() >= CLASSES:
        at = int(np.argmax(classes >= CLASSES))
        hint = f"Record {at} has the class {classes[at]}.\n{_WHERE}"
        refuse("folder", f'"{file}" is not CIFAR-10: classes go from 0 to {CLASSES - 1}', hint)
    return records[:, 1:].reshape(-1, *EXAMPLE), classes


def _spread(images: Bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each colour, shaped to broadcast over an image."""
    count = np.stack([np.bincount(images[:, colour].ravel(), minlength=256) for colour in range(3)])
    level = np.arange(256)
    mean = (count * level).sum(axis=1) / count.sum(axis=1)
    deviation = np.sqrt((count * (level - mean[:, None]) ** 2).sum(axis=1) / count.sum(axis=1))
    deviation[deviation == 0] = 1
    return mean.reshape(3, 1, 1), deviation.reshape(3, 1, 1)


def _split(images: Bytes, classes: Bytes, mean: NDArray[Any], deviation: NDArray[Any]) -> Split:
    """Normalise the images as float32, without intermediate copies."""
    inputs = images.astype(np.float32)
    inputs -= mean.astype(np.float32)
    inputs /= deviation.astype(np.float32)
    return Split(torch.from_numpy(inputs), torch.from_numpy(classes.astype(np.int64)))
