"""Slots on a part of a structured output: networks are saved, exported and grown with them."""

import copy
import runpy
from types import SimpleNamespace

import pytest
import torch

from esper_core.growth import observe, slots_of
from esper_grow import Gardener, export, load, save
from tests.support.core_worlds import Bend, PlannedPolicy, per_example
from tests.support.loops import life, planned, train_batch
from tests.support.structured_outputs import BEND, EXAMPLE, KINDS, Host, grafted, grown


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_network_is_rebuilt_on_the_same_part(kind, tmp_path):
    model = grown(kind)
    save(model, tmp_path / "net")
    component = SimpleNamespace(id=BEND.id, spec=BEND.spec, title=BEND.title, load=lambda: Bend)
    plugins = SimpleNamespace(registry=SimpleNamespace(find=lambda *_: component))
    for source in (tmp_path / "net", model.state_dict()):
        again = load(Host(kind), source, plugins=plugins)
        assert torch.equal(again(EXAMPLE), model(EXAMPLE))
        assert slots_of(again).named("here").part == slots_of(model).named("here").part
        observe(again, EXAMPLE)


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_acts_on_the_same_part(kind, tmp_path):
    model = grown(kind)
    plain = export(model, path=tmp_path, example=EXAMPLE)
    assert torch.equal(plain.eval()(EXAMPLE), model(EXAMPLE))
    written = tmp_path / "network.py"
    assert "esper" not in written.read_text(encoding="utf-8")
    loaded = runpy.run_path(str(written))["load"](Host(kind))
    torch.testing.assert_close(loaded.eval()(EXAMPLE), model(EXAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_programs_and_compilers_capture_a_grafted_model_as_one_graph(kind):
    model = grown(kind)
    more = torch.randn(5, 6)
    program = torch.export.export(export(model).eval(), (EXAMPLE,))
    torch.testing.assert_close(program.module()(more), model(more))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(more), model(more))


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_a_gardener_grows_there_on_a_branch(kind):
    model, batch = grafted(kind), (EXAMPLE, torch.arange(5) % 3)
    plan = {**planned("here", keep=3), "blueprints": [BEND], "policy": PlannedPolicy(life("here", BEND.id, keep=3))}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gardener = Gardener(model, optimizer, loss=per_example, example=batch, validation=[batch], **plan)
    plain = copy.deepcopy(model)
    for _ in range(4):
        train_batch(gardener, per_example, batch)
        tended = gardener.tend()
    assert tended.kept
    gardener.close()
    torch.testing.assert_close(export(model, example=EXAMPLE)(EXAMPLE), model(EXAMPLE))
    assert not torch.equal(plain(EXAMPLE), model(EXAMPLE))
