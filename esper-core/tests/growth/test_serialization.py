"""Serialization: plain values, tensors, states of models, optimizers and random streams come back unchanged."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from esper_core.growth import OptimizerKeeper, OptimizerSettings, RandomStream, decode_state, encode_state, graft
from esper_core.growth.journal import Network, read_network
from esper_core.growth.serialization import load_model_state, model_state
from esper_core.leyline import GrowthError, SlotPlace, State
from esper_core.leyline.lifecycle import Stage
from tests.support.core_worlds import Falling, NoisyHost, add_seed, same, through_files

KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2))
VALUES = st.recursive(
    KEYS | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_every_plain_value_comes_back_in_its_order(value):
    assert repr(decode_state(through_files(encode_state(value)))) == repr(value)


def test_tensors_come_back_as_what_they_were_and_copies():
    shared, transposed = torch.arange(6.0).reshape(2, 3), torch.arange(6).reshape(2, 3).t()
    value = {
        1: shared,
        "1": (transposed, shared),
        "1.0": torch.zeros(0, dtype=torch.bfloat16),  # a place that has the name of another
        None: Stage.TRAINING,
        "turns": torch.polar(torch.ones(2), torch.arange(2.0)),
    }
    state = encode_state(value)
    shared.add_(1)
    read = decode_state(through_files(state))
    assert read[1] is read["1"][1]
    assert read[1].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert torch.equal(read["1"][0], transposed)
    assert torch.equal(read["turns"], value["turns"])
    assert (read["1.0"].dtype, read[None]) == (torch.bfloat16, "training")
    assert type(read[None]) is str
    decode_state(state)[1].add_(1)
    assert decode_state(state)[1][0, 0] == 0.0
    with pytest.raises(GrowthError, match=r"E334 (?s:.)*it cannot be read: KeyError"):
        decode_state(State({}, {}))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.zeros(1, dtype=torch.complex128), "complex128, strided"),
        (torch.zeros(1, device="meta"), "on meta"),
        (torch.eye(2).to_sparse(), "float32, sparse_coo"),
        ({1}, "a set"),
    ],
)
def test_a_value_that_no_file_can_hold_is_refused_with_its_place(value, reason):
    with pytest.raises(GrowthError, match=rf'E335 .*"inner.0".*{reason}'):
        encode_state({"inner": [value]})


class Tied(nn.Module):
    """Two layers of one weight, and two parts of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.norm = nn.BatchNorm1d(3)
        scale = torch.randn(3)
        self.register_buffer("scale", scale)
        self.one.register_buffer("scale", scale, persistent=False)
        self.register_buffer("later", None)


def test_tensors_are_loaded_into_a_fresh_model_and_shared_ones_stay_shared():
    model, fresh = Tied(), Tied()
    model.later, model.scale = torch.ones(2), torch.zeros(5)  # no longer that of its part
    model.two.register_buffer("late", torch.ones(1), persistent=False)
    parameters = list(fresh.parameters())
    load_model_state(fresh, through_files(model_state(model)))
    assert list(map(id, fresh.parameters())) == list(map(id, parameters))
    assert fresh.two.weight is fresh.one.weight
    assert same(model.parameters(), fresh.parameters())
    for name, buffer in model.named_buffers():
        assert torch.equal(fresh.get_buffer(name), buffer), name
    assert fresh.state_dict().keys() == model.state_dict().keys()
    assert fresh.scale is not fresh.one.scale
    load_model_state(model := Tied(), model_state(other := Tied()))
    assert model.scale is model.one.scale
    assert torch.equal(model.scale, other.scale)


MISFITS: dict[str, tuple[Callable[[Tied], object], str]] = {
    "another shape": (lambda model: setattr(model, "one", nn.Linear(3, 4)), "one.weight is"),
    "one more": (lambda model: setattr(model, "three", nn.Linear(1, 1)), "it has three.bias, which is not expected"),
    "one less": (lambda model: delattr(model, "one"), "it lacks one.bias"),
    "another dtype": (lambda model: model.half(), "one.bias is .3,. float16, expected .3,. float32"),
    "a buffer of torch's own": (
        lambda model: setattr(model.norm, "running_mean", torch.zeros(4)),
        "norm.running_mean is .4,. float32, expected .3,. float32",
    ),
    "a part that is not there": (
        lambda model: setattr(model, "four", nn.BatchNorm1d(3, affine=False)),
        "it has four.num_batches_tracked, which is not expected",
    ),
}


