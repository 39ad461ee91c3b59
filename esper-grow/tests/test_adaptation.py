"""Which layers adapters grow beside, and how a model does without them."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from esper_core import EsperError
from esper_core.leyline import SlotPlace
from esper_grow import Gardener, adapters, disable_adapters, use_adapters
from tests.support.core_worlds import per_example
from tests.support.loops import planned, train_batch

Q = ["blocks.0.self_attn.q_proj", "blocks.1.self_attn.q_proj"]
UP = ["blocks.0.mlp.up", "blocks.1.mlp.up"]


class Conv1D(nn.Module):
    """As in GPT-2, whose weights are transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8))


class Wrapped(nn.Module):
    """As a layer with an adapter of PEFT."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer, self.lora_A = nn.Linear(4, 4), nn.Linear(4, 2)


def block(projection: Any) -> nn.Module:
    attention = nn.ModuleDict({"q_proj": projection(), "inner": nn.MultiheadAttention(4, 2)})
    return nn.ModuleDict({"self_attn": attention, "mlp": nn.ModuleDict({"up": nn.Linear(4, 8), "act": nn.ReLU()})})


def model_of(projection: Any) -> nn.Module:
    parts = {"embed": nn.Embedding(3, 4), "blocks": nn.ModuleList(block(projection) for _ in range(2))}
    return nn.ModuleDict(parts | {"head": nn.Linear(4, 3), "mix": nn.Conv1d(4, 4, 1), "smooth": nn.Conv1d(4, 4, 3)})


@pytest.mark.parametrize("projection", [partial(nn.Linear, 4, 4), Conv1D, Wrapped])
@pytest.mark.parametrize(
    ("where", "slots"),
    [
        ("all-linear", [Q[0], UP[0], Q[1], UP[1]]),
        ("attention", Q),
        ("mlp", UP),
        (["up", "q_proj"], UP + Q),
        ("blocks.*.mlp.up", UP),
        ("head", ["head"]),
        ("mix", ["mix"]),
        ("smooth", "E313"),
        ("q_prj", r'E313 .*"q_prj"(?s:.)*Did you mean "q_proj"\?(?s:.)*q_proj, up, head, mix'),
        ("all-lnear", 'Did you mean "all-linear"'),
    ],
)
def test_layers_are_found_by_what_they_are_for_or_by_name(projection, where, slots):
    model = model_of(projection)
    if isinstance(slots, str):
        with pytest.raises(EsperError, match=slots):
            adapters(model, where)
    else:
        assert adapters(model, where)["slots"] == slots


def test_a_trained_head_is_left_out_and_settings_are_those_of_lora():
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(requires_grad=False), nn.Linear(4, 2))
    arguments = adapters(model, rank=2, alpha=4.0, rslora=True, dropout=0.1)
    assert arguments == {"slots": ["0"], "blueprints": ["lora(rank=2,alpha=4.0,rslora=True,dropout=0.1)"]}
    assert adapters(model, blueprint="ia3")["blueprints"] == ["ia3"]
    blocks = adapters(model, rank=8, alpha=16.0, block=2)
    assert blocks == {"slots": {"0": SlotPlace("0", stack=8)}, "blueprints": ["lora(rank=2,alpha=4.0)"], "together": 4}
    scaled = adapters(model, rank=8, rslora=True, block=2)
    assert scaled["blueprints"] == ["lora(rank=2,alpha=4.0,rslora=True)"], "4/√2 is 8/√8"
    assert adapters(model, stack=2)["slots"] == {"0": SlotPlace("0", stack=2)}
    assert adapters(model, rank=4, block=2, stack=2)["slots"] == {"0": SlotPlace("0", stack=8)}
    with pytest.raises(EsperError, match=r"E347 stack .* Received: 0"):
        adapters(model, stack=0)
    with pytest.raises(EsperError, match=r"E347 .*such blocks\n.*rank=8, block=3"):
        adapters(model, rank=8, block=3)


def test_a_tied_or_trained_head_is_taken_by_its_name():
    model = nn.ModuleDict({"embed": nn.Embedding(3, 4), "up": nn.Linear(4, 4), "lm_head": nn.Linear(4, 3, bias=False)})
    model["lm_head"].weight = model["embed"].weight
    model.requires_grad_(requires_grad=False)["score"] = nn.Linear(4, 2)
    assert adapters(model)["slots"] == ["up"]
    assert adapters(model, ["lm_head", "score"])["slots"] == ["lm_head", "score"]


def test_what_peft_refuses_of_mamba_is_taken_by_its_name_alone():
    model = nn.ModuleDict({"in_proj": nn.Linear(4, 4), "out_proj": nn.Linear(4, 4)})
    assert adapters(model)["slots"] == ["in_proj", "out_proj"]
    model.config = SimpleNamespace(model_type="mamba")
    assert adapters(model)["slots"] == ["in_proj"]
    assert adapters(model, "out_proj")["slots"] == ["out_proj"]


@pytest.mark.members
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_grow_in_a_loop_in_float32_and_can_be_disabled(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype).requires_grad_(requires_grad=False)
    data = [(torch.randn(30, 4, dtype=dtype), torch.randint(0, 3, (30,))) for _ in range(5)]
    before = model(data[0][0])
    plan = planned("0", blueprint="lora(rank=2,dropout=0.1)", keep=3) | adapters(model, ["0"], rank=2, dropout=0.1)
    loop = {"optimizer": partial(torch.optim.AdamW, lr=1e-2), "loss": per_example, "validation": data[:1]}
    with Gardener(model, **loop, seed_lr=1e-2, **plan) as gardener:
        for batch in data:
            train_batch(gardener, per_example, batch)
            gardener.tend()
    (group,) = (group for group in gardener.optimizer.param_groups if group["lr"] == 1e-2 and group["params"][1:])
    assert {parameter.dtype for parameter in group["params"]} == {torch.float32}
    model.eval()
    assert not torch.equal(model(data[0][0]), before)
    with disable_adapters(model):
        assert torch.equal(model(data[0][0]), before)
    assert model(data[0][0]).dtype is dtype
    assert not torch.equal(model(data[0][0]), before)
    use_adapters(model)  # none, so that no loss has a gradient, and others can grow
    Gardener(model, **loop, slots=None).close()
