"""Every standard blueprint can be exported without Esper."""

import pytest
import torch
from torch import nn

from esper_core import SlotPlace, export, graft
from esper_core.growth import Seed, slots_of
from esper_core.leyline import Stage
from esper_core.plugins import load_plugins

EXAMPLES = {
    "vector": torch.randn(3, 8),
    "sequence": torch.randn(3, 8, 12),
    "tokens": torch.randn(3, 12, 8),
    "image": torch.randn(3, 8, 6, 6),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_grew_from_each_blueprint_is_exported_exactly(kind, tmp_path):
    example = EXAMPLES[kind]
    blueprints = [one for one in load_plugins().registry.components("blueprint") if kind in one.spec.accepts]
    assert blueprints
    behind = nn.Linear(8, 8) if kind in ("vector", "tokens") else nn.Identity()
    model = graft(nn.Sequential(behind), {"it": SlotPlace("0", kind, stack=len(blueprints))}, example=example)
    slot = slots_of(model).named("it")
    for number, blueprint in enumerate(blueprints):
        seed = Seed(
            blueprint.load()(slot.site), blueprint=blueprint.id, spec=blueprint.spec, site=slot.site, number=number
        )
        with torch.no_grad():
            for parameter in seed.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        seed.stage = Stage.FOSSILISED
        seed.alpha.aim(1.0, 0)
        slot.seeds.append(seed)
    plain = export(model, path=tmp_path, example=example)
    assert torch.equal(plain.eval()(example), model.eval()(example))
