"""Gardeners of parts: a grown part that was moved into another model, and parts of one model that grow apart."""

import importlib.util

import pytest
import torch
from torch import nn

import esper_grow as esper
from esper_core import EsperError, SlotPlace
from esper_core.growth import slots_of
from tests.support.core_worlds import Net, NoisyHost, add_seed, per_example, same
from tests.support.loops import Loop, adam, make_loop, planned

PLACES = {"stem": SlotPlace("stem", stack=2)}


def around(part: nn.Module) -> nn.Module:
    """Return another model with the part, whose outputs are those of the part, scaled."""
    return Net(lambda net, inputs: net.scale * net.part(inputs), part=part, scale=nn.Parameter(torch.ones(3)))


def test_a_gardener_goes_on_with_the_slots_of_a_part_that_was_moved_into_another_model(tmp_path):
    first = make_loop().tended(**planned("stem", keep=3), slots=PLACES)
    first.epochs(4)
    first.gardener.close()
    outer = around(first.model)
    loop = Loop(outer, adam(outer.parameters()), first.batches, first.validation, first.variety)
    reports = loop.tended(**planned("stem", keep=3), slots=None).epochs(5)
    assert [bool(report.kept) for report in reports] == [False, False, False, True, False]
    (slot,) = slots_of(outer)
    assert [seed.number for seed in slot.fossils] == [0, 1]
    held = {id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in outer.parameters()}
    esper.save(outer, tmp_path / "whole")
    esper.save(outer.part, tmp_path / "part")
    whole = esper.load(around(NoisyHost()), tmp_path / "whole")
    assert same(whole.state_dict(), outer.state_dict())
    for name, prefix in (("whole", "part"), ("whole", "part."), ("part", "")):
        part = esper.load(NoisyHost(), tmp_path / name, prefix=prefix)
        assert same(part.state_dict(), outer.part.state_dict())
    assert same(esper.load(NoisyHost(), outer.state_dict(), prefix="part").state_dict(), outer.part.state_dict())
    with pytest.raises(EsperError, match="E334"):
        esper.load(NoisyHost(), tmp_path / "whole", prefix="parts")


def test_parts_that_grow_apart_are_saved_together_without_a_trace(tmp_path):
    def grow(*, save: bool) -> list[str]:
        torch.manual_seed(6)
        loops = [make_loop().tended(), make_loop().tended()]
        wrapper = nn.ModuleDict({"first": loops[0].model, "second": loops[1].model})
        reports = []
        for epoch in range(4):
            reports += [str(loop.epoch()) for loop in loops]
            if save and epoch % 2:
                esper.save(wrapper, tmp_path)
                esper.save(wrapper["second"], tmp_path / "second")
        with pytest.raises(EsperError, match="E357"):
            esper.Gardener(wrapper, adam(wrapper.parameters()), loss=per_example, validation=loops[0].validation)
        assert [seed.number for slot in slots_of(wrapper) for seed in slot.fossils] == [0, 0]
        return reports

    assert grow(save=True) == grow(save=False)


def test_a_part_is_exported_with_what_grew_behind_the_part_itself(tmp_path):
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))
    esper.graft(model, {"slot": "0"}, example=torch.randn(3, 4))
    add_seed(model, "slot", fossil=True)
    inputs, part = torch.randn(5, 4), model[0]
    plain = esper.export(part, path=tmp_path)
    assert not hasattr(plain, "_esper")
    torch.testing.assert_close(plain(inputs), part(inputs))
    spec = importlib.util.spec_from_file_location("exported_part", tmp_path / "network.py")
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    again = exported.load(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    torch.testing.assert_close(again(inputs), part(inputs))
