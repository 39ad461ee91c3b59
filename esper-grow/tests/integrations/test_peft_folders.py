"""Adapters as folders of PEFT, in and out, and what the loops that train them contain."""

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper_grow as esper
from esper_blueprints.dora import weight_of
from esper_core import EsperError, SlotPlace, graft
from esper_core.growth import Host, Variety
from esper_core.leyline import Blend, Stage
from esper_core.plugins import load_plugins
from esper_grow.peft import load_adapters, save_adapters
from tests.support.core_worlds import Net, same
from tests.support.loops import SLOW_MARKS, planned, train_batch
from tests.support.small_models import SIZE, llama, next_words, small_model

pytestmark = SLOW_MARKS

WORDS = torch.randint(1, 30, (6, 8), generator=torch.Generator().manual_seed(0))


mamba = partial(small_model, "MambaForCausalLM", hidden_size=16, num_hidden_layers=1, state_size=4)
gpt2 = partial(small_model, "GPT2LMHeadModel", n_positions=16, n_embd=16, n_layer=2, n_head=2)
bert = partial(small_model, "BertForMaskedLM", **SIZE)


def convolutions() -> Any:
    """Return a model of words as sequences, and as images of a height of 2."""

    def compute(net: Any, input_ids: Tensor) -> Any:
        hidden = net.along(net.embed(input_ids).transpose(1, 2))
        return SimpleNamespace(logits=net.over(hidden.unflatten(2, (2, -1))))

    torch.manual_seed(0)
    return Net(compute, embed=nn.Embedding(30, 6), along=nn.Conv1d(6, 8, 1), over=nn.Conv2d(8, 5, 1)).eval()


def logits(model: nn.Module, words: Tensor = WORDS) -> Tensor:
    with torch.no_grad():
        scores: Tensor = model(input_ids=words).logits
    return scores


