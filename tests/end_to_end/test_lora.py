"""The example with LoRA: placed by a probe, it adapts a frozen transformer, which stays a plain one."""

import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from esper_grow import Gardener, export
from tests.end_to_end.conftest import Plan
from tests.support.loops import train_batch
from tests.support.small_models import next_words, small_model

EXAMPLE = Path(__file__).parents[2] / "examples/lora.py"


@pytest.mark.slow
def test_a_frozen_transformer_is_adapted_and_its_adapters_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    reached, merged = runpy.run_path(str(EXAMPLE))["main"]()
    assert reached > 0.8  # 0 before
    assert merged
    output = capsys.readouterr().out
    assert "lora(rank=16) in blocks" in output
    assert "pays: its gain is" in output
    assert "is kept" in output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_gpt2_is_adapted_beside_its_attention_and_merged_but_for_its_head() -> None:
    """GPT-2 stores weights transposed, and its head shares those of the embedding."""
    size = {"vocab_size": 20, "n_positions": 8, "n_embd": 32, "n_layer": 2, "n_head": 2}
    without_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = small_model("GPT2LMHeadModel", **size, **without_dropout).requires_grad_(False)
    names = {name for name, _ in model.named_parameters()}

    def rows(count: int) -> torch.Tensor:
        """Return sentences in which each token is the one before it plus one."""
        return (torch.randint(20, (count, 1)) + torch.arange(8)) % 20

    slots, small = ("transformer.h.1.attn.c_attn", "lm_head"), "blueprints/lora(rank=4)"
    gardener = Gardener(
        model, partial(torch.optim.AdamW, lr=1e-2), loss=next_words, slots=slots, blueprints=["lora(rank=4)"],
        example=rows(16), validation=[rows(100)], steps=9, policy=Plan(slots, small), growth={"gates": "off"},
    )  # fmt: skip
    losses = []
    for _ in range(9):
        for _ in range(10):
            train_batch(gardener, next_words, rows(32))
        losses.append(gardener.tend().signals.validation_loss)
    gardener.close()
    assert losses[-1] < losses[0] / 2
    example = rows(16)
    plain = export(model)
    with torch.no_grad():
        expected, exported = model(input_ids=example).logits, plain(input_ids=example).logits
    torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-4)
    added = {name for name, _ in plain.named_parameters()} - names
    assert added
    assert all(name.startswith("lm_head.grown.") for name in added)  # its weights are those of the embedding
