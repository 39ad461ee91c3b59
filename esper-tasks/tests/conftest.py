"""A fake scikit-learn."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def scikit_learn(monkeypatch):
    """``sklearn.datasets`` with 900 images whose first pixel is their digit."""
    draw = np.random.default_rng(0)
    target = np.arange(900) % 10
    images = draw.integers(0, 17, (900, 8, 8)).astype(float)
    images[:, 0, 0] = target
    modules = {name: ModuleType(name) for name in ("sklearn", "sklearn.datasets")}
    modules["sklearn.datasets"].load_digits = lambda: SimpleNamespace(images=images, target=target)
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)  # torch reads it
        monkeypatch.setitem(sys.modules, name, module)