def random_seeds(model: nn.Module) -> nn.Module:
    """Let what grew be different from its birth."""
    with torch.no_grad():
        for slot in Host(model).slots:
            for parameter in slot.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def set_lengths(model: nn.Module) -> None:
    """Let what DoRA has learned be near to the lengths of the weights, as it is once it was trained."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        layer, part, _ = name.partition(".lora_magnitude_vector.")
        if part:
            lengths = weight_of(modules[layer].base_layer).norm(dim=1)
            parameter.data = lengths * (0.6 + 0.8 * torch.rand(len(lengths)))


LORA = {"r": 3, "lora_alpha": 7, "lora_dropout": 0.1, "init_lora_weights": False}
ALPHAS = {"layers.1.mlp.down_proj": 5, "^model.layers.0.self_attn.q_proj": 9}
PATTERNS = {"use_rslora": True, "rank_pattern": {"down_proj": 2}, "alpha_pattern": ALPHAS}
CONV1D = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
FOLDERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "LoRA": (llama, {"target_modules": ["q_proj", "down_proj"]}),
    "patterns": (llama, {"target_modules": "all-linear", **PATTERNS}),
    "Conv1D": (gpt2, CONV1D),
    "BERT": (bert, {"target_modules": ["query", "intermediate.dense"]}),
    "DoRA": (llama, {"target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    "DoRA with biases": (bert, {"target_modules": ["query"], "use_dora": True}),
    "DoRA in Conv1D": (gpt2, {**CONV1D, "use_dora": True, "use_rslora": True}),
    "1×1 convolutions": (convolutions, {"target_modules": ["along", "over"]}),
    "IA3": (llama, {"target_modules": ["k_proj"], "feedforward_modules": [], "init_ia3_weights": False}),
}


@pytest.mark.library("peft")
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_peft_is_loaded_saved_swapped_and_merged(kind, tmp_path):
    peft = pytest.importorskip("peft")
    build, settings = FOLDERS[kind]
    config = peft.IA3Config(**settings) if kind == "IA3" else peft.LoraConfig(**LORA, **settings)
    theirs = peft.get_peft_model(build(), config).eval()
    set_lengths(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_adapters(build(), tmp_path / "theirs")
    expected = logits(theirs)
    if kind == "IA3":  # d = l - 1 is rounded
        torch.testing.assert_close(logits(model), expected)
        expected = logits(model)
    assert torch.equal(logits(model), expected)
    save_adapters(model, tmp_path / "saved")
    configs = [json.loads((tmp_path / name / "adapter_config.json").read_bytes()) for name in ("saved", "theirs")]
    assert configs[0]["auto_mapping"] == configs[1]["auto_mapping"], "from which AutoPeftModel knows the base"
    again = peft.PeftModel.from_pretrained(build(), tmp_path / "saved").eval()
    assert torch.equal(logits(again), expected)
    theirs.load_adapter(tmp_path / "saved", "esper")
    theirs.set_adapter("esper")
    assert torch.equal(logits(theirs), expected)
    torch.testing.assert_close(logits(again.merge_and_unload()), expected)
    plain = esper.export(model)
    torch.testing.assert_close(logits(plain), expected)
    assert kind != "Conv1D" or not any(".grown." in name for name, _ in plain.named_parameters()), "they are merged"
    esper.save(model, tmp_path / "whole")
    assert torch.equal(logits(esper.load(build(), tmp_path / "whole")), expected)
    with esper.disable_adapters(model):
        assert torch.equal(logits(model), logits(build()))
    half = load_adapters(build().to(torch.bfloat16), tmp_path / "saved")
    theirs = peft.PeftModel.from_pretrained(build().to(torch.bfloat16), tmp_path / "saved").eval()
    torch.testing.assert_close(logits(half), logits(theirs), rtol=0.02, atol=0.02)
    seeds = [parameter for slot in Host(half).slots for parameter in slot.parameters()]
    assert {parameter.dtype for parameter in seeds} == {torch.bfloat16 if kind == "IA3" else torch.float32}
    esper.save(half, tmp_path / "half")
    assert torch.equal(logits(esper.load(build().to(torch.bfloat16), tmp_path / "half")), logits(half))


@pytest.mark.library("peft")
def test_adapters_are_loaded_beside_those_that_transformers_has_loaded_itself(tmp_path):
    peft = pytest.importorskip("peft")
    for name, target in (("first", "q_proj"), ("second", "v_proj")):
        settings = peft.LoraConfig(**LORA, target_modules=[target])
        peft.get_peft_model(llama(), settings).save_pretrained(tmp_path / name)
    model, wrapped = llama(), peft.PeftModel.from_pretrained(llama(), tmp_path / "first")
    model.load_adapter(tmp_path / "first")
    plain = logits(model.eval())
    for other in (model, wrapped):
        load_adapters(other, tmp_path / "second")
    assert torch.equal(logits(model), logits(wrapped.eval()))
    assert not torch.equal(logits(model), plain)


# --- loops


def rows(count: int = 24) -> Tensor:
    return (torch.randint(29, (count, 1)) + torch.arange(8)) % 29 + 1


def padded(side: str) -> Callable[[], tuple[Tensor, Tensor]]:
    def batch() -> tuple[Tensor, Tensor]:
        words, mask = rows(), torch.ones(24, 8, dtype=torch.long)
        mask[:12, slice(None, 3) if side == "left" else slice(5, None)] = 0
        return words * mask, mask

    return batch


def grow(
    model: Any, *places: str, batch: Callable[[], Any] = rows, parts: int = 1, dtype: Any = None,
    compiled: bool = False, stack: int = 1,
) -> list[float]:  # fmt: skip
    """Grow an adapter in a frozen model, or several as a set, keep and train it, and return the validation losses."""
    model.requires_grad_(requires_grad=False).train()
    torch.manual_seed(1)
    slots = {} if Host(model).is_grafted else esper.adapters(model, places, stack=stack)
    plan = {**slots, **planned(places[0], blueprint="lora(rank=4,alpha=8)", keep=2)}
    if len(places) > 1:
        plan |= {"together": True, "policy": "static"}
    factory, held_out, losses = partial(torch.optim.AdamW, lr=2e-2), [batch()], []
    with esper.Gardener(model, factory, loss=next_words, validation=held_out, **plan) as gardener:
        called = torch.compile(model, backend="eager") if compiled else model
        for _ in range(8):
            for micro_batch in range(6 * parts):
                data = batch()
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    loss = next_words(called, data).mean() / parts
                if loss.requires_grad:
                    loss.backward()
                if (micro_batch + 1) % parts == 0:
                    gardener.optimizer.step()
                    gardener.optimizer.zero_grad()
                gardener.step(data)
            losses.append(gardener.tend().signals.validation_loss)
    model.eval()
    return losses


def checkpointed(model: Any) -> Any:
    model.gradient_checkpointing_enable()
    return model


def int8() -> Any:
    quantization = pytest.importorskip("torchao.quantization")
    model = llama()
    quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    return model


UP = "model.layers.0.mlp.up_proj"
SET = (UP, "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj")
LOOPS: dict[str, tuple[Callable[[], Any], tuple[str, ...], dict[str, Any]]] = {
    "plain": (llama, (UP,), {}),
    "accumulation": (llama, (UP,), {"parts": 2}),
    "checkpointing": (lambda: checkpointed(llama()), (UP,), {}),
    "autocast": (llama, (UP,), {"dtype": torch.bfloat16}),
    "bfloat16": (lambda: llama().to(torch.bfloat16), (UP,), {}),
    "compiled": (llama, (UP,), {"compiled": True}),
    "tied": (partial(llama, tie_word_embeddings=True), (UP,), {}),
    "left": (llama, (UP,), {"batch": padded("left")}),
    "right": (llama, (UP,), {"batch": padded("right")}),
    "Conv1D": (gpt2, ("transformer.h.0.mlp.c_fc",), {}),
    "int8": (int8, (UP,), {}),
    "a set": (llama, SET, {"parts": 2, "batch": padded("left")}),
    "a checkpointed set": (
        lambda: checkpointed(llama(tie_word_embeddings=True)),
        SET,
        {"dtype": torch.bfloat16, "batch": padded("right")},
    ),
    "a compiled set": (llama, SET, {"compiled": True}),
    "a set in int8": (int8, SET, {}),
}


@pytest.mark.library("peft")
@pytest.mark.parametrize("kind", LOOPS)
def test_an_adapter_grows_in_a_loop_and_is_one_of_peft(kind, tmp_path):
    peft = pytest.importorskip("peft")
    build, places, settings = LOOPS[kind]
    model = build()
    losses = grow(model, *places, **settings)
    assert losses[-1] < losses[0] - 0.02
    assert [len(slot.fossils) for slot in Host(model).slots] == [1] * len(places)
    base = Host.split_state(model.state_dict())[0]
    if "int8" not in kind:  # its tensors have no bits to compare
        assert same(base, build().state_dict())
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert [name for name in trained if not name.startswith(places)] == []
    save_adapters(model, tmp_path)
    again = peft.PeftModel.from_pretrained(build(), tmp_path).eval()
    compare = torch.testing.assert_close if kind == "bfloat16" else torch.equal
    assert compare(logits(again), logits(model)) is not False
    prompt = {"input_ids": WORDS[:, :4], "attention_mask": torch.ones(6, 4, dtype=torch.long)}
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    cached, slow = (model.generate(**prompt, **options, use_cache=cache) for cache in (True, False))
    if kind != "bfloat16":
        assert torch.equal(cached, slow)
        assert torch.equal(again.generate(**prompt, **options), cached)


@pytest.mark.library("peft")
def test_a_saved_model_goes_on_and_several_loras_of_a_place_are_joined(tmp_path):
    """Through save_pretrained of the whole model, and load_adapters."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    from esper_grow.integrations.transformers import from_pretrained

    model = llama()
    grow(model, UP)
    model.save_pretrained(tmp_path / "whole")
    assert torch.equal(logits(from_pretrained(transformers.LlamaForCausalLM, tmp_path / "whole").eval()), logits(model))
    save_adapters(model, tmp_path / "first")
    base = llama().requires_grad_(requires_grad=False)
    model = load_adapters(base, tmp_path / "first", example={"input_ids": WORDS})
    plan = planned(UP, blueprint="lora(rank=2,rslora=true)", keep=2)
    optimizer = torch.optim.AdamW([*Host(model).slots.named(UP).parameters()], lr=1e-2)
    with esper.Gardener(model, optimizer, loss=next_words, validation=[rows()], seed_lr=1e-2, **plan) as gardener:
        for _ in range(4):
            train_batch(gardener, next_words, rows())
            gardener.tend()
    fossils = Host(model).slots.named(UP).fossils
    settings = [seed.blueprint.removeprefix("blueprints/lora") for seed in fossils]
    assert settings == ["(rank=4,alpha=8.0)", "(rank=2,rslora=true)"]
    random_seeds(model)
    save_adapters(model.eval(), tmp_path / "second")
    again = peft.PeftModel.from_pretrained(llama(), tmp_path / "second").eval()
    assert again.peft_config["default"].r == 6
    torch.testing.assert_close(logits(again), logits(model))


