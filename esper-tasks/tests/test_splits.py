"""Splits: of each task as it declares, and as drawn for data of one's own."""

import numpy as np
import pytest
import torch

from esper_core.leyline import DataShape, Metric, Task
from esper_tasks.byte_text import byte_text
from esper_tasks.images_synthetic import images_synthetic
from esper_tasks.marked_sum import marked_sum
from esper_tasks.mnist1d import mnist1d
from esper_tasks.riddles import riddles
from esper_tasks.stripes import stripes
from esper_tasks.supervised import drawn_parts

SIGNAL, ACCURACY = DataShape("sequence", (1, 40), 3), Metric("accuracy", "up", "%")
PERPLEXITY = Metric("perplexity", "down", exponential=True)


@pytest.mark.parametrize(
    ("task", "settings", "shape", "metric", "lengths"),
    [
        (stripes, {}, DataShape("sequence", (1, 16), 4), ACCURACY, (200, 80, 80)),
        (mnist1d, {}, DataShape("sequence", (1, 40), 10), ACCURACY, (3200, 800, 1000)),
        (images_synthetic, {}, DataShape("image", (3, 16, 16), 8), ACCURACY, (2000, 500, 500)),
        (marked_sum, {}, DataShape("tokens", (12, 5), 4), ACCURACY, (3000, 750, 750)),
        (byte_text, {}, DataShape("tokens", (64,), 256), PERPLEXITY, (None, 200, 200)),
        *((riddles, {"kind": kind}, SIGNAL, ACCURACY, (1000, 300, 500)) for kind in ("near", "far", "value", "joint")),
        (riddles, {"kind": "easy"}, SIGNAL, ACCURACY, (1000, 300, 500)),
        (riddles, {"samples": 31, "validation": 4, "test": 5}, SIGNAL, ACCURACY, (31, 4, 5)),
    ],
)
def test_a_task_has_the_data_that_it_declares(task, settings, shape, metric, lengths):
    one, symbols = task(**settings), task is byte_text
    assert isinstance(one, Task)
    assert (one.shape, one.metric) == (shape, metric)
    for name, count in zip(("train", "validation", "test"), lengths, strict=True):
        split = one.split(name)
        assert count in (len(split), None)
        assert split.inputs.shape == (len(split), *shape.example)
        assert split.inputs.dtype == (torch.int64 if symbols else torch.float32)
        assert split.inputs.is_contiguous()
        assert split.targets.dtype == torch.int64
        assert split.targets.shape == ((len(split), 64) if symbols else (len(split),))
        assert 0 <= int(split.targets.min()) <= int(split.targets.max()) < shape.outputs
        if task in (stripes, riddles):
            each = split.targets.bincount(minlength=shape.outputs)
            assert each.max() - each.min() <= 1, "classes are balanced"


def test_the_requested_number_of_examples_is_held_out():
    parts = drawn_parts(np.arange(100)[:, None], validation=15, test=20, seed=3)
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 65, "validation": 15, "test": 20}
    assert parts["train"].tolist() != sorted(parts["train"].tolist())
