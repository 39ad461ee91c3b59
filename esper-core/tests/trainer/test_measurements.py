"""Evaluation of a network on a split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from esper_core.trainer.environment import Environment, Recipe

Make = Callable[..., Recipe]


def test_evaluation_disturbs_nothing_and_is_the_mean_over_all_examples(make_recipe):
    environment = Environment(make_recipe(), arm="a", index=0)
    environment.reset(0, 1)
    state = {key: value.clone() for key, value in environment.model.state_dict().items()}
    random = torch.get_rng_state()
    loss, metric = environment.evaluate("validation").tolist()
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[key]) for key, value in environment.model.state_dict().items())
    assert environment.model.training
    environment.model.eval()
    split = environment.recipe.data["validation"]
    outputs = environment.model(split.inputs)
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, split.targets).item(), rel=1e-5)
    assert metric == pytest.approx((outputs.argmax(1) == split.targets).float().mean().item())


def test_sim_low_3_evaluation_keeps_no_graph_and_what_comes_of_it_can_be_learnt_from(make_recipe):
    """It is in inference mode; its figures are ordinary tensors again, which a gradient may pass through."""
    seen: list[tuple[bool, bool]] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU())
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            seen.append((self.training, torch.is_inference_mode_enabled()))
            outputs: Tensor = self.head(self.stem(inputs))
            return outputs

    environment = Environment(make_recipe(host=Watching, batches=1), arm="a", index=0)
    environment.reset(0, 1)
    environment.train()
    seen.clear()
    figures = environment.evaluate("validation")
    assert seen
    assert set(seen) == {(False, True)}
    assert not figures.is_inference()