@pytest.mark.library("peft")
def test_a_peft_model_is_a_host_whose_adapters_stay(tmp_path):
    peft = pytest.importorskip("peft")
    theirs = peft.get_peft_model(llama(), peft.LoraConfig(**LORA, target_modules=["up_proj"])).eval()
    before, at = {name: value.clone() for name, value in theirs.state_dict().items()}, f"base_model.model.{UP}"
    grow(theirs, at)
    assert same(Host.split_state(theirs.state_dict())[0], before)
    save_adapters(theirs, tmp_path)
    with esper.disable_adapters(theirs):
        alone = logits(theirs) - logits(llama())
    grown = logits(peft.PeftModel.from_pretrained(llama(), tmp_path).eval())
    assert json.loads((tmp_path / "adapter_config.json").read_bytes())["target_modules"] == [UP]
    assert not torch.equal(grown, logits(llama()))
    assert alone.any()


@pytest.mark.library("peft")
def test_named_adapters_share_a_base_and_are_switched_and_saved_by_name(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    for name, targets in (("first", ["up_proj", "q_proj"]), ("second", ["up_proj", "down_proj"])):
        config = peft.LoraConfig(**{**LORA, "lora_dropout": 0.0}, target_modules=targets)
        peft.get_peft_model(llama(), config).save_pretrained(tmp_path / name)
    theirs = peft.PeftModel.from_pretrained(llama(), tmp_path / "first", "first").eval()
    theirs.load_adapter(tmp_path / "second", "second")
    model = load_adapters(llama(), {name: tmp_path / name for name in ("first", "second")})
    expected = {name: logits(theirs) for name in ("first", "second") if theirs.set_adapter(name) is None}
    assert torch.equal(logits(model), expected["first"])
    with pytest.raises(EsperError, match=r"E334 .*called first"):
        load_adapters(model, tmp_path / "first", name="first")
    with pytest.raises(EsperError, match=r'(?s)E347 .*called "seconds".*Did you mean "second"'):
        esper.use_adapters(model, "seconds")
    esper.use_adapters(model, "second")
    assert torch.equal(logits(model), expected["second"])
    torch.testing.assert_close(logits(esper.export(model)), expected["second"])
    save_adapters(model, tmp_path / "saved", name="first")
    assert torch.equal(logits(load_adapters(llama(), tmp_path / "saved")), expected["first"])
    esper.use_adapters(model)
    assert torch.equal(logits(model), logits(llama()))
    grow(model, UP)
    assert not torch.equal(logits(model), logits(llama()))
    esper.name_adapters(model, "third")
    esper.save(model, tmp_path / "whole")
    again = esper.load(llama(), tmp_path / "whole")
    assert torch.equal(logits(again), logits(model))
    esper.use_adapters(again, "second")
    assert torch.equal(logits(again), expected["second"])
    with pytest.raises(EsperError, match=r"(?s)E347 .*The model has: first, second, third"):
        esper.name_adapters(model, "fourth")


@pytest.mark.library("peft")
def test_a_second_set_grows_beside_the_first_and_each_has_a_folder(tmp_path):
    peft = pytest.importorskip("peft")
    model, expected = llama(), {}
    for parts, name in enumerate(("first", "second"), 1):
        grow(model, *SET, stack=2, parts=parts)
        esper.name_adapters(model, name)
        expected[name] = logits(model)
        save_adapters(model, tmp_path / name)
        esper.use_adapters(model)
        assert torch.equal(logits(model), logits(llama()))
    assert not torch.equal(*expected.values())
    for name, outputs in expected.items():
        esper.use_adapters(model, name)
        assert torch.equal(logits(model), outputs)
        theirs = peft.PeftModel.from_pretrained(llama(), tmp_path / name).eval()
        assert torch.equal(logits(theirs), outputs)


# --- what is refused


def put(model: nn.Module, at: str, *names: str, blend: Blend = Blend.ADD, stage: Stage = Stage.FOSSILISED) -> nn.Module:
    """Let blueprints have grown behind a layer."""
    registry = load_plugins().registry
    if not Host(model).is_grafted:
        graft(model, {at: SlotPlace(at, stack=3)}, example={"input_ids": WORDS})
    for name in names:
        component: Any = registry.find("blueprint", name)
        seed = Host(model).plant(at, Variety(component.id, component.spec, component.load()), 0)
        seed.stage, seed.blend = stage, blend
    return model


@pytest.mark.parametrize(
    ("grown", "message"),
    [
        (lambda: graft(llama(), [UP]), "E337 nothing grew"),
        (lambda: put(llama(), UP, "lora", stage=Stage.HOLDING), r"E336 .*lora in model.*\n  Train until tend\(\)"),
        (lambda: put(llama(), UP, "bottleneck_adapter"), "E337 .*bottleneck_adapter in model.*esper_grow.save"),
        (lambda: put(llama(), UP, "lora", blend=Blend.GATED), "E337 PEFT adds adapters, .*lora in .*by gate"),
        (lambda: put(llama(), "model.layers.0.mlp", "lora"), "E337 PEFT adapts linear layers .*LlamaMLP"),
        (lambda: put(mamba(), "backbone.layers.0.mixer.out_proj", "lora"), r"E337 PEFT refuses LoRA beside .*out_proj"),
        (lambda: put(llama(), UP, "lora", "ia3"), "E337 PEFT has one DoRA or IA³"),
        (lambda: put(llama(), UP, "dora", "dora"), "E337 PEFT has one DoRA or IA³"),
        (lambda: put(llama(), UP, "lora", "lora(dropout=0.1)"), "E337 PEFT has one dropout .*0.0, 0.1"),
    ],
)
def test_what_peft_cannot_express_is_refused_by_name(grown, message, tmp_path):
    with pytest.raises(EsperError, match=f"(?s){message}"):
        save_adapters(grown(), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_what_was_trained_in_the_base_and_is_not_in_the_folder_is_named(tmp_path, caplog):
    model = put(llama().requires_grad_(requires_grad=False), UP, "lora")
    save_adapters(model, tmp_path)
    assert not caplog.records
    model.lm_head.requires_grad_()
    save_adapters(model, tmp_path)
    lacks = f"E337 {tmp_path} lacks 1 parameter of the model that may have been trained, such as lm_head.weight"
    assert f"{lacks}\n  Save a trained head beside the folder" in caplog.text
    model.add_module("up", model.get_submodule(UP))
    save_adapters(model, tmp_path)
    assert f"E337 PEFT adapts a layer under its first name alone, and {UP} has another one" in caplog.text


def edit(**settings: Any) -> Callable[[Any], None]:
    def change(folder: Any) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit(use_dora=True), "E337 .*the tensors .*lora_magnitude_vector"),
        (edit(modules_to_save=["score"]), "E337 .*modules_to_save"),
        (edit(init_lora_weights="pissa"), "E337 .*pissa.*changes the base"),
        (edit(peft_type="LOHA"), "E337 .*'LOHA'"),
        (edit(alpha_pattern={"(a+)+b": 3}), "E337 .*the pattern"),
        (edit(lora_alpha="x"), "E332 .*not a file of PEFT"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "E332 .*not a file of PEFT"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x"), "E332 .*not a file of PEFT"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "E332 .*cannot read.*pickles are not read"),
    ],
)
def test_a_folder_that_means_something_else_is_refused_and_the_model_stays(damage, message, tmp_path):
    save_adapters(put(llama(), UP, "lora"), tmp_path)
    load_adapters(llama(), tmp_path)
    damage(tmp_path)
    model = llama()
    with pytest.raises(EsperError, match=f"(?s){message}"):
        load_adapters(model, tmp_path)
    assert not Host(model).is_grafted


def test_a_folder_for_another_model_is_refused(tmp_path):
    save_adapters(put(llama(), UP, "lora"), tmp_path)
    with pytest.raises(EsperError, match=r"(?s)E334 .*up_proj is no linear layer .*of the model"):
        load_adapters(gpt2(), tmp_path)
    with pytest.raises(EsperError, match=r"(?s)E334 .*maps 20 to 32 features, and the adapter 16 to 32"):
        load_adapters(llama(hidden_size=20), tmp_path)
    with pytest.raises(EsperError, match="E334 the model has slots, and none with room"):
        load_adapters(graft(llama(), ["model.layers.1.mlp.up_proj"]), tmp_path)
