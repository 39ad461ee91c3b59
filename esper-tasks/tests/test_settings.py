"""Settings out of bounds are refused by name, and the seed is the only source of randomness."""

from functools import partial

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from esper_core.leyline import DataShape
from esper_tasks.hosts import PointwiseMlp, TokenMlp, Transformer, cnn2d
from esper_tasks.images_synthetic import images_synthetic
from esper_tasks.marked_sum import marked_sum
from esper_tasks.mnist1d import mnist1d
from esper_tasks.own_data import npz
from esper_tasks.stripes import stripes

IMAGE, SIGNAL = DataShape("image", (3, 16, 16), 8), DataShape("sequence", (1, 40), 10)
ROWS = DataShape("tokens", (12, 5), 4)


@pytest.mark.parametrize("task", [images_synthetic, marked_sum, mnist1d, stripes])
def test_the_seed_determines_the_data_and_global_generators_are_left_alone(task):
    sizes = {mnist1d: {"samples": 200, "validation": 20}, stripes: {}}.get(task, {"samples": 60})
    np.random.seed(3)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, again, other = (task(**sizes, seed=seed).split("train") for seed in (3, 3, 4))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    ("build", "settings", "place", "message"),
    [
        (mnist1d, {"samples": 205}, "samples", "multiple of 10"),
        (mnist1d, {"seed": -1}, "seed", "greater than or equal to 0"),
        (mnist1d, {"validation": 4000}, "", "Received: 4000"),
        (images_synthetic, {"size": 7}, "size", "greater than or equal to"),
        (marked_sum, {"symbols": 2}, "", r"symbols=2 and length=12 give too few[\s\S]*Received: samples=4500"),
        (npz, {"path": "a.npz", "validation": 0.5, "test": 0.45}, "", "validation"),
        (partial(cnn2d, IMAGE), {"kernel": 2}, "kernel", "should be 1, 3, 5 or 7"),
        (partial(PointwiseMlp, SIGNAL), {"channels": 0}, "channels", "greater than or equal to 1"),
        (partial(TokenMlp, ROWS), {"width": 0}, "width", "greater than or equal to 1"),
        (partial(Transformer, ROWS), {"width": 30}, "", "width"),
    ],
)
def test_invalid_settings_of_tasks_and_hosts_are_refused(build, settings, place, message):
    with pytest.raises(ValidationError, match=message) as caught:
        build(**settings)
    assert ".".join(map(str, caught.value.errors()[0]["loc"])) == place
