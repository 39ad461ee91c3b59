"""Hosts and parts of a grown model: whatever is done with a module is done with the seeds in it."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from esper_core.growth import Host, Network, Variety, graft, host_parameters, is_grafted, slots_of, ungraft
from esper_core.leyline import BlueprintSpec
from tests.support.core_worlds import Bend, add_seed, local_conv, same

INPUTS = {
    "linear": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "transformer": torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)),
    "container": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),
    "image": torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(1)),
}


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "transformer":
        encoder: nn.Module = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    elif kind == "image":
        encoder = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        return nn.Sequential(encoder, nn.Conv2d(4, 2, 1))
    else:
        encoder = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4))
    return nn.Sequential(encoder, nn.Linear(4, 2))


def grown(kind: str) -> nn.Module:
    at = {"linear": "0.0.0", "transformer": "0.linear2", "container": "0.0", "image": "0.0"}[kind]
    model = graft(model_of(kind), {"slot": at}, example=INPUTS[kind])
    add_seed(model, "slot", fossil=True)
    return model


def rebuilt(host: nn.Module, state: dict[str, Any]) -> nn.Module:
    network = Network.in_state(state)
    assert network is not None
    bend = Variety("test/bend", BlueprintSpec(network.seeds[0].kind, starts_as_identity=True), Bend)
    Host(host).rebuild(network, state, lambda _: bend, source="the part")
    return host


def saved(part: nn.Module, kind: str) -> nn.Module:
    stream = io.BytesIO()
    torch.save(part, stream)
    stream.seek(0)
    restored: nn.Module = torch.load(stream, weights_only=False)
    return restored


def distributed(part: nn.Module, kind: str) -> nn.Module:
    other = grown(kind)[0]
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    set_model_state_dict(other, get_model_state_dict(part))
    return other


OPERATIONS: list[Callable[[nn.Module, str], nn.Module]] = [
    lambda part, kind: copy.deepcopy(part),
    lambda part, kind: pickle.loads(pickle.dumps(part)),
    saved,
    lambda part, kind: rebuilt(model_of(kind)[0], part.state_dict()),
    distributed,
    lambda part, kind: nn.Sequential(part)[0],
]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=["copy", "pickle", "save", "load", "distributed", "move"])
def test_a_part_takes_what_grew_in_it_along(operation, kind):
    part = grown(kind)[0].eval()
    again = operation(part, kind).eval()
    assert torch.equal(again(INPUTS[kind]), part(INPUTS[kind]))
    assert not torch.equal(again(INPUTS[kind]), model_of(kind)[0].eval()(INPUTS[kind]))
    assert same(again.state_dict(), part.state_dict())
    assert len(list(again.parameters())) == len(list(host_parameters(again))) + 2
    assert [len(slot.fossils) for slot in slots_of(again)] == [1]


@pytest.mark.parametrize("kind", INPUTS)
def test_a_part_is_frozen_moved_and_switched_with_its_seeds_and_ungrafted_without(kind):
    model = grown(kind)
    part, (slot,) = model[0], slots_of(model)
    assert [*slots_of(part).by_module.items()] == [(slots_of(model).places()["slot"].removeprefix("0."), slot)]
    part.requires_grad_(False).double().eval()
    assert not any(parameter.requires_grad or parameter.dtype is not torch.float64 for parameter in slot.parameters())
    assert not any(module.training for module in slot.modules())
    assert len(part) == 2 if isinstance(part, nn.Sequential) else True
    ungraft(part, discard=True)
    assert not is_grafted(model)
    assert list(model.state_dict()) == list(model_of(kind).state_dict())


def test_parts_that_grew_apart_are_told_apart_in_one_model():
    model = nn.ModuleDict({"first": grown("linear"), "second": grown("linear")})
    assert list(slots_of(model).places().items()) == [("slot", "first.0.0.0"), ("slot:second.0.0.0", "second.0.0.0")]
    assert [seed.number for seed in Host(model).network.seeds] == [0, 1]
    assert [slot.name for slot in slots_of(model)] == ["slot", "slot"]
    assert [(slot.name, slot.fossils[0].number) for slot in slots_of(model).claim().values()] == [
        ("slot", 0),
        ("slot:second.0.0.0", 1),
    ]
    host = nn.ModuleDict({"first": model_of("linear"), "second": model_of("linear")})
    assert same(rebuilt(host, model.state_dict()).state_dict(), model.state_dict())


@pytest.mark.parametrize("into", ["grown", "ungrown"])
def test_growth_and_none_are_never_loaded_into_each_other_silently(into, caplog):
    ungrown, other = graft(model_of("linear"), {"slot": "0.0.0"}, example=INPUTS["linear"]), grown("linear")
    target, state = (other, ungrown.state_dict()) if into == "grown" else (ungrown, other.state_dict())
    with pytest.raises(RuntimeError, match=r"for_esper_grow\.load|E334"):
        target.load_state_dict(state)
    caplog.clear()
    if into == "grown":
        target.load_state_dict(state, strict=False)
        assert [record.getMessage()[:4] for record in caplog.records] == ["E334"]
    else:
        with pytest.raises(RuntimeError, match="E334"):  # torch raises what a hook reports in any mode
            target.load_state_dict(state, strict=False)
        with pytest.raises(RuntimeError, match="E334"):
            set_model_state_dict(target, get_model_state_dict(other))


def test_a_slot_behind_the_whole_part_is_restored_there():
    layer = grown("linear")[0][0][0]
    host = rebuilt(nn.Linear(4, 4), layer.state_dict())
    assert torch.equal(host(INPUTS["linear"]), layer(INPUTS["linear"]))


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
