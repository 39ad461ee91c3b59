"""The handwritten digits of scikit-learn: 1,797 images of 8 × 8 pixels, for a quick look."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import numpy as np

from esper_core.leyline import ConfigError, Problem
from esper_tasks.settings import DigitsSettings
from esper_tasks.supervised import Classification, as_split, drawn_parts

CLASSES = 10


def digits(*, validation: int = 300, test: int = 300, seed: int = 0) -> Classification:
    """Load scikit-learn's handwritten digits, images (N, 1, 8, 8); nothing is downloaded.

    A linear model classifies 96 % of them, so growth can gain hardly anything: use it to check that images work.

    validation, test: examples held out; with the defaults 1,197 remain for training. seed: RNG seed of their draw.
    """
    settings = DigitsSettings(validation=validation, test=test, seed=seed)
    data = _loaded()
    images = np.asarray(data.images, dtype=np.float64)[:, None]
    classes = np.asarray(data.target, dtype=np.int64)
    rows = drawn_parts(images, validation=settings.validation, test=settings.test, seed=settings.seed)
    train = images[rows["train"]]
    scaled = (images - train.mean()) / train.std()
    return Classification(
        {name: as_split(scaled[indices], classes[indices]) for name, indices in rows.items()}, "image", classes=CLASSES
    )


def _loaded() -> Any:
    # To import scikit-learn draws from Python's own generator, whose state is not this task's to change.
    state = random.getstate()
    try:
        return import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        hint = "Install it:  pip install 'esper-tasks[digits]'"
        raise ConfigError(Problem("E120", f"the task digits needs scikit-learn: {error}", hint=hint)) from error
    finally:
        random.setstate(state)
