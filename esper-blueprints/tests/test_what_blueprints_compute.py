"""Each standard blueprint computes its formula."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from esper_blueprints.attention import Attention
from esper_blueprints.bottleneck import Bottleneck
from esper_blueprints.bottleneck_adapter import BottleneckAdapter
from esper_blueprints.conv_heavy import ConvHeavy
from esper_blueprints.conv_light import ConvLight
from esper_blueprints.depthwise_separable import DepthwiseSeparable
from esper_blueprints.dilated import Dilated
from esper_blueprints.dora import Dora
from esper_blueprints.gated_mlp import GatedMlp
from esper_blueprints.gru_mixer import GruMixer
from esper_blueprints.ia3 import Ia3
from esper_blueprints.lora import Lora
from esper_blueprints.mlp import Mlp
from esper_blueprints.norm import Norm
from esper_blueprints.pointwise import Pointwise
from esper_blueprints.squeeze_excite import SqueezeExcite
from esper_core import Site
from tests.support.core_worlds import sites_of

SITES = sites_of(4, 8, image=(6, 6), sequence=(12,), tokens=(5,))


def tokens_before(x):
    memories, memory = [], torch.zeros_like(x[:, 0])
    for token in x.tanh().unbind(dim=1):
        memory = (memory + token) / 2
        memories.append(memory)
    return x + torch.stack(memories, dim=1)


TEACHERS = {
    "neighbours": lambda x: x + 0.5 * torch.relu(functional.pad(x, (1, 0))[..., :-1]),
    "neighbours of one": lambda x: x + 0.5 * functional.pad(x, (1, 0))[:, :1, ..., :-1],
    "features": lambda x: x + 0.5 * torch.relu(x.flip(dims=(1,))),
    "token features": lambda x: x + 0.5 * torch.relu(x.flip(dims=(2,))),
    "one direction": lambda x: x + 0.5 * (x[..., :1] - x[..., 1:2]),
    "louder": lambda x: 1.5 * x,
    "loud features": lambda x: x * torch.tensor([0.3, 1.7, 1.7, 0.3]).view(1, -1, *(1 for _ in x.shape[2:])),
    "tokens before": tokens_before,
}


@pytest.mark.parametrize(
    ("factory", "kind", "teacher"),
    [
        (SqueezeExcite, "image", "loud features"),
        (Pointwise, "sequence", "features"),
        (DepthwiseSeparable, "sequence", "neighbours"),
        (ConvLight, "image", "neighbours"),
        (ConvHeavy, "sequence", "neighbours"),
        (Dilated, "sequence", "neighbours"),
        (Bottleneck, "sequence", "neighbours of one"),
        (Mlp, "tokens", "token features"),
        (BottleneckAdapter, "tokens", "one direction"),
        (Ia3, "tokens", "louder"),
        (GruMixer, "tokens", "tokens before"),
    ],
)
def test_it_learns_a_function_that_its_formula_contains(factory, kind, teacher):
    wide = factory in (Pointwise, ConvLight, ConvHeavy)
    block, inputs = factory(SITES[kind]), torch.randn(64, *SITES[kind].example_shape)
    optimizer = torch.optim.Adam(block.parameters(), lr=0.01 if wide else 0.03)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (block(inputs) - TEACHERS[teacher](inputs)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


REACH = [(Pointwise, 0), (Bottleneck, 2), (DepthwiseSeparable, 2), (ConvLight, 4), (ConvHeavy, 6), (Dilated, 13)]


@pytest.mark.parametrize(("factory", "reach"), REACH)
def test_the_receptive_field_has_the_documented_width(factory, reach):
    block = factory(Site("sequence", 4, (41,)))
    block.norm = torch.nn.Identity()  # the normalisation of ConvHeavy uses all positions
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    inputs = torch.randn(64, 4, 41)
    changed = inputs.clone()
    changed[:, :, 20] += 5
    seen = (block(inputs) != block(changed)).any(dim=0).any(dim=0).nonzero().flatten().tolist()
    assert seen == list(range(20 - reach, 21 + reach))


def test_dilated_reaches_each_place_on_exactly_one_path():
    block = Dilated(Site("sequence", 1, (41,)))
    for parameter in block.parameters():
        torch.nn.init.constant_(parameter, float(parameter.dim() > 1))
    pulse = functional.one_hot(torch.tensor(20), 41).float().view(1, 1, 41)
    assert (block(pulse) - pulse).flatten()[7:34].tolist() == [1.0] * 27


def stirred(block):
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return block


def test_depthwise_separable_looks_within_each_feature_before_it_mixes():
    block = stirred(DepthwiseSeparable(SITES["sequence"]))
    inputs = torch.randn(2, 4, 12)
    changed = inputs.clone()
    changed[:, 1] += 1
    moved = (block.look(changed) != block.look(inputs)).any(dim=2).any(dim=0)
    assert moved.tolist() == [False, True, False, False]


def test_attention_computes_its_formula():
    block, inputs = stirred(Attention(Site("tokens", 12, (5,)))), torch.randn(3, 5, 12)
    query, key, value = block.ask(inputs).split(12, dim=-1)
    answers = []
    for head in range(4):
        features = slice(3 * head, 3 * head + 3)
        scores = query[..., features] @ key[..., features].transpose(1, 2) / 3**0.5
        answers.append(scores.softmax(dim=-1) @ value[..., features])
    torch.testing.assert_close(block(inputs), inputs + block.out(torch.cat(answers, dim=-1)))


@pytest.mark.parametrize(("c", "heads"), [(1, 1), (2, 2), (3, 1), (6, 2), (12, 4), (16, 8), (24, 8)])
def test_attention_has_as_many_heads_as_divide_its_width(c, heads):
    assert Attention(Site("tokens", c, (5,))).heads == heads


def test_a_gru_mixer_sees_only_what_came_before():
    block, inputs = stirred(GruMixer(SITES["tokens"])), torch.randn(4, 5, 8)
    changed = inputs.clone()
    changed[:, 1] += 1
    moved = ((block(changed) - block(inputs)).abs() > 1e-6).any(dim=2).any(dim=0)
    assert moved.tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("kind", SITES)
def test_norm_computes_its_formula(kind):
    site = SITES[kind]
    block, inputs = stirred(Norm(site)), 3 * torch.randn(4, *site.example_shape)
    if kind == "tokens":
        mean, shape = inputs.square().mean(dim=2, keepdim=True), (1, 1, -1)
    else:
        mean = inputs.flatten(1).square().mean(dim=1).view(-1, *(1 for _ in site.example_shape))
        shape = (1, -1, *(1 for _ in site.size))
    expected = inputs + block.gain.view(shape) * inputs / (mean + 1e-5).sqrt() + block.shift.view(shape)
    torch.testing.assert_close(block(inputs), expected)


@pytest.mark.parametrize("kind", ["image", "sequence", "tokens"])
def test_squeeze_excite_has_one_gate_between_0_and_2_for_each_feature(kind):
    block, inputs = stirred(SqueezeExcite(SITES[kind])), torch.randn(4, *SITES[kind].example_shape) + 6
    gates = block(inputs) / inputs
    gates = (gates.movedim(-1, 1) if kind == "tokens" else gates).flatten(2)
    torch.testing.assert_close(gates, gates[:, :, :1].expand_as(gates))
    assert ((gates > 0) & (gates < 2)).all()
    assert (gates[:, :, 0].std(dim=0) > 1e-4).all()


def test_a_gated_mlp_computes_its_formula():
    block, inputs = stirred(GatedMlp(SITES["vector"])), torch.randn(4, 8)
    gate, view = block.views(inputs)[:, :16], block.views(inputs)[:, 16:]
    torch.testing.assert_close(block(inputs), inputs + block.mix(gate * gate.sigmoid() * view))


@pytest.mark.parametrize("factory", [Lora, partial(Lora, rank=3, alpha=6)])
def test_a_map_of_low_rank_is_linear(factory):
    block = stirred(factory(Site("tokens", 64, (5,), inputs=64)))
    matrix = block(torch.eye(64))
    assert torch.linalg.matrix_rank(matrix, rtol=1e-4) == block.down.out_features
    inputs = torch.randn(2, 5, 64)
    torch.testing.assert_close(block(inputs), inputs @ matrix, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "scale"), [({}, 1.0), ({"alpha": 8.0}, 2.0), ({"alpha": 8.0, "rslora": True}, 4.0)]
)
def test_a_lora_is_scaled_by_its_rule_and_drops_inputs_in_training_alone(settings, scale):
    site, inputs = Site("tokens", 6, (5,), inputs=8), torch.randn(2, 5, 8)
    block = stirred(Lora(site, rank=4, dropout=0.5, **settings)).eval()
    assert torch.equal(block(inputs), scale * (inputs @ block.down.weight.T @ block.up.weight.T))
    assert not torch.equal(block.train()(inputs), block(inputs))


def test_a_dora_gives_the_rows_of_a_changed_weight_their_learned_lengths():
    layer, inputs = nn.Linear(8, 6), torch.randn(2, 5, 8)
    layer.weight.data[3] = 0.0
    block = Dora(Site("tokens", 6, (5,), inputs=8), rank=4, alpha=8.0)
    assert torch.equal(block(inputs, layer, layer(inputs)), torch.zeros(2, 5, 6))
    stirred(block)
    with torch.no_grad():
        changed = layer.weight + 2.0 * block.up.weight @ block.down.weight
        lengths = layer.weight.norm(dim=1) + block.magnitude
        expected = inputs @ (changed * (lengths / changed.norm(dim=1)).unsqueeze(1)).T + layer.bias
        outputs = layer(inputs)
        torch.testing.assert_close(outputs + block(inputs, layer, outputs), expected)
    with pytest.raises(ValueError, match=r"DoRA grows beside a linear layer .* Received: Sequential"):
        block(inputs, nn.Sequential(layer), outputs)


@pytest.mark.parametrize("adapter", [Lora, BottleneckAdapter])
def test_an_adapter_without_inputs_is_refused(adapter):
    with pytest.raises(ValueError, match="Received"):
        adapter(Site("tokens", 8, (5,)))
