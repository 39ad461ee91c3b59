"""A plain loop over MNIST-1D grows where growth pays, and keeps nothing where it does not."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.growth import derive_seed, slots_of
from esper_core.plugins import load_plugins
from esper_grow import Gardener
from esper_run.app.run import run
from tests.support.core_worlds import per_example

EPOCHS = 40
PRICE = 2e-4
"""Nats for each parameter: 0.13 for the convolution, more than its capacity alone brings on shuffled positions."""


def train(task_name: str, seed: int, *, grown: bool, like_a_run: bool = False) -> tuple[nn.Module, float]:
    """Train ``pointwise-mlp`` in a plain loop; return the model and its accuracy on the test split.

    ``like_a_run``: with two blueprints, and the random numbers of an environment of ``esper run``.
    """
    registry = load_plugins().registry
    task: Any = registry.find("task", task_name).load()()
    torch.manual_seed(derive_seed(seed, "host") if like_a_run else seed)
    model: nn.Module = registry.find("host", "pointwise-mlp").load()(task.shape)
    data, held_out, test = (task.split(name) for name in ("train", "validation", "test"))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    gardener = None
    if grown:
        blueprints = ["conv_light", "pointwise"] if like_a_run else ["conv_light"]
        batches = {"example": (data.inputs[:8], data.targets[:8]), "validation": [(held_out.inputs, held_out.targets)]}
        settings = {"slots": ["stem"], "blueprints": blueprints, "steps": EPOCHS, "seed": seed}
        gardener = Gardener(model, optimizer, loss=per_example, growth={"price": PRICE}, **batches, **settings)
    order = torch.Generator().manual_seed(derive_seed(seed, "order") if like_a_run else seed)
    for _ in range(EPOCHS):
        for indices in torch.randperm(len(data), generator=order).split(100):
            batch = data.inputs[indices], data.targets[indices]
            optimizer.zero_grad()
            per_example(model, batch).mean().backward()
            optimizer.step()
            if gardener is not None:
                gardener.step(batch)
        if gardener is not None:
            gardener.tend()
    if gardener is not None:
        gardener.close()
    model.eval()
    with torch.no_grad():
        right = model(test.inputs).argmax(1) == test.targets
    return model, right.float().mean().item()


@pytest.mark.slow
@pytest.mark.members
@pytest.mark.parametrize("seed", range(5))
def test_a_convolution_is_kept_and_lifts_the_host_and_nothing_is_kept_on_shuffled_positions(seed):
    _, plain = train("mnist1d", seed, grown=False)
    model, accuracy = train("mnist1d", seed, grown=True)
    assert [fossil.blueprint for fossil in slots_of(model).named("stem").fossils] == ["blueprints/conv_light"]
    assert plain < 0.65
    assert accuracy > plain + 0.15
    model, accuracy = train("mnist1d-shuffled", seed, grown=True)
    assert not slots_of(model).named("stem").fossils
    _, plain = train("mnist1d-shuffled", seed, grown=False)
    assert accuracy == plain


RUN = f"""
task: mnist1d
host: pointwise-mlp
slots: {{stem: {{at: stem, blueprints: [conv_light, pointwise]}}}}
policy: heuristic
growth: {{price: {PRICE}, evidence: loss}}
optimizer: {{host: {{kind: adam, learning_rate: 0.003}}, seed: {{kind: adam, learning_rate: 0.003}}}}
environments: 3
episode: {{steps: {EPOCHS}, batches: 32, batch_size: 100}}
twin: false
capacity: false
"""


@pytest.mark.slow
@pytest.mark.members
def test_the_loop_keeps_what_esper_run_keeps(tmp_path):
    """Of two blueprints, with the initial weights and the order of batches of the run's environments.

    Their optimizers round differently, so that a gate may open a step earlier in one of them.
    """
    (tmp_path / "run.yaml").write_text(RUN)
    run(tmp_path / "run.yaml", runs_dir=tmp_path / "runs", name="same")
    (record,) = (tmp_path / "runs").glob("*-same/growth.json")
    episodes = json.loads(record.read_text())["episodes"]
    grown = {episode["seed"]: episode["grown"] for episode in episodes}
    kept = {seed: [(fossil["blueprint"], fossil["born"]) for fossil in fossils] for seed, fossils in grown.items()}
    kept_by_loop = {}
    for seed in kept:
        model, _ = train("mnist1d", seed, grown=True, like_a_run=True)
        kept_by_loop[seed] = [(fossil.blueprint, fossil.born) for fossil in slots_of(model).named("stem").fossils]
    assert len(kept) == 3
    assert kept_by_loop == kept
