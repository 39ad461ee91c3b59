"""Seeds come and go a thousand times, and the host is the host: no number, hook, key, group or byte more."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import OptimizerConfig
from esper_core.config.model import GrowthConfig
from esper_core.growth import Garden, Variety, graft
from esper_core.growth.optimizers import OptimizerKeeper
from esper_core.leyline import Action, Blend, BlueprintSpec, Op, Site, SlotPlace, SlotState, Stage


class ImageHost(nn.Module):
    """Convolution, BatchNorm, dropout: whatever a seed disturbs is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.drop(self.stem(inputs)).mean((2, 3)))


class TokenHost(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(self.stem(inputs)).mean(1))


class Mixer(nn.Module):
    """x + W·tanh(norm(V·x)) over the features, W at 0, with buffers of its own."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.axis = -1 if site.kind == "tokens" else 1
        self.first = nn.Linear(site.channels, site.channels)
        self.norm = nn.BatchNorm1d(site.channels)
        self.last = nn.Linear(site.channels, site.channels, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        features = hidden.movedim(self.axis, -1)
        inner = self.norm(self.first(features).flatten(0, -2)).view_as(features)
        return (features + self.last(torch.tanh(inner))).movedim(-1, self.axis)


class World:
    """A host with one slot, through which seeds pass."""

    def __init__(self, host: Callable[[], nn.Module], example: tuple[int, ...], place: SlotPlace) -> None:
        torch.manual_seed(6)
        self.model = host()
        self.inputs, self.targets = torch.randn(5, *example), torch.randint(0, 2, (5,))
        graft(self.model, {"early": place}, example=self.inputs)
        settings = OptimizerConfig(clip_norm=1.0)
        self.keeper = OptimizerKeeper(self.model.parameters(), host_settings=settings, seed_settings=settings)
        spec = BlueprintSpec(("image", "tokens"), "2*c*c + 3*c", starts_as_identity=True)
        varieties = {"early": (Variety("test/mixer", spec, Mixer),)}
        resting = GrowthConfig(embargo=0)
        self.garden = Garden(self.model, self.keeper, varieties, seed=1, batches=1, settings=resting)
        self.slot = self.garden.slots["early"]

    def loss(self, model: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(model(self.inputs), self.targets)

    def step(self) -> None:
        """A step in which the host stands still, and seeds learn."""
        self.garden.open_step()
        self.garden.tick()
        self.keeper.zero_grad()
        if numbers := self.garden.blended:
            own = list(self.keeper.seeds[numbers[0]].parameters)
            state = torch.get_rng_state()
            kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            grads = torch.autograd.grad(self.loss(self.model), own, allow_unused=True)
            self.keeper.step_seed(numbers[0], grads)
            for name, buffer in self.model.named_buffers():
                buffer.copy_(kept[name])
            torch.set_rng_state(state)
        for number in self.garden.incubating:
            self.garden.incubate(number, self.loss)
        self.garden.take_incubation_losses()
        self.keeper.take_gradients()
        self.garden.close_step()

    def cycle(self, number: int, *, blended: bool) -> None:
        blend = list(Blend)[number % 4]
        self.garden.apply(Action(Op.GERMINATE, "early", "test/mixer", blend=blend, speed=1), number)
        self.step()
        if blended:
            self.garden.apply(Action(Op.ADVANCE, "early"), number)
            self.step()
            assert self.slot.living is not None
            assert self.slot.living.stage is Stage.HOLDING
        self.garden.apply(Action(Op.PRUNE, "early", speed=1), number)
        if blended:
            self.step()
        assert self.slot.state is SlotState.FREE

    def outputs(self) -> list[Tensor]:
        """In evaluation, and in training with the same random numbers; neither leaves a trace."""
        found = []
        with torch.no_grad(), torch.random.fork_rng():
            for trains in (False, True):
                torch.manual_seed(0)
                kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
                found.append(self.model.train(trains)(self.inputs))
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(kept[name])
        return found

    def things(self) -> dict[str, Any]:
        """What is there, by number and name."""
        gc.collect()
        shares = self.keeper.shares()
        return {
            "keys": list(self.model.state_dict()),
            "modules": [type(module).__name__ for module in self.model.modules()],
            "hooks": sum(
                len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
                for module in self.model.modules()
            ),
            "groups": sum(len(share.optimizer.param_groups) for share in shares if share.optimizer is not None),
            "gradients": [name for name, value in self.model.named_parameters() if value.grad is not None],
            "tensors": sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()),
            "incubating": self.garden.incubating,
        }


HOSTS = {
    "image": (ImageHost, (1, 4, 4), SlotPlace("stem")),
    "tokens": (TokenHost, (3, 4), SlotPlace("layer", kind="tokens")),
}
ways = pytest.mark.parametrize("blended", [False, True], ids=["before it was blended", "after it drained"])
every_host = pytest.mark.parametrize("host", HOSTS)


def come_and_go(world: World, cycles: int, *, blended: bool) -> None:
    before, outputs, values = world.things(), world.outputs(), [v.clone() for v in world.model.state_dict().values()]
    random = torch.get_rng_state()
    before["tensors"] += len(outputs) + len(values) + 1
    for number in range(cycles):
        world.cycle(number, blended=blended)
    assert torch.equal(torch.get_rng_state(), random)
    after = world.things()
    assert after.pop("tensors") <= before.pop("tensors")  # what other tests left may go meanwhile
    assert after == before
    assert all(torch.equal(a, b) for a, b in zip(world.model.state_dict().values(), values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(world.outputs(), outputs, strict=True))
    assert world.keeper.misowned(world.model) == []
    assert world.garden.born == cycles


@every_host
@ways
def test_ten_pruned_seeds_leave_nothing_behind(host: str, blended: bool) -> None:
    come_and_go(World(*HOSTS[host]), 10, blended=blended)


@pytest.mark.slow
@every_host
@ways
def test_a_thousand_pruned_seeds_leave_nothing_behind(host: str, blended: bool) -> None:
    come_and_go(World(*HOSTS[host]), 1000, blended=blended)


@pytest.mark.slow
@every_host
def test_memory_is_flat_over_five_hundred_seeds(host: str) -> None:
    world = World(*HOSTS[host])
    sizes = []
    tracemalloc.start()
    try:
        for number in range(500):
            world.cycle(number, blended=True)
            if number % 100 == 99:
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # The interpreter's own lists of spare objects fill up for a while; one seed left behind takes many times that.
    assert sizes[-1] - sizes[1] < 300 * 256, sizes
