"""Models of other libraries are grafted, grow a seed that is kept, are resumed, and are exported."""

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper_core.growth import slots_of
from esper_core.growth.examples import call
from esper_core.growth.grafting import alike
from esper_core.leyline import Action, SlotPlace
from esper_grow import Gardener, export
from tests.docs.test_answers import script
from tests.support.core_worlds import PlannedPolicy, per_example
from tests.support.loops import life, train_batch
from tests.support.small_models import SIZE, small_model

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Host:
    """A model of another library, how it is called, and its slots."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    losses: Callable[[nn.Module, Any], Tensor]
    slots: dict[str, SlotPlace]
    blueprint: str
    example: Callable[[Any], Any] = lambda batch: batch[0]


def timm_model(name: str, **settings: Any) -> nn.Module:
    """A model of timm, without torchvision, which is often built for another torch, and which these models do not use.

    There is no lighter import: ``timm.models`` imports ``timm.layers`` and ``timm.data``, and these torchvision.
    """
    if "timm" not in sys.modules:
        names = ("", ".ops", ".ops.misc", ".datasets", ".transforms", ".transforms.functional")
        stubs = {f"torchvision{suffix}": mock.MagicMock(FrozenBatchNorm2d=nn.BatchNorm2d) for suffix in names}
        sys.modules.update(stubs)
        try:
            pytest.importorskip("timm")
        finally:
            for stub in stubs:
                del sys.modules[stub]
    return importlib.import_module("timm").create_model(name, num_classes=3, in_chans=1, **settings)


def images(seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    inputs, targets = torch.randn(16, 1, 32, 32), torch.arange(16) % 3
    inputs[:, :, :, :8] += targets[:, None, None, None] - 1.0
    return inputs, targets


def sentences(seed: int) -> Any:
    """A padded batch of a tokenizer."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    ids = (torch.arange(10) * torch.randint(1, 4, (16, 1)) + torch.randint(24, (16, 1))) % 24
    mask = torch.ones_like(ids)
    mask[::3, 8:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    return transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask, "labels": labels})


def next_words(model: nn.Module, batch: Any) -> Tensor:
    logits = model(**batch).logits
    return cross_entropy(logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:], reduction="none")


def reviews(seed: int) -> Any:
    batch = sentences(seed)
    batch["labels"] = batch["input_ids"][:, 0] % 2
    return batch


def judged(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(**batch).logits, batch["labels"], reduction="none")


def without_labels(batch: Any) -> dict[str, Tensor]:
    return {key: value for key, value in batch.items() if key != "labels"}


transformer = partial(small_model, vocab_size=24, use_cache=False)
GPT2 = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
LLAMA = {**SIZE, "num_key_value_heads": 1}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
HOSTS = {
    "timm resnet": Host(
        lambda: timm_model("test_resnet"), images, per_example, {"layer": SlotPlace("layer1")}, "conv_light"
    ),
    "timm vit": Host(
        lambda: timm_model("vit_tiny_patch16_224", **VIT), images, per_example, {"b": SlotPlace("blocks.0")}, "mlp"
    ),
    "gpt2": Host(
        lambda: transformer("GPT2LMHeadModel", **GPT2), sentences, next_words,
        {"block": SlotPlace("transformer.h.0"), "all": SlotPlace("transformer")}, "mlp", without_labels,
    ),
    "bert": Host(
        lambda: transformer("BertForSequenceClassification", **SIZE), reviews, judged,
        {"pooled": SlotPlace("bert", output="pooler_output"), "words": SlotPlace("bert.encoder")}, "mlp",
        without_labels,
    ),
    "llama": Host(
        lambda: transformer("LlamaForCausalLM", **LLAMA), sentences, next_words,
        {"layer": SlotPlace("model.layers.1"), "attention": SlotPlace("model.layers.0.self_attn")}, "mlp",
        without_labels,
    ),
}  # fmt: skip


def lives(slots: Iterable[str], blueprint: str) -> dict[int, Action]:
    """Germinate, blend in and keep a seed in one slot after the other."""
    plans = [life(slot, blueprint, begin=4 * number, keep=4 * number + 3) for number, slot in enumerate(slots)]
    return {step: action for plan in plans for step, action in plan.items()}


def loop(host: Host) -> tuple[nn.Module, torch.optim.Optimizer, Gardener]:
    torch.manual_seed(0)
    model = host.build().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    gardener = Gardener(
        model, optimizer, loss=host.losses, slots=host.slots, blueprints=[host.blueprint], example=host.batch(0),
        validation=[host.batch(9)], steps=8, policy=PlannedPolicy(lives(host.slots, f"blueprints/{host.blueprint}")),
        growth={"gates": "off"},
    )  # fmt: skip
    return model, optimizer, gardener


def train(host: Host, parts: tuple[nn.Module, torch.optim.Optimizer, Gardener], steps: range) -> list[str]:
    gardener, kept = parts[2], []
    for step in steps:
        torch.manual_seed(step)  # of dropout
        train_batch(gardener, host.losses, host.batch(step % 3))
        kept += [seed.slot for seed in gardener.tend().kept]
    return kept


@pytest.mark.parametrize("name", HOSTS)
def test_a_model_of_others_grows_resumes_and_is_exported(name, tmp_path):
    host = HOSTS[name]
    parts = loop(host)
    steps = 4 * len(host.slots)
    assert not train(host, parts, range(2))
    torch.save({"gardener": parts[2].state_dict(), "optimizer": parts[1].state_dict()}, tmp_path / "checkpoint.pt")
    kept = train(host, parts, range(2, steps))
    assert kept == list(host.slots)

    again = loop(host)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    again[2].load_state_dict(saved["gardener"])
    again[1].load_state_dict(saved["optimizer"])
    assert train(host, again, range(2, steps)) == kept
    model = parts[0]
    for parameter, resumed in zip(model.parameters(), again[0].parameters(), strict=True):
        assert torch.equal(parameter, resumed)

    parts[2].close()
    assert sum(len(slot.fossils) for slot in slots_of(model)) == len(kept)
    example = host.example(host.batch(5))
    plain = export(model, path=tmp_path / "all", example=example).eval()
    with torch.no_grad():
        assert torch.equal(host.losses(model.eval(), host.batch(5)), host.losses(plain, host.batch(5)))
    again[2].close()
    loaded = script(tmp_path / "all" / "network.py").load(host.build()).eval()
    with torch.no_grad():
        assert alike(call(loaded, example), call(plain, example))
