"""A loop is told before it trains what cannot grow in it, and something grows in a short one."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.leyline import SlotState
from esper_grow import Gardener
from esper_grow.gardener.prospects import smallest_gain
from tests.support.core_worlds import PlannedPolicy, per_example
from tests.support.loops import train_batch

pytestmark = pytest.mark.members


def neighbours(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Signals, and whether their neighbours agree."""
    signals = torch.randn(examples, 1, 16, generator=torch.Generator().manual_seed(seed))
    return signals, (signals[..., 1:] * signals[..., :-1]).mean((1, 2)).gt(0).long()


def host(certainty: float = 1.0) -> nn.Module:
    """A model that looks at each reading by itself; the larger ``certainty``, the more its losses differ."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv1d(1, 8, 1), nn.ReLU())
    model = nn.Sequential(stem, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    with torch.no_grad():
        model[3].weight.mul_(certainty)
    return model


def gardener_of(model: nn.Module, steps: int = 40, *, examples: int = 400, **settings: Any) -> Gardener:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    validation = [neighbours(examples, 1)]
    settings = {"loss": per_example, "blueprints": ["conv_light"], **settings}
    return Gardener(model, optimizer, slots=["0"], validation=validation, steps=steps, **settings)


def train(gardener: Gardener, tends: int, batches: int = 12) -> list[Any]:
    data = list(zip(*(part.split(50) for part in neighbours(50 * batches, 2)), strict=True))
    reports = []
    for _ in range(tends):
        for batch in data:
            train_batch(gardener, per_example, batch)
        reports.append(gardener.tend())
    gardener.close()
    return reports


@pytest.mark.slow
def test_a_seed_is_kept_in_thirteen_tends_and_early_stopping_can_watch_its_branch(caplog):
    """The default policy has previews and ramps for forty calls; they become shorter. Its gain is shown at look 8."""
    reports = train(gardener_of(host(), 13), 13)
    assert [change.blueprint for report in reports for change in report.kept] == ["blueprints/conv_light"]
    assert caplog.text == ""
    (gain,) = (seed.gain.mean for slot in reports[4].signals.slots for seed in slot.seeds)
    assert gain > 0
    assert reports[4].best_loss == reports[4].signals.validation_loss - gain
    assert reports[0].best_loss == reports[0].signals.validation_loss


UNGATED, PRICED = {"gates": "off"}, {"price": 2e-4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3}, r"E380 3 calls of tend\(\) are too few for any seed .*need 8 .*steps=… .*every=20"),
        ({"steps": 3, "growth": UNGATED}, r"E380 3 calls of tend\(\) are too few for any blueprint, .*needs 4"),
        ({"steps": 1}, r"E380 1 call of tend\(\) is too few for any seed "),
        ({"steps": 14}, ""),
        ({"growth": {"price": 0.01}}, r"E381 no seed can be kept: conv_light.* costs 6.56 nats .*\"price\": 1e-05"),
        ({"growth": {"price": 6e-4}}, "E381 hardly any seed can be kept: conv_light.* 0.3936 nats"),
        ({"blueprints": ["conv_*"], "growth": PRICED}, ""),
        ({"growth": {"price": 0.01}, "loss": lambda *arguments: per_example(*arguments) - 1.0}, ""),
        ({"loss": lambda *arguments: per_example(*arguments) - 1.0}, "E381 prices are a share of the loss above 0,"),
        ({"certainty": 30.0}, r"E382 400 validation examples show gains from about .* nats .*1,600 "),
        ({"certainty": 30.0, "examples": 4000}, ""),
        ({"growth": {"price": 0.01, "gates": "off"}}, "E381 no seed can be kept"),
        ({"growth": {"price": 0.01, "gates": "off"}, "policy": PlannedPolicy({})}, ""),
        ({}, ""),
    ],
)
def test_what_cannot_grow_is_told_before_training(settings, message, caplog):
    settings = dict(settings)
    gardener_of(host(settings.pop("certainty", 1.0)), **settings)
    assert len(caplog.records) == bool(message)
    assert re.search(message, caplog.text.replace("\n", " "))


def test_a_loss_that_falls_below_every_price_is_told_once_where_a_slot_has_room(caplog):
    scale, settings = [1.0], {"policy": PlannedPolicy({}), "growth": PRICED}
    gardener = gardener_of(host(), loss=lambda *arguments: scale[0] * per_example(*arguments), **settings)
    scale[0] = 0.1
    low = train(gardener, 2, batches=1)[0].signals
    (record,) = caplog.records
    assert re.match("E381 no seed can be kept: conv_light.* costs 0.1312 nats.* loss is 0.0", record.getMessage())
    full = replace(low, slots=(replace(low.slots[0], state=SlotState.CLOSED),))
    for signals, warnings in ((full, 1), (low, 2)):
        gardener_of(host(), **settings)._prospects.warn_again(signals)
        assert len(caplog.records) == warnings


def test_fewer_examples_show_larger_gains_only():
    """300 examples did not show the gain of an adapter, 0.03 nats, to strict gates."""
    assert smallest_gain(0.4, 300, 0.05 / 40) > 0.03 > smallest_gain(0.4, 1200, 0.05 / 40)
