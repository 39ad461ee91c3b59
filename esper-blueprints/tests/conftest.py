"""The same random numbers in every test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