@pytest.mark.parametrize(("change", "message"), MISFITS.values(), ids=MISFITS)
def test_numbers_of_another_model_are_refused_and_nothing_is_changed(change, message):
    model, fresh = Tied(), Tied()
    change(model)
    before = model_state(fresh)
    with pytest.raises(GrowthError, match=rf"E334 .*\n(.*\n)*.*{message}"):
        load_model_state(fresh, model_state(model))
    assert same(model_state(fresh).tensors, before.tensors)


def stepped(build: Any, parameter: nn.Parameter, steps: int, keeper: OptimizerKeeper | None = None) -> OptimizerKeeper:
    """A keeper of one parameter that took some steps."""
    regimen = OptimizerSettings(build, clip_norm=1.0, schedule=Falling())
    keeper = keeper or OptimizerKeeper([parameter], host_settings=regimen, seed_settings=regimen, steps=20)
    for _ in range(steps):
        keeper.open_step()
        parameter.grad = (parameter.detach() - 1.0).clone(memory_format=torch.preserve_format)
        keeper.step([])
    return keeper


@pytest.mark.parametrize(
    "build",
    [
        partial(torch.optim.Adam, lr=0.1, fused=True),
        partial(torch.optim.AdamW, lr=0.1, amsgrad=True),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        partial(torch.optim.SGD, lr=0.1),
        partial(torch.optim.NAdam, lr=0.1),
        partial(torch.optim.Adafactor, lr=0.1),
    ],
    ids=lambda build: build.func.__name__,
)
def test_any_optimizer_continues_bit_for_bit(build):
    """The parameter is not contiguous, and fused kernels depend on the memory order."""
    parameter = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    keeper = stepped(build, parameter, 3)
    saved = through_files(keeper.state_dict())
    twin = nn.Parameter(parameter.detach().clone(memory_format=torch.preserve_format))
    other = stepped(build, twin, 0)
    other.load_state_dict(saved)
    stepped(build, parameter, 3, keeper)
    stepped(build, twin, 3, other)
    assert torch.equal(parameter, twin)
    assert other.state_dict().plain == keeper.state_dict().plain


def test_a_state_dict_is_refused_by_a_network_that_has_grown_otherwise():
    def grown(*stages):
        model = graft(NoisyHost(), {"early": SlotPlace("stem", stack=2)}, example=torch.randn(4, 1, 12))
        for number, stage in enumerate(stages):
            seed = add_seed(model, "early", fossil=stage is Stage.FOSSILISED)
            seed.stage, seed.number = stage, number
        return model

    fossil, held, bend = Stage.FOSSILISED, Stage.HOLDING, "test/bend in early"
    state = grown(fossil, held).state_dict()
    for stages, message in {
        (): f"is of a network with {bend}, {bend}, and this one has no seeds",
        (fossil,): f"is of a network with {bend}, {bend}, and this one has {bend}\n",
        (fossil, Stage.TRAINING): f"{bend} was holding and acting .*, and is training and acting",
        (fossil, fossil): f"{bend} was holding and acting .*, and is fossilised and acting",
    }.items():
        with pytest.raises(RuntimeError, match=f"E334 (?s:.)*{message}"):
            (other := grown(*stages)).load_state_dict(state)
        assert not read_network(other).fits(Network.in_state(state))
    assert read_network(grown(fossil, held)).fits(Network.in_state(state))
    assert read_network(grown()).fits(Network.in_state(grown().state_dict()))
    for stage in (held, Stage.BLENDING):
        grown(fossil, stage).load_state_dict(state)


def test_a_keeper_of_other_seeds_is_refused():
    keeper = stepped(partial(torch.optim.SGD, lr=0.1), nn.Parameter(torch.ones(2)), 1)
    state = keeper.state_dict()
    with pytest.raises(GrowthError, match=r"E334 .*\n.*of seeds .*4"):
        keeper.load_state_dict(State({**state.plain, "order": {"fossils": [4], "seeds": []}}, state.tensors))


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
    for continued in (stream, other):
        assert torch.equal(draw(continued, 2), expected[4:])
    stream.load_state_dict(place)
    assert torch.equal(stream.state_dict()[0], place[0])


def test_a_stream_feeds_one_block_at_a_time():
    stream = RandomStream(1)
    with stream, pytest.raises(RuntimeError, match="in use"), stream:
        pass
