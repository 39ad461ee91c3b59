"""Small models of transformers with random weights, and a loss for each of their sentences."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

SIZE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def small_model(name: str, *, vocab_size: int = 30, **settings: Any) -> Any:
    """Return a model of this class; settings: those of its configuration."""
    kind = getattr(pytest.importorskip("transformers"), name)
    torch.manual_seed(0)
    return kind(kind.config_class(vocab_size=vocab_size, **settings)).eval()


llama = partial(small_model, "LlamaForCausalLM", **SIZE)


def next_words(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of each sentence of a batch: its words, or its words and their mask."""
    words, mask = batch if isinstance(batch, tuple) else (batch, torch.ones_like(batch))
    scores = model(input_ids=words, attention_mask=mask).logits[:, :-1].float()
    return nn.functional.cross_entropy(scores.transpose(1, 2), words[:, 1:], reduction="none").mean(1)
