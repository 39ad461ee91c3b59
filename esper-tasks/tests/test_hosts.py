"""Hosts: slots, refused data, and parameter counts."""

from functools import partial

import pytest
import torch

from esper_core import graft
from esper_core.growth import slots_of
from esper_core.leyline import ConfigError, DataShape
from esper_tasks import plugin
from esper_tasks.hosts import Mlp, PointwiseMlp, TokenMlp, Transformer, cnn1d, cnn2d, wide_cnn1d

IMAGE, SIGNAL = DataShape("image", (3, 16, 16), 8), DataShape("sequence", (1, 40), 10)
ROWS, SYMBOLS = DataShape("tokens", (12, 5), 4), DataShape("tokens", (24,), 256)
CAUSAL = partial(Transformer, causal=True)


def example(shape):
    return torch.randint(256, (2, 24)) if shape is SYMBOLS else torch.randn(2, *shape.example)


WIDE_SITES = {"early": (25, 40), "middle": (50, 20), "late": (100, 10), "features": (100,)}


@pytest.mark.parametrize(
    ("name", "build", "shape", "sites"),
    [
        ("cnn2d", cnn2d, IMAGE, {"early": (8, 16, 16), "middle": (16, 8, 8), "late": (32, 4, 4), "features": (32,)}),
        ("cnn1d", cnn1d, SIGNAL, {"early": (4, 40), "middle": (8, 20), "late": (16, 10), "features": (16,)}),
        ("wide-cnn1d", wide_cnn1d, SIGNAL, WIDE_SITES),
        ("pointwise-mlp", PointwiseMlp, SIGNAL, {"early": (8, 40), "late": (32,)}),
        ("mlp", Mlp, DataShape("vector", (7,), 3), {"first": (32,), "second": (32,)}),
        ("token-mlp", TokenMlp, ROWS, {"early": (12, 16), "late": (12, 16)}),
        ("transformer", Transformer, ROWS, {"block0": (12, 32), "block1": (12, 32)}),
        ("transformer", CAUSAL, SYMBOLS, {"block0": (24, 32), "block1": (24, 32)}),
    ],
)
def test_suggested_slots_can_be_grafted_and_have_the_declared_shape(name, build, shape, sites, esper_plugins):
    specs = {component.short: component.spec for component in esper_plugins(plugin).registry.components()}
    host = graft(build(shape), specs[name].slots, example=example(shape))
    assert {slot.name: slot.site.example_shape for slot in slots_of(host)} == sites


@pytest.mark.parametrize(
    ("build", "shape", "takes"),
    [
        (cnn2d, SIGNAL, "cnn2d takes images"),
        (cnn2d, DataShape("image", (3, 16, 7), 8), "at least 8 × 8"),
        (cnn1d, IMAGE, "cnn1d takes sequences"),
        (cnn1d, DataShape("sequence", (1, 7), 8), "of length 8 or more"),
        (PointwiseMlp, IMAGE, "takes sequences"),
        (PointwiseMlp, DataShape("sequence", (1, 1), 10), "takes sequences"),
        (Mlp, SYMBOLS, "mlp takes numeric features"),
        (TokenMlp, SYMBOLS, "token-mlp takes tokens as vectors"),
        (TokenMlp, SIGNAL, "token-mlp takes tokens as vectors"),
        (Transformer, SIGNAL, "transformer takes tokens"),
    ],
)
def test_unsupported_data_are_refused(build, shape, takes):
    with pytest.raises(ConfigError, match=f"{takes}[\\s\\S]*Received: {shape.kind}"):
        build(shape)


def symbols_before_and_after_a_change(host):
    symbols = torch.randint(256, (2, 24))
    changed = symbols.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 256
    with torch.no_grad():
        return host.eval()(symbols), host(changed)


def test_a_causal_transformer_sees_earlier_symbols_only():
    before, after = symbols_before_and_after_a_change(CAUSAL(SYMBOLS))
    assert before.shape == (2, 24, 256)
    assert torch.equal(before[:, :10], after[:, :10])
    assert (before[:, 10:] != after[:, 10:]).any(dim=2).all()


def test_a_transformer_that_is_not_causal_sees_all_symbols():
    before, after = symbols_before_and_after_a_change(Transformer(SYMBOLS))
    assert before.shape == (2, 256)
    assert (before != after).any(dim=1).all()
    host = Transformer(SYMBOLS)
    seen = []
    host.blocks[0].register_forward_hook(lambda _module, _inputs, features: seen.append(features))
    symbols_before_and_after_a_change(host)
    assert (seen[0] != seen[1]).any(dim=2).all()


def test_a_tied_head_shares_the_weights_of_the_embedding():
    tied = CAUSAL(SYMBOLS)
    assert [name for name in tied.state_dict() if name.startswith("head")] == []
    storages = [tensor.untyped_storage().data_ptr() for tensor in tied.state_dict().values()]
    assert len(set(storages)) == len(storages)
    tied(torch.zeros(1, 24, dtype=torch.int64)).logsumexp(dim=2).sum().backward()
    assert (tied.embed.weight.grad != 0).any(dim=1).all()


@pytest.mark.parametrize(
    ("shape", "settings"), [(ROWS, {"causal": True}), (SYMBOLS, {}), (SYMBOLS, {"causal": True, "vocabulary": 300})]
)
def test_a_head_is_not_tied_where_that_does_not_fit(shape, settings):
    assert Transformer(shape, **settings).head is not None


def test_the_stem_of_pointwise_mlp_sees_as_many_neighbours_as_its_kernel_has():
    dot = torch.zeros(2, 1, 40)
    dot[1, :, 9] = 1
    for kernel, seen in ((1, [9]), (5, [7, 8, 9, 10, 11])):
        host = PointwiseMlp(SIGNAL, kernel=kernel)
        out = host.stem[0](dot)
        assert (out[0] != out[1]).any(dim=0).nonzero().flatten().tolist() == seen
        assert host(dot).shape == (2, 10)
