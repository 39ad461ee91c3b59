"""Random streams: each goes on where it stopped, and leaves the default generator alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from esper_core.growth import RandomStream
from esper_core.growth.random_streams import derive_seed


def draw(stream: RandomStream, count: int = 3) -> torch.Tensor:
    with stream:
        return torch.rand(count)


@settings(max_examples=20)
@given(st.integers(0, 2**62))
def test_a_stream_continues_where_it_stopped_and_leaves_the_default_generator_unchanged(seed):
    torch.manual_seed(11)
    expected_default = torch.rand(3)
    torch.manual_seed(seed)
    expected = torch.rand(6)
    torch.manual_seed(11)
    stream, other = RandomStream(seed), RandomStream(1)
    assert torch.equal(draw(stream, 4), expected[:4])
    assert torch.equal(torch.rand(3), expected_default)
    place = stream.state_dict()
    other.load_state_dict(place)
    for one in (stream, other):
        assert torch.equal(draw(one, 2), expected[4:])
    stream.load_state_dict(place)
    assert torch.equal(stream.state_dict()[0], place[0])


def test_a_stream_gives_the_generator_back_when_its_block_fails():
    torch.manual_seed(2)
    before = torch.get_rng_state()
    stream = RandomStream(1)
    with pytest.raises(RuntimeError), stream:
        torch.rand(1).reshape(2)
    assert torch.equal(torch.get_rng_state(), before)
    with stream:
        pass


def test_a_stream_feeds_one_block_at_a_time():
    stream = RandomStream(1)
    with stream, pytest.raises(RuntimeError, match="in use"), stream:
        pass


def test_derived_seeds_are_the_same_tomorrow():
    assert derive_seed(7, "order") == 666519070672927082
    assert len({derive_seed(seed, name) for seed in range(50) for name in ("host", "order", "training")}) == 150
