"""A thousand seeds germinate and are pruned in each host, and leave it unchanged."""

from __future__ import annotations

import pytest
import torch

import esper_core as esper
from esper_core.growth import Garden, GrowthConfig, OptimizerConfig, OptimizerKeeper, Variety, slots_of
from esper_core.leyline import Action, DataShape, Op
from esper_core.plugins import load_plugins

HOSTS = {
    "pointwise-mlp": (DataShape("sequence", (1, 16), 3), "conv_light"),
    "cnn1d": (DataShape("sequence", (1, 16), 3), "dilated"),
    "cnn2d": (DataShape("image", (3, 8, 8), 3), "squeeze_excite"),
    "mlp": (DataShape("vector", (6,), 3), "low_rank"),
    "token-mlp": (DataShape("tokens", (5, 4), 3), "attention"),
    "transformer": (DataShape("tokens", (5, 4), 3), "lora_small"),
}


class World:
    """A host with its own slots, and a garden in which one blueprint may grow in the first that takes it."""

    def __init__(self, host: str) -> None:
        shape, name = HOSTS[host]
        registry = load_plugins().registry
        torch.manual_seed(0)
        component = registry.find("host", host)
        self.model = component.load()(shape)
        self.inputs = torch.randn(4, *shape.example)
        esper.graft(self.model, component.spec.slots, example=self.inputs)
        blueprint = registry.find("blueprint", name)
        adam = OptimizerConfig()
        self.keeper = OptimizerKeeper(self.model.parameters(), host_settings=adam, seed_settings=adam)
        variety = Variety(blueprint.id, blueprint.spec, blueprint.load())
        slots = slots_of(self.model).each()
        self.slot = next(slot.name for slot in slots if blueprint.spec.misfit(slot.site) is None)
        settings = GrowthConfig(embargo=0)
        self.garden = Garden(self.model, self.keeper, {self.slot: [variety]}, seed=0, batches=1, settings=settings)
        self.blueprint = blueprint.id

    def cycle(self) -> None:
        self.garden.apply(Action(Op.GERMINATE, self.slot, self.blueprint), 0)
        self.garden.open_step()
        self.garden.tick()
        self.garden.incubate(self.slot, lambda model: model(self.inputs).square().mean())
        self.garden.apply(Action(Op.PRUNE, self.slot), 0)
        self.garden.close_step()

    def outputs(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model.eval()(self.inputs)

    def things(self) -> tuple[object, ...]:
        groups = [len(share.optimizer.param_groups) for share in self.keeper.shares() if share.optimizer]
        hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self.model.modules())
        return [name for name, _ in self.model.named_modules()], list(self.model.state_dict()), groups, hooks


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("cycles", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_after_seeds_were_pruned_the_host_is_unchanged(host, cycles):
    world = World(host)
    before, outputs = world.things(), world.outputs()
    state = {name: value.clone() for name, value in world.model.state_dict().items()}
    for _ in range(cycles):
        world.model.train()
        world.cycle()
    assert world.things() == before
    assert torch.equal(world.outputs(), outputs)
    assert all(torch.equal(value, state[name]) for name, value in world.model.state_dict().items())
    assert world.keeper.misowned(world.model) == []
