"""Over whole episodes: a seed that is worth nothing seldom passes a gate, and one worth twice its price mostly does.

An episode has 20 steps, and the same validation examples are looked at in each. The difference of an example in one
step is correlated at 0.85 with that in the step before. ``skewed`` has the tail of examples that got far worse that
branch trials show: a skewness of about −3 where that of trials is between 1 and −4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from esper_core.growth.gates import Gate, paired, read_gain
from esper_core.leyline.constants import GATE_ALPHA
from esper_core.leyline.signals import Gain

STEPS, CORRELATION = 20, 0.85
POWER = 0.8
"""Spread of the logarithm of the skewed differences."""

SURE = 3.0
"""Standard deviations by which a share of episodes may miss its expectation by chance."""


def shaped(shape: str, latent: np.ndarray) -> np.ndarray:
    """Differences with mean 0 and deviation 1 from standard normal numbers."""
    if shape == "normal":
        return latent
    mean = math.exp(POWER**2 / 2)
    return (mean - np.exp(POWER * latent)) / (mean * math.sqrt(math.expm1(POWER**2)))


def episode(shape: str, examples: int, deviation: float, gain: Callable[[int], float], number: int) -> list[Gain]:
    """What is measured in each step of an episode whose seed truly gains ``gain(step)`` nats."""
    rng = np.random.default_rng([examples, number])
    latent = rng.standard_normal(examples)
    measured = []
    for step in range(1, STEPS + 1):
        host = torch.from_numpy(np.abs(rng.standard_normal(examples)))
        trial = host - torch.from_numpy(gain(step) + deviation * shaped(shape, latent))
        measured.append(read_gain(paired(host, trial).tolist()))
        latent = CORRELATION * latent + math.sqrt(1 - CORRELATION**2) * rng.standard_normal(examples)
    return measured


def share_that_passes(
    episodes: int, shape: str, examples: int, *, deviation: float, price: float, gain: Callable[[int], float], **gate
) -> float:
    """The share of episodes in which the gate opens at least once."""
    passed = 0
    for number in range(episodes):
        asked = Gate(**{"looks": STEPS, **gate})
        passed += any(asked.look(seen, price).opens for seen in episode(shape, examples, deviation, gain, number))
    return passed / episodes


def at_most(share: float, episodes: int) -> float:
    """The share of ``episodes`` that chance hardly ever exceeds where each passes with probability ``share``."""
    return share + SURE * math.sqrt(share * (1 - share) / episodes)


@pytest.mark.parametrize("shape", ["skewed", pytest.param("normal", marks=pytest.mark.slow)])
def test_a_seed_that_is_worth_its_price_and_no_more_passes_at_most_once_in_twenty_episodes(shape):
    null = {"deviation": 0.5, "price": 0.04, "gain": lambda _: 0.04}
    assert share_that_passes(200, shape, 100, **null) <= at_most(GATE_ALPHA, 200)


def test_looks_that_spend_no_alpha_pass_far_more_worthless_seeds():
    null = {"deviation": 0.5, "price": 0.0, "gain": lambda _: 0.0}
    assert share_that_passes(100, "skewed", 400, strictness="permissive", **null) > at_most(GATE_ALPHA, 100)


@pytest.mark.parametrize("shape", ["skewed", pytest.param("normal", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("examples", "deviation", "gain"),
    [
        pytest.param(800, 0.3, lambda _: 0.06, id="0.06 at once, deviation 0.3"),
        pytest.param(800, 0.6, lambda _: 0.12, id="0.12 at once, deviation 0.6"),
        pytest.param(800, 0.6, lambda step: 0.15 * min(1.0, step / 8), id="0.15 after 8 steps, deviation 0.6"),
    ],
)
def test_a_seed_that_is_worth_twice_its_price_passes_in_four_episodes_of_five(shape, examples, deviation, gain):
    price = gain(STEPS) / 2
    assert share_that_passes(60, shape, examples, deviation=deviation, price=price, gain=gain) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["normal", "skewed"])
@pytest.mark.parametrize("examples", [100, 200, 800])
@pytest.mark.parametrize(
    "gain",
    [
        pytest.param(lambda _: 0.04, id="always at its price"),
        pytest.param(lambda step: 0.04 - 0.02 * abs(math.cos(step)), id="drifting below its price"),
    ],
)
def test_no_size_or_drift_lets_a_null_seed_pass_more_often(shape, examples, gain):
    null = {"deviation": 0.5, "price": 0.04, "gain": gain}
    assert share_that_passes(1500, shape, examples, **null) <= at_most(GATE_ALPHA, 1500)
