"""Adapters that germinate together in a tiny Llama end where those of PEFT do that are there from the start."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_grow import Gardener, adapters

pytestmark = [pytest.mark.slow, pytest.mark.members, pytest.mark.filterwarnings("ignore")]

PLACES = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
STEPS, EVERY, WORDS = 600, 20, 64


def next_words(model: nn.Module, words: Tensor) -> Tensor:
    logits = model(input_ids=words).logits[:, :-1].flatten(0, 1)
    losses = nn.functional.cross_entropy(logits, words[:, 1:].flatten(), reduction="none")
    return losses.reshape(len(words), -1).mean(1)


def sentences(transitions: Tensor, count: int, generator: torch.Generator) -> Tensor:
    words = torch.randint(0, WORDS, (count, 1), generator=generator)
    while words.shape[1] < 24:
        following = torch.multinomial(transitions[words[:, -1]], 1, generator=generator)
        words = torch.cat([words, following], 1)
    return words


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor], gardener: Any = None) -> None:
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        if (loss := next_words(model, batch).mean()).requires_grad:
            loss.backward()
        optimizer.step()
        if gardener is not None:
            gardener.step(batch)
            if number % EVERY == 0:
                gardener.tend()


def test_a_set_ends_where_adapters_end_that_are_there_from_the_start():
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(5)
    transitions = (2.0 * torch.randn(WORDS, WORDS, generator=generator)).softmax(1)
    batches = [sentences(transitions, 16, generator) for _ in range(STEPS)]
    validation = [sentences(transitions, 100, generator) for _ in range(3)]
    test = sentences(transitions, 1000, generator)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    losses, sizes = [], []
    for grown in (False, True):
        torch.manual_seed(0)
        model: Any = transformers.LlamaForCausalLM(config).requires_grad_(requires_grad=False)
        if grown:
            settings = {
                "loss": next_words,
                "validation": validation,
                "steps": STEPS // EVERY,
                "growth": {"price": 1e-6},
            }
            chosen = {**adapters(model, PLACES, rank=4), **settings, "together": True}
            with Gardener(model, partial(torch.optim.AdamW, lr=3e-3), **chosen) as gardener:
                train(model, gardener.optimizer, batches, gardener)
        else:
            model = peft.get_peft_model(model, peft.LoraConfig(target_modules=PLACES, r=4, lora_alpha=4))
            train(model, torch.optim.AdamW(model.parameters(), lr=3e-3), batches)
        model.eval()
        with torch.no_grad():
            losses.append(next_words(model, test).mean().item())
        sizes.append(sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad))
    assert losses[1] < losses[0] + 0.02
    assert sizes[1] <= sizes[0]
