"""Models with PEFT's adapters, and quantised ones: what grew in them is saved beside, or an error names it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper_grow as esper
from esper_core import EsperError
from esper_core.growth import slots_of
from tests.support.core_worlds import same
from tests.support.loops import SLOW_MARKS, planned, train_batch
from tests.support.small_models import llama, next_words

pytestmark = SLOW_MARKS

SLOT = "base_model.model.model.layers.0.mlp"


def train(model: nn.Module, slot: str, loss: Any, batches: list[Any], held_out: Any) -> None:
    """Grow a seed in a slot, and keep it."""
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2)
    settings = {"loss": loss, "slots": [slot], "validation": [held_out], **planned(slot, blueprint="mlp", keep=3)}
    with esper.Gardener(model, optimizer, **settings) as gardener:
        for batch in batches:
            train_batch(gardener, loss, batch)
            gardener.tend()
    assert len(slots_of(model).named(slot).fossils) == 1


@pytest.fixture
def world(tmp_path: Any) -> SimpleNamespace:
    """A tiny Llama, saved in a folder, and a grown PeftModel of it."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    llama().save_pretrained(tmp_path / "base")

    def base() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()

    settings = peft.LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM")
    model, words = peft.get_peft_model(base(), settings), torch.randint(0, 30, (6, 20, 8))
    train(model, SLOT, next_words, [*words], torch.randint(0, 30, (30, 8)))
    return SimpleNamespace(peft=peft, base=base, model=model.eval(), settings=settings, words=words[0])


@pytest.mark.library("peft")
def test_what_grew_in_a_peft_model_comes_back_with_its_adapters_and_peft_alone_says_what_is_missing(world, tmp_path):
    from esper_grow.integrations.transformers import from_pretrained

    world.model.save_pretrained(tmp_path / "adapters")
    expected = next_words(world.model, world.words)
    with pytest.warns(UserWarning, match=r"for_esper_grow\.load"):
        plain = world.peft.PeftModel.from_pretrained(world.base(), tmp_path / "adapters")
    assert not torch.equal(next_words(plain.eval(), world.words), expected)
    again = esper.load(plain, tmp_path / "adapters")
    auto = from_pretrained(world.peft.AutoPeftModelForCausalLM, tmp_path / "adapters").eval()
    for model in (again, auto):
        assert torch.equal(next_words(model, world.words), expected)
        assert same(model.state_dict(), world.model.state_dict())
    again.save_pretrained(tmp_path / "twice")  # without a Gardener
    assert (tmp_path / "twice" / "esper_grown.safetensors").exists()
    (tmp_path / "adapters" / "esper_grown.safetensors").write_bytes(b"damaged")
    with pytest.raises(EsperError, match="E332"):
        esper.load(world.peft.PeftModel.from_pretrained(world.base(), tmp_path / "adapters"), tmp_path / "adapters")


@pytest.mark.library("peft")
@pytest.mark.parametrize("rslora", [False, True])
def test_peft_gives_each_layer_the_rank_and_the_scale_of_its_blocks_in_a_plan(world, rslora):
    ranks = {"model.layers.0.mlp.down_proj": 6, "model.layers.0.self_attn.q_proj": 2}
    model, words = world.base().requires_grad_(requires_grad=False), [*torch.randint(0, 30, (2, 60, 8))]
    model.lm_head.requires_grad_()
    options = {"where": [*ranks], "rank": 6, "block": 2, "rslora": rslora, "steps": 1}
    plan = esper.place_adapters(model, next_words, words, words, **options)
    chosen = [place for place in plan.places if place.block <= ranks[place.slot] // 2]
    ordered = tuple(replace(place, order=order) for order, place in enumerate(chosen, 1))
    config = world.peft.LoraConfig(**replace(plan, verdict="pays", places=ordered).to_peft())
    adapted = world.peft.get_peft_model(model, config)
    assert sum(values.requires_grad for values in adapted.parameters()) == 5, "two of each adapter, and the head's"
    for layer, rank in ranks.items():
        module = adapted.get_submodule(f"base_model.model.{layer}")
        assert (module.r["default"], module.scaling["default"]) == (rank, pytest.approx(6**0.5 if rslora else 1.0))


@pytest.mark.library("peft")
def test_a_peft_model_is_saved_merged_and_exported_with_what_grew(world, tmp_path):
    expected = next_words(world.model, world.words)
    plain = esper.export(world.model)
    assert not {"save_pretrained", "merge_and_unload"} & {name for part in plain.modules() for name in vars(part)}
    torch.testing.assert_close(next_words(plain, world.words), expected)
    merged = world.model.merge_and_unload()
    torch.testing.assert_close(next_words(merged, world.words), expected)
    merged.save_pretrained(tmp_path)
    assert not (tmp_path / "esper_grown.safetensors").exists(), "the whole model is saved with what grew"
    from esper_grow.integrations.transformers import from_pretrained

    torch.testing.assert_close(next_words(from_pretrained(type(merged), tmp_path).eval(), world.words), expected)


@pytest.mark.library("peft")
def test_adapters_are_not_merged_where_that_would_lose_what_grew(world):
    model = world.peft.get_peft_model(world.base(), world.settings)
    slot = f"{SLOT.removesuffix('mlp')}self_attn.q_proj"
    train(model, slot, next_words, [world.words] * 6, torch.randint(0, 30, (30, 8)))
    for merge in (model.merge_and_unload, model.unload):
        with pytest.raises(EsperError, match=r"E358 .*q_proj.*and with it what grew"):
            merge()
    assert len(slots_of(model).named(slot).fossils) == 1


@pytest.mark.library("torchao")
def test_a_base_with_int8_weights_is_a_host(tmp_path):
    quantization = pytest.importorskip("torchao.quantization")

    def build() -> nn.Module:
        torch.manual_seed(0)
        base = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).requires_grad_(False)
        quantization.quantize_(base, quantization.Int8WeightOnlyConfig())
        return nn.Sequential(base, nn.Linear(16, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    model, data = build(), [(torch.randn(64, 16), torch.randint(0, 3, (64,))) for _ in range(7)]
    train(model, "0.0", loss, data[:6], data[6])
    inputs = data[6][0]
    assert torch.equal(esper.load(build(), model.state_dict())(inputs), model(inputs))
    torch.testing.assert_close(esper.export(model)(inputs), model(inputs))
    plan = esper.place_adapters(build(), loss, data[:5], data[5:], rank=2, steps=8)
    assert sorted(place.slot for place in plan.places) == ["0.0", "0.2"]
    with pytest.raises(EsperError, match=r"E335 .*0\.0\.weight.*quantised(?s:.)*torch\.save"):
        esper.save(model, tmp_path)
