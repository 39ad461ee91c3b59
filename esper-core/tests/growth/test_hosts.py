"""Hosts: what a caller asks of a model, with and without slots."""

import torch
from torch import nn

from esper_core.growth import Host, Variety, graft
from esper_core.leyline import BlueprintSpec
from tests.support.core_worlds import local_conv, same

EXAMPLE = torch.randn(3, 2, 8)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.Dropout(), nn.Flatten(), nn.Linear(32, 2))


def test_seeds_are_planted_at_full_strength_and_are_not_parameters_of_the_host():
    model = network()
    host, host_parameters = Host(model), dict(model.named_parameters())
    assert (host.is_grafted, host.parameters().keys()) == (False, host_parameters.keys())
    graft(model, ["0", "1"], example=EXAMPLE)
    variety = Variety("test/conv", BlueprintSpec("sequence"), local_conv)
    seeds = [host.plant(slot, variety, 0, lambda model: model(EXAMPLE).mean()) for slot in ("0", "1")]
    assert [(seed.number, seed.alpha.value) for seed in seeds] == [(0, 1.0), (1, 1.0)]
    assert [slot.living for slot in host.slots.matching("*")] == seeds
    assert host.is_grafted
    assert all(parameter is host_parameters[name] for name, parameter in host.parameters().items())
    assert len(host.parameters()) == len(host_parameters) < len(list(model.parameters()))
    assert host.network.grown == ()


def test_evaluating_restores_modes_and_buffers():
    model = network()
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with Host(model).evaluating():
        assert not any(module.training for module in model.modules())
        model[1].train()(model[0](EXAMPLE))
        assert not same(model.state_dict(), before)
    assert same(model.state_dict(), before)
    assert [module.training for module in model] == [True, True, False, True, True]
