"""The same random numbers in every test."""

import pytest


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
