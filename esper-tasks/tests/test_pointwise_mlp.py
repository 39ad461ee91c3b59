"""The pointwise host: modules, slots, and no view of neighbours."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from esper_core.leyline import ConfigError, DataShape
from esper_tasks.hosts import PointwiseMlp

SHAPE = DataShape("sequence", (1, 40), 10)


def test_the_modules_that_its_slots_name_put_out_what_their_kind_says():
    host = PointwiseMlp(SHAPE)
    seen = {}
    for name in ("stem", "hidden"):
        host.get_submodule(name).register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out.shape}))
    assert host(torch.zeros(3, 1, 40)).shape == (3, 10)
    assert seen == {"stem": (3, 8, 40), "hidden": (3, 32)}
    assert isinstance(host.head, torch.nn.Linear)


@pytest.mark.parametrize(("length", "channels", "hidden"), [(40, 8, 32), (7, 3, 5), (2, 1, 1)])
def test_it_builds_for_any_length_and_width(length, channels, hidden):
    host = PointwiseMlp(DataShape("sequence", (2, length), 3), channels=channels, hidden=hidden)
    assert host(torch.zeros(1, 2, length)).shape == (1, 3)


def test_its_stem_does_not_see_neighbours():
    host = PointwiseMlp(SHAPE)
    inputs = torch.randn(2, 1, 40)
    changed = inputs.clone()
    changed[:, :, 5] += 1
    moved = (host.stem(inputs) != host.stem(changed)).any(dim=1).any(dim=0).nonzero().flatten()
    assert moved.tolist() in ([5], [])


def test_a_wider_stem_sees_as_many_neighbours_as_its_kernel_has():
    stem = PointwiseMlp(SHAPE, kernel=5).stem[0]
    dot = torch.zeros(2, 1, 40)
    dot[1, :, 9] = 1
    out = stem(dot)
    assert (out[0] != out[1]).any(dim=0).nonzero().flatten().tolist() == [7, 8, 9, 10, 11]
    assert PointwiseMlp(SHAPE, kernel=5)(dot).shape == (2, 10)


@pytest.mark.parametrize(
    "shape",
    [DataShape("image", (1, 8, 8), 10), DataShape("vector", (40,), 10), DataShape("sequence", (1, 1), 10)],
)
def test_data_that_it_cannot_take_are_refused_with_what_was_received(shape):
    with pytest.raises(ConfigError, match=r"takes sequences[\s\S]*Received: " + shape.kind):
        PointwiseMlp(shape)


def test_a_width_out_of_bounds_is_refused():
    with pytest.raises(ValidationError, match="channels"):
        PointwiseMlp(SHAPE, channels=0)
