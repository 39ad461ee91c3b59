"""A Gardener in a loop with an Accelerator: the host stays as it was, checkpoints carry the growth."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from esper_grow import adapters
from tests.support.core_worlds import NoisyHost, per_example, same
from tests.support.loops import SLOW_MARKS, planned, toy_data

pytestmark = [*SLOW_MARKS, pytest.mark.library("accelerate")]


def new(grow: dict[str, Any] | None = None, *, clip: float | None = None, **settings: Any) -> Any:
    """Return a prepared loop, whose ``train(epochs)`` trains; a set of adapters grows beside a frozen base."""
    import accelerate

    from esper_grow.integrations.accelerate import grow as make_gardener

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    torch.manual_seed(3)
    host, (train_data, held_out) = NoisyHost(), toy_data()
    if grow is not None and grow.get("slots") is ADAPTERS:
        host.requires_grad_(False).head.requires_grad_(True)
        grow = {**grow, **adapters(host, "hidden.1", rank=2)}
    trained = [parameter for parameter in host.parameters() if parameter.requires_grad]
    loop = host, torch.optim.AdamW(trained, lr=1e-2), DataLoader(TensorDataset(*train_data), 10)
    model, optimizer, loader = accelerator.prepare(*loop)
    gardener = None
    if grow is not None:
        arguments = {"loss": per_example, "slots": ["stem"], "validation": [held_out], **grow}
        gardener = make_gardener(accelerator, model, optimizer, clip_norm=clip, **arguments)
    torch.manual_seed(4)

    def train(epochs: int) -> list[str]:
        tended = []
        for _ in range(epochs):
            for batch in loader:
                with accelerator.accumulate(model):
                    optimizer.zero_grad()
                    accelerator.backward(per_example(model, batch).mean())
                    if clip is not None and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                if gardener is not None:
                    gardener.step(batch)
            if gardener is not None:
                tended.append(str(gardener.tend()))
        return tended

    return SimpleNamespace(accelerator=accelerator, host=host, optimizer=optimizer, train=train)


@pytest.mark.parametrize(("strict", "message"), [(True, r"for_esper_grow\.load"), (False, "custom checkpoints")])
def test_a_state_is_not_loaded_without_the_gardener_whose_growth_it_has(tmp_path, strict, message):
    grown = new(planned("stem", keep=4))
    grown.train(2)
    grown.accelerator.save_state(str(tmp_path))
    with pytest.raises(RuntimeError, match=message):
        new().accelerator.load_state(str(tmp_path), strict=strict)


def state_of(loop: Any, *, grown: bool = False) -> dict[str, Any]:
    """Return the state that a Gardener must not change, or all of it."""
    memory, named = loop.optimizer.optimizer.state, dict(loop.host.named_parameters())
    return {
        "tensors": {name: tensor for name, tensor in loop.host.state_dict().items() if grown or "_esper" not in name},
        "memory": {name: dict(memory[parameter]) for name, parameter in named.items() if parameter in memory},
        "random": torch.get_rng_state(),
    }


def dynamo() -> Any:
    from accelerate.utils import TorchDynamoPlugin

    return TorchDynamoPlugin(backend="eager")


@pytest.mark.parametrize(
    "how",
    [{}, {"gradient_accumulation_steps": 3}, {"clip": 0.01}, {"mixed_precision": "bf16"}, {"dynamo_plugin": dynamo}],
    ids=["plainly", "in parts", "clipped", "in bfloat16", "compiled"],
)
def test_the_host_is_that_of_a_plain_training_until_a_seed_is_kept(how):
    states = []
    for grow in (None, planned("stem")):
        loop = new(grow, **{key: value() if callable(value) else value for key, value in how.items()})
        reports = loop.train(3)
        states.append(state_of(loop))
    assert "training" in "".join(reports)
    assert same(*states)


SET: dict[str, Any] = {"blueprints": ["conv_light"], "together": True, "steps": 5}
ADAPTERS: Any = object()
"""In place of slots: adapters on a frozen base."""


@pytest.mark.parametrize(
    ("grow", "epochs", "outcome"),
    [
        *((planned("stem", keep=4), epochs, "is kept") for epochs in (1, 2, 3, 5)),
        (SET, 2, "is pruned"),  # too few examples to judge by
        ({**SET, "growth": {"gates": "off"}}, 1, ""),
        ({**SET, "slots": ADAPTERS}, 2, "a set of 1 seed, 112 parameters"),
        ({**SET, "slots": ADAPTERS, "growth": {"gates": "off"}}, 1, ""),
    ],
    ids=["1", "2", "3", "5", "a living set", "a kept set", "living adapters", "kept adapters"],
)
def test_a_resumed_training_has_the_same_numbers_to_the_bit(tmp_path, grow, epochs, outcome):
    uninterrupted, first, second = (new(grow) for _ in range(3))
    torch.manual_seed(5)
    expected = uninterrupted.train(7)
    random = torch.get_rng_state()
    assert outcome in expected[4]
    torch.manual_seed(5)
    seen = first.train(epochs)
    first.accelerator.save_state(str(tmp_path))
    second.accelerator.load_state(str(tmp_path))
    seen += second.train(7 - epochs)
    assert seen == expected
    assert torch.equal(torch.get_rng_state(), random)
    assert same(state_of(second, grown=True), state_of(uninterrupted, grown=True))
